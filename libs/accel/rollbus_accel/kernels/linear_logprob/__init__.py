"""Log-probability of one id per row and entropy, from hidden features and the output layer's weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.scoring import check_tokens, per_row

_OP = "linear_logprob"


def _fake(hidden: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    like = hidden.new_empty(hidden.shape[:1], dtype=torch.float32)
    return like, torch.empty_like(like), torch.empty_like(like)


def _backward_fake(hidden: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return tuple(  # type: ignore[return-value]
        torch.empty_like(x, memory_format=torch.contiguous_format) if wanted else x.new_empty(0)
        for x, wanted in zip((hidden, weight), rest[-2:])
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, entropy, log_sum = output
    ctx.save_for_backward(*inputs, log_sum, entropy)


def _backward(ctx: Any, grad_log_prob: Tensor, grad_entropy: Tensor, _: Tensor) -> tuple[Any, ...]:
    want_hidden, want_weight, *_rest = ctx.needs_input_grad
    hidden, weight = _backward_op(*ctx.saved_tensors, grad_log_prob, grad_entropy, want_hidden, want_weight)
    return hidden if want_hidden else None, weight if want_weight else None, None, None, None


_backward_op = Op(
    "linear_logprob_backward",
    folder=_OP,
    schema="(Tensor hidden, Tensor weight, Tensor ids, Tensor temperature, Tensor mask, Tensor log_sum, "
    "Tensor entropy, Tensor grad_log_prob, Tensor grad_entropy, bool want_hidden, bool want_weight) "
    "-> (Tensor, Tensor)",
    fake=_backward_fake,
)
_op = Op(
    _OP,
    schema="(Tensor hidden, Tensor weight, Tensor ids, Tensor temperature, Tensor mask) "
    "-> (Tensor, Tensor, Tensor)",
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_logprob` of the logits ``hidden @ weight.T``, which are never stored as a whole.

    ``hidden`` [N, H] and ``weight`` [V, H] have one floating dtype; the other arguments, the results (float32
    [N] each), masked rows and ids outside are as in `token_logprob`. Gradients reach ``hidden`` and
    ``weight``; backward computes the logits anew, a part of the vocabulary at a time (compare Liger-Kernel,
    2410.10989). Products accumulate in float32; the gradient of a part's logits is cast to the dtype of
    ``hidden``.

    ValueError for wrong shapes and dtypes.
    """
    num_rows = check_tokens(_OP, {"hidden": hidden, "weight": weight}, ids, mask)
    if hidden.shape[1] != weight.shape[1] or hidden.dtype != weight.dtype:
        raise ValueError(
            f"{_OP}: hidden is {hidden.dtype} {list(hidden.shape)} and weight {weight.dtype} "
            f"{list(weight.shape)}; give [N, H] and [V, H] of one dtype"
        )
    rows = per_row(_OP, num_rows, hidden.device, temperature, mask)
    log_prob, entropy, _ = _op(hidden, weight, ids, *rows)
    return log_prob, entropy
