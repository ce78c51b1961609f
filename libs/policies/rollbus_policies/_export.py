"""A policy as an ONNX model: observations in, what is executed out, the normaliser inside.

Exported is mode "mode". Generative policies take the noise that they start from as an input; recurrent ones
take and give their state.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_policies._condition import CONDITION
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ArraySpec, EnvSpec

#: Old enough for every onnxruntime since 1.17 and new enough for all operations used.
OPSET = 17
#: Rows of the example that is traced; the model takes any number.
_ROWS = 2


class Deployed(nn.Module):
    """Arguments in the order of `inputs`; gives ``action`` and, of recurrent policies, ``next_state``."""

    def __init__(self, policy: Any, spec: EnvSpec) -> None:
        super().__init__()
        if not hasattr(policy, "deployed"):
            raise SpecError(
                f"a {type(policy).__name__} decides token by token and has no form of one pass, so it "
                "cannot be exported"
            )
        self.policy = policy
        #: Name -> (dtype, shape per row).
        self.inputs: dict[str, tuple[str, tuple[int, ...]]] = {}
        frames = () if policy.spec.frame_stack == 1 else (policy.spec.frame_stack,)
        for key in (key for key in policy.reads if key != CONDITION):
            array: ArraySpec = spec.observation[key]
            self.inputs[f"obs/{key}"] = (array.dtype, (*frames, *array.shape))
        if policy.spec.state_size:
            self.inputs["state"] = ("float32", (policy.spec.state_size,))
        if policy.spec.generative and not policy.config.steer:
            self.inputs["noise"] = ("float32", (policy.spec.chunk, spec.action.size))
        self.outputs = ["action", *(["next_state"] if policy.spec.state_size else [])]

    def forward(self, *given: Tensor) -> Any:
        named = dict(zip(self.inputs, given))
        obs = {name[4:]: value for name, value in named.items() if name.startswith("obs/")}
        action, state = self.policy.deployed(obs, named.get("state"), named.get("noise"))
        return action if state is None else (action, state)


def export(policy: Any, spec: EnvSpec, path: Path) -> dict[str, Any]:
    """Write ``policy`` to ``path`` and check it; its inputs, outputs and the largest difference to `act`.

    Raises `SpecError` if onnxruntime does not compute what the policy does.
    """
    deployed = Deployed(policy, spec).eval()
    example = tuple(torch.from_numpy(a) for a in _arrays(deployed, spec, _ROWS, 0).values())
    names = [*deployed.inputs, *deployed.outputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of shapes that are fixed
        torch.onnx.export(
            deployed, example, str(path), dynamo=False, opset_version=OPSET,
            input_names=list(deployed.inputs), output_names=deployed.outputs,
            dynamic_axes={name: {0: "B"} for name in names},
        )  # fmt: skip
    largest = max(_difference(deployed, policy, spec, path, num_rows) for num_rows in (1, 5))
    if not largest <= 1e-4:
        raise SpecError(f"the exported model differs from the policy by {largest:.3g}; it was not written")
    inputs = {name: {"dtype": d, "shape": ["B", *shape]} for name, (d, shape) in deployed.inputs.items()}
    return {"inputs": inputs, "outputs": deployed.outputs, "onnx_difference": largest}


def _arrays(deployed: Deployed, spec: EnvSpec, num_rows: int, seed: int) -> dict[str, np.ndarray]:
    """Inputs in the ranges that ``spec`` states."""
    generator, found = np.random.default_rng(seed), {}
    for name, (dtype, shape) in deployed.inputs.items():
        array = spec.observation.get(name.removeprefix("obs/"))
        if np.dtype(dtype).kind == "f":
            values: np.ndarray = generator.normal(size=(num_rows, *shape))
        else:
            high = 1 if array is None or array.high is None else int(array.high)
            values = generator.integers(0, high + 1, (num_rows, *shape))
        found[name] = values.astype(dtype)
    return found


def _difference(deployed: Deployed, policy: Any, spec: EnvSpec, path: Path, num_rows: int) -> float:
    """Largest difference of what is executed, relative to the bounds' width where there are some."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = _arrays(deployed, spec, num_rows, 1)
    used = {each.name for each in session.get_inputs()}
    (found, *_) = session.run(None, {name: value for name, value in given.items() if name in used})
    obs = {name[4:]: value for name, value in given.items() if name.startswith("obs/")}
    ask = Ask("mode", noise=given.get("noise"))
    wanted = policy.act(obs, given.get("state"), ask, np.zeros(num_rows, np.uint64)).env_action
    if found.shape != wanted.shape:
        raise SpecError(f"the exported model gives {list(found.shape)}, the policy {list(wanted.shape)}")
    return float(np.abs(found.astype(np.float64) - wanted).max())
