"""Policies: one file per family, one contract for all (`base`)."""
