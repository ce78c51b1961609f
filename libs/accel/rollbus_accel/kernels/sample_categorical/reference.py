"""Gumbel-max sampling in plain torch (Gumbel, 1954; Maddison et al., 1611.00712)."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.philox import uniform


def sample_categorical(logits: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    gumbel = -(-uniform(seeds, logits.shape[1]).log()).log()
    choice = (log_probs + gumbel).argmax(1)
    probs = log_probs.exp()
    entropy = -torch.where(probs > 0, probs * log_probs, 0.0).sum(1)
    return choice, log_probs.gather(1, choice[:, None])[:, 0], entropy
