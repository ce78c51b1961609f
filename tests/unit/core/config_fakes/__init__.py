"""Plug-ins of a user, by dotted path."""
