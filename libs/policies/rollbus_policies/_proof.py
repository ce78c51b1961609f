"""A policy of somebody's own is tried on two rows before it acts or learns: it must give what it states."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.own_code import guard
from rollbus_wire.spec import ArraySpec, EnvSpec

#: How far a row's decision may move when another row is beside it: sums in another order.
ROUNDING = 1e-3


def prove(name: str, policy: Any, spec: EnvSpec) -> None:
    """Raise `SpecError` if the policy that ``name`` made does not decide and score as the contract says."""
    stated, rows = policy.spec, _rows(spec, policy.spec.frame_stack)
    executed = (stated.execute, *spec.action.shape) if stated.chunk > 1 else spec.action.shape
    with guard(name, "deciding for two rows"):
        act = _decide(policy, rows, 2)
        _same(name, "env_action", act.env_action, spec.action.dtype, (2, *executed))
        _same(name, "action", act.action, stated.action[0], (2, *stated.action[1]))
        if stated.state == "hub":
            _same(name, "state", act.state, "float32", (2, stated.state_size))
        alone = _decide(policy, {key: value[:1] for key, value in rows.items()}, 1)
    if not np.allclose(act.action[:1], alone.action, atol=ROUNDING, rtol=ROUNDING):
        raise SpecError(
            f"policy.name {name}: it decides differently for a row if another one is beside it "
            f"({_brief(act.action[0])}, alone {_brief(alone.action[0])}); batch statistics are one cause"
        )
    if "log_prob" in stated.extras and stated.state == "none":
        batch = {f"obs/{key}": torch.from_numpy(value) for key, value in rows.items()}
        with guard(name, "scoring two rows"), torch.no_grad():
            scored = policy(batch | {"action": torch.from_numpy(act.action)}, ("log_prob",))["log_prob"]
        _same(name, "log_prob", scored.cpu().numpy(), "float32", (2,))


def _decide(policy: Any, rows: dict[str, np.ndarray], count: int) -> Any:
    size = policy.spec.state_size
    state = np.zeros((count, size), np.float32) if size else None
    return policy.act(rows, state, Ask("mode"), np.arange(count, dtype=np.uint64))


def _rows(spec: EnvSpec, frame_stack: int) -> dict[str, np.ndarray]:
    """Two rows that differ: everything near 0, everything near 1."""
    stack = (frame_stack,) if frame_stack > 1 else ()
    return {
        key: np.stack([np.full((*stack, *array.shape), value, array.dtype) for value in _range(array)])
        for key, array in spec.observation.items()
    }


def _range(array: ArraySpec) -> tuple[float, float]:
    """0 and 1, or what is nearest to them within the bounds."""
    low = -np.inf if array.low is None else float(np.max(array.low))
    high = np.inf if array.high is None else float(np.min(array.high))
    return float(np.clip(0.0, low, high)), float(np.clip(1.0, low, high))


def _same(name: str, what: str, found: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise `SpecError` unless ``found`` is an array of that dtype and shape, and finite."""
    wanted = f"{dtype} {list(shape)}"
    if not isinstance(found, np.ndarray) or found.dtype != dtype or found.shape != shape:
        array = isinstance(found, np.ndarray)
        came = f"{found.dtype} {list(found.shape)}" if array else type(found).__name__
        raise SpecError(f"policy.name {name}: for two rows {what} is {came}; it must be {wanted}")
    if not np.isfinite(found).all():
        raise SpecError(f"policy.name {name}: for two rows {what} is not finite: {_brief(found)}")


def _brief(value: Any) -> str:
    flat = np.asarray(value).ravel()
    return f"[{', '.join(f'{number:.4g}' for number in flat[:4])}{', ...' if flat.size > 4 else ''}]"
