"""Kernels: one folder per op, one file per flavour. `base` says how an op is defined and chosen.

Importing an op imports torch, and neither triton nor numba before a call needs them.
"""
