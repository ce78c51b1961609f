"""onnxruntime on the CPU: 4-6 times faster than torch at the batch sizes of an actor.

Weights of perceptrons are inputs that point at the policy's own tensors, so a new version needs no new
session. Convolutions with weights as inputs lose half their speed (onnxruntime cannot lay them out
beforehand): their sessions are built anew, 4-11 ms per version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_actor.engines._trunk import TrunkEngine, no_trunk
from rollbus_core import extras
from rollbus_core.version import Version
from rollbus_policies.trunk import Trunk
from rollbus_wire.errors import MissingPackage, SpecError

#: Seconds from choosing this engine to its first pass, most of it imports.
START_S = 0.2
needs = ("onnx", "onnxruntime")
#: Batch sizes whose buffers are kept.
MAX_BINDINGS = 64
Buffers = dict[str, np.ndarray]


def declines(policy: Any, device: str) -> str:
    """Why this engine cannot serve ``policy``; "" if it can."""
    if device != "cpu":
        return f"onnxruntime is used on the CPU, not on {device}"
    if reason := no_trunk(policy):
        return reason
    missing = extras.missing(needs)
    return f"not installed: {', '.join(missing)}" if missing else ""


class Engine(TrunkEngine):
    """One session without and one with the critic's value."""

    def __init__(self, policy: Any, device: str = "cpu", threads: int = 0) -> None:
        super().__init__(policy, device, threads)
        reason = declines(policy, device)
        if reason:
            error = MissingPackage if reason.startswith("not installed") else SpecError
            raise error(f"actor.engine onnx: {reason}; pip install 'rollbus[onnx]' or set torch_local")
        self._threads = max(1, threads)
        self._runs: dict[bool, _Run] = {}

    def _infer(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, value: bool, num_rows: int
    ) -> Mapping[str, np.ndarray]:
        run = self._runs.get(value)
        if run is None:
            run = self._runs[value] = _Run(self.policy, value, self._threads)
        return run(obs, state, num_rows)

    def _swapped(self, version: Version) -> None:
        super()._swapped(version)
        for run in self._runs.values():
            run.refresh()
        self._probe(version)


class _Run:
    """A session and its buffers per batch size."""

    def __init__(self, policy: Any, value: bool, threads: int) -> None:
        import onnxruntime

        self._runtime, self._threads = onnxruntime, threads
        self._trunk: Trunk = policy.describe(value)
        own = policy.state_dict()
        self._weights = {name: own[name].numpy() for name in self._trunk.weights}
        self._fixed = any(node.op == "conv" for node in self._trunk.nodes)
        self._shapes = {"params": (policy.head.num_params,), "value": (), "state": (policy.spec.state_size,)}
        self._build()

    def refresh(self) -> None:
        """The weights have new values."""
        if self._fixed:
            self._build()

    def _build(self) -> None:
        from rollbus_actor.engines._onnx_model import build

        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 3
        model = build(self._trunk, self._weights if self._fixed else {})
        self._session = self._runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._bindings: dict[int, tuple[Any, Buffers, Buffers]] = {}

    def __call__(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, num_rows: int
    ) -> dict[str, np.ndarray]:
        # Copying into places that stay bound costs less than binding the arrays that came.
        binding, places, buffers = self._bindings.get(num_rows) or self._bind(num_rows)
        for name, place in places.items():
            place[...] = state if name == "state" else obs[name[4:]]
        self._session.run_with_iobinding(binding)
        return {name: value if name == "params" else value.copy() for name, value in buffers.items()}

    def _bind(self, num_rows: int) -> tuple[Any, Buffers, Buffers]:
        if len(self._bindings) >= MAX_BINDINGS:
            self._bindings.clear()
        binding = self._session.io_binding()
        inputs = {n: np.empty((num_rows, *each.shape), each.dtype) for n, each in self._trunk.inputs.items()}
        for name, array in (inputs if self._fixed else inputs | self._weights).items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        outputs = {n: np.empty((num_rows, *self._shapes[n]), np.float32) for n in self._trunk.outputs}
        for name, array in outputs.items():
            binding.bind_output(f"out/{name}", "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self._bindings[num_rows] = binding, inputs, outputs
        return binding, inputs, outputs
