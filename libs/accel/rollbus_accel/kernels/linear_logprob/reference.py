"""Log-probability and entropy behind a linear layer, by way of all the logits."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.token_logprob.reference import token_logprob


def linear_logprob(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(log_prob, entropy, log of the sum of exponentials), [N] each; see the public function."""
    kind = torch.promote_types(hidden.dtype, torch.float32)
    rows = torch.where(mask[:, None], hidden.to(kind), 0.0)
    return token_logprob(rows @ weight.to(kind).T, ids, temperature, mask)


def linear_logprob_backward(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor,
    log_sum: Tensor,
    entropy: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor,
    want_hidden: bool,
    want_weight: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``hidden`` and ``weight``, by autograd; empty where not wanted."""
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (hidden, weight)]
        outputs = linear_logprob(inputs[0], inputs[1], ids, temperature, mask)[:2]
        found = torch.autograd.grad(outputs, inputs, (grad_log_prob, grad_entropy))
    return (
        found[0] if want_hidden else hidden.new_empty(0),
        found[1] if want_weight else weight.new_empty(0),
    )
