"""rollbus_accel"""
