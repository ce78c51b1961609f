"""Log-probability and entropy of one id per row, step by step."""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprob(
    logits: Tensor, ids: Tensor, temperature: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(log_prob, entropy, log of the sum of exponentials), [N] each; see the public function."""
    kind = torch.promote_types(logits.dtype, torch.float32)
    rows = torch.where(mask[:, None], logits.to(kind), 0.0)
    scaled = rows / torch.where(mask, temperature, 1.0)[:, None]
    log_sum = torch.logsumexp(scaled, -1)
    log_probs = scaled - log_sum[:, None]
    chosen = log_probs.gather(-1, torch.where(mask, ids, 0)[:, None]).squeeze(-1)
    probs = log_probs.exp()
    # An excluded id has probability 0 and adds nothing, though 0 * -inf is NaN.
    entropy = -(probs * torch.where(probs > 0, log_probs, 0.0)).sum(-1)
    return torch.where(mask, chosen, 0.0), torch.where(mask, entropy, 0.0), torch.where(mask, log_sum, 0.0)


def token_logprob_backward(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor,
    log_sum: Tensor,
    entropy: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor,
) -> Tensor:
    """Gradient of ``logits``, by autograd."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        outputs = token_logprob(logits, ids, temperature, mask)[:2]
        return torch.autograd.grad(outputs, logits, (grad_log_prob, grad_entropy))[0]
