"""rollbus_learner"""
