"""Stages of one file, one after the other: `rollbus run`."""
