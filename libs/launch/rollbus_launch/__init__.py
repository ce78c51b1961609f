"""rollbus_launch"""
