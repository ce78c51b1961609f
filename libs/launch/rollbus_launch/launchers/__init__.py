"""Launchers: up, scale, down. One file per way to run processes."""
