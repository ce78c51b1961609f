"""A learning rate that follows the KL of each update."""

from __future__ import annotations

#: Bounds of the KL-adaptive learning rate, and the step by which it moves (rsl_rl).
ADAPTIVE_RATE = (1e-5, 1e-2)
ADAPTIVE_STEP = 1.5


def adapted(learning_rate: float, kl: float, wanted: float) -> float:
    """The learning rate after an update that moved the policy by ``kl`` nats, ``wanted`` being right."""
    low, high = ADAPTIVE_RATE
    if kl > 2.0 * wanted:
        return max(low, learning_rate / ADAPTIVE_STEP)
    if 0.0 < kl < 0.5 * wanted:
        return min(high, learning_rate * ADAPTIVE_STEP)
    return learning_rate
