"""Choose one of K by logits, with log-probability and entropy, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, same_device
from rollbus_accel.kernels.checks import seeds as check_seeds


def _fake(logits: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits)
    log_prob = logits.new_empty(rows, dtype=torch.float32)
    return logits.new_empty(rows, dtype=torch.int64), log_prob, torch.empty_like(log_prob)


_op = Op(
    "sample_categorical",
    schema="(Tensor logits, Tensor seeds) -> (Tensor, Tensor, Tensor)",
    fake=_fake,
)


def sample_categorical(logits: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(choice int64 [B], log-prob float32 [B], entropy in nats float32 [B]) of ``logits`` [B, K].

    Row i's noise is a function of ``seeds[i]`` (int64 or uint64) alone, the same in every flavour; see
    `philox`. The choice is the largest of logit plus Gumbel noise. A logit of minus infinity is never
    chosen. No gradients: this is for acting.

    ValueError for shapes that do not fit, logits that are not floats and seeds of another dtype.
    """
    if logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(
            f"sample_categorical: logits have the shape {list(logits.shape)}; give [B, K], K > 0"
        )
    floats("sample_categorical", {"logits": logits})
    check_seeds("sample_categorical", seeds, len(logits))
    same_device("sample_categorical", {"logits": logits, "seeds": seeds})
    choice, log_prob, entropy = _op(logits, seeds.view(torch.int64))
    return choice, log_prob, entropy
