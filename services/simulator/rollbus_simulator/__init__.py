"""rollbus_simulator"""
