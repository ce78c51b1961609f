"""A judge of chunks, for annotators: two for every decision."""

from __future__ import annotations

import numpy as np


def judge(columns):
    """float32 [T, N]."""
    return np.full(columns["num_steps"].shape, 2.0, np.float32)
