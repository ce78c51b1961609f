"""rollbus_actor"""
