"""The simulator hub: it owns what an episode is, for every environment and robot."""
