"""Log-probability of one id per row and entropy of the row's distribution, from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.scoring import check_tokens, per_row

_OP = "token_logprob"


def _fake(logits: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    like = logits.new_empty(logits.shape[:1], dtype=torch.float32)
    return like, torch.empty_like(like), torch.empty_like(like)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, entropy, log_sum = output
    ctx.save_for_backward(*inputs, log_sum, entropy)


def _backward(ctx: Any, grad_log_prob: Tensor, grad_entropy: Tensor, _: Tensor) -> tuple[Any, ...]:
    return _backward_op(*ctx.saved_tensors, grad_log_prob, grad_entropy), None, None, None


_backward_op = Op(
    "token_logprob_backward",
    folder=_OP,
    schema="(Tensor logits, Tensor ids, Tensor temperature, Tensor mask, Tensor log_sum, Tensor entropy, "
    "Tensor grad_log_prob, Tensor grad_entropy) -> Tensor",
    fake=lambda logits, *rest: torch.empty_like(logits, memory_format=torch.contiguous_format),
)
_op = Op(
    _OP,
    schema="(Tensor logits, Tensor ids, Tensor temperature, Tensor mask) -> (Tensor, Tensor, Tensor)",
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def token_logprob(
    logits: Tensor, ids: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(log-probability of ``ids``, entropy), float32 [N], of ``softmax(logits / temperature)``.

    ``logits`` are [N, V] of floating point, ``ids`` int64 [N], ``temperature`` above 0, one number or one
    per row [N], ``mask`` bool [N]: rows that count, default all. Other rows give 0 and get no gradient;
    nothing of them is read. A logit of -inf excludes its id. An id outside [0, V) is an error on the CPU and
    NaN on accelerators, where looking would wait for the device. Gradients reach ``logits``; the softmax is
    computed in float32 and never stored (online normaliser: Milakov, Gimelshein, 1805.02867).

    ValueError for wrong shapes and dtypes.
    """
    num_rows = check_tokens(_OP, {"logits": logits}, ids, mask)
    log_prob, entropy, _ = _op(logits, ids, *per_row(_OP, num_rows, logits.device, temperature, mask))
    return log_prob, entropy
