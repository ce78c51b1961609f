"""What to run on which machine: measured costs, a model, trials (docs/planning.md)."""
