"""Replaying a captured forward pass: one launch instead of one per operation.

A captured graph reads and writes fixed places. Inputs are copied into them, weights are updated in place by
whoever owns them, so a new version needs no new capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Passes before a capture: libraries allocate their workspaces in the first ones.
WARM_UP = 3

Tensors = dict[str, Any]
#: Runs the function once under capture; (what runs it again on the same places, what it returned).
Capture = Callable[[Callable[[], Tensors]], tuple[Callable[[], None], Tensors]]


def padded_size(num_rows: int) -> int:
    """The smallest power of two that holds ``num_rows``: few sizes, at most half of a batch wasted."""
    return 1 << max(0, num_rows - 1).bit_length()


def pad(tensor: Any, size: int) -> Any:
    """[B, ...] with its first row repeated behind it up to [size, ...]: valid input, whatever it means."""
    rows = [*range(tensor.shape[0]), *[0] * (size - tensor.shape[0])]
    return tensor if len(rows) == tensor.shape[0] else tensor[rows]


class CapturedRuns:
    """``infer(inputs, value) -> outputs`` captured once per (padded batch size, value)."""

    def __init__(self, infer: Callable[[Tensors, bool], Tensors], capture: Capture, device: Any) -> None:
        self._infer, self._capture, self._device = infer, capture, device
        self._runs: dict[tuple[int, bool], tuple[Tensors, Callable[[], None], Tensors]] = {}

    @property
    def num_captured(self) -> int:
        """Graphs that exist."""
        return len(self._runs)

    def __call__(self, inputs: Mapping[str, Any], value: bool, num_rows: int) -> Tensors:
        """Outputs of the first ``num_rows`` rows, valid until the next call."""
        key = (padded_size(num_rows), value)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self._record(inputs, *key)
        places, replay, outputs = run
        for name, place in places.items():
            place[:num_rows].copy_(inputs[name], non_blocking=True)
        replay()
        return {name: output[:num_rows] for name, output in outputs.items()}

    def _record(self, inputs: Mapping[str, Any], size: int, value: bool) -> Any:
        # Rows behind the batch keep what is written here: it must be valid input.
        places = {name: pad(tensor, size).to(self._device, copy=True) for name, tensor in inputs.items()}
        replay, outputs = self._capture(lambda: self._infer(places, value))
        return places, replay, outputs


def capture_on(device: Any) -> Capture:
    """`Capture` with the graphs of ``device``: CUDA, HIP, NPU, ...; `RuntimeError` where it has none."""
    import torch

    def capture(run: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        stream = torch.Stream(device)
        stream.wait_stream(torch.accelerator.current_stream(device))
        before = torch.accelerator.current_stream(device)
        torch.accelerator.set_stream(stream)
        try:
            for _ in range(WARM_UP):
                run()
            graph = _new_graph(device)
            with graph:
                outputs = run()
        finally:
            torch.accelerator.set_stream(before)
        before.wait_stream(stream)
        return graph.replay, outputs

    return capture


def _new_graph(device: Any) -> Any:
    """An empty graph as a context manager that captures."""
    import torch

    if hasattr(torch.accelerator, "Graph"):
        return torch.accelerator.Graph()
    runtime = getattr(torch, device.type)
    graph = getattr(runtime, f"{device.type.upper()}Graph")()
    return _Older(runtime.graph(graph, stream=torch.accelerator.current_stream(device)), graph)


class _Older:
    """The graphs of torch before 2.11, which capture through a manager beside them."""

    def __init__(self, manager: Any, graph: Any) -> None:
        self._manager, self.replay = manager, graph.replay

    def __enter__(self) -> None:
        self._manager.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._manager.__exit__(*error)
