"""The wire of Rollbus: all that an environment or a robot installs."""

__version__ = "0.1.0"
