"""Environments, one file each; a file is found by its name."""
