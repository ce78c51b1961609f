"""A generated model behind nvidia-pytriton, in that package's own environment.

    VENV/bin/python benchmarks/pytriton_peer.py FOLDER MODEL GRPC_PORT HTTP_PORT METRICS_PORT

Ends at a line on stdin.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def main() -> None:
    """Serve until told to stop."""
    folder, model, grpc, http, metrics = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
    sys.path.insert(0, str(folder))
    from ops import Plan

    trunk = json.loads((folder / "trunk.json").read_text())
    flat, weights, start = np.load(folder / "weights.npy"), {}, 0
    for name, shape in trunk["weights"].items():
        size = int(np.prod(shape))
        weights[name] = flat[start : start + size].reshape(shape).copy()
        start += size
    outputs = {name: value for name, value in trunk["outputs"].items() if name == "params"}
    plan = Plan(trunk["nodes"], outputs, weights)
    example = np.load(folder / "example.npy")
    width = plan.run({"obs/obs": example})["params"].shape[1]

    @batch
    def infer(in_obs_obs: np.ndarray) -> list[np.ndarray]:
        return [np.ascontiguousarray(plan.run({"obs/obs": in_obs_obs})["params"])]

    config = TritonConfig(
        grpc_port=grpc, http_port=http, metrics_port=metrics, grpc_address="127.0.0.1",
        http_address="127.0.0.1", metrics_address="127.0.0.1",
    )  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            model, infer,
            inputs=[Tensor(name="in_obs_obs", dtype=example.dtype.type, shape=example.shape[1:])],
            outputs=[Tensor(name="out_params", dtype=np.float32, shape=(width,))],
            config=ModelConfig(max_batch_size=256, batcher=DynamicBatcher(max_queue_delay_microseconds=500)),
        )  # fmt: skip
        triton.run()
        print("ready", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
