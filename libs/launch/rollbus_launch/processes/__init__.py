"""Service processes from outside: starting them, watching them, saying where they hang or how they ended."""
