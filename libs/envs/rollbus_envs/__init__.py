"""Environments, one file each; a file is found by its name."""

#: Modules that are no environments.
NOT_PLUGINS = ("worker",)
