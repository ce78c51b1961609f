"""Kinds of stages of a pipeline, one file each, found by name. A kind has ``Config`` (a `base.Stage`)."""
