"""Predicting a run: stage costs, a discrete-event model of the services, memory. Pure: no clock, no torch."""
