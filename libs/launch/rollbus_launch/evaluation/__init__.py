"""Exact lists of episodes, what they come to, and the service that evaluates while training goes on."""
