"""rollbus_broker"""
