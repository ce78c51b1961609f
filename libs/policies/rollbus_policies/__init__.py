"""Policies: one file per family, one contract for all (`base`)."""

#: Files beside the plug-ins.
NOT_PLUGINS = ("text", "trunk", "wrap")
