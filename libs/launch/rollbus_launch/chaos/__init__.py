"""Breaks a run on purpose and watches how it comes back: `rollbus chaos`."""
