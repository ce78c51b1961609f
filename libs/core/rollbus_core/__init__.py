"""What every service shares. No torch, no simulator."""

__version__ = "0.1.0"
