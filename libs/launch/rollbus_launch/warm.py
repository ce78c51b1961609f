"""Import what a run imports, so that its bytecode is there when the first run starts."""

from __future__ import annotations

import importlib

MODULES = (
    "torch", "torch.optim.adam", "safetensors.numpy", "gymnasium", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "tensorboard.summary.writer.event_file_writer",
    "tensorboard.compat.proto.summary_pb2", "uvicorn", "uvloop", "prometheus_client",
    "rollbus_launch.commands.train", "rollbus_launch.build", "rollbus_launch.evaluator",
    "rollbus_broker.broker", "rollbus_simulator.hub", "rollbus_actor.actor",
    "rollbus_actor.engines.torch_local", "rollbus_actor.engines.auto", "rollbus_actor.engines.numpy",
    "rollbus_actor.engines.onnx", "rollbus_actor.engines._onnx_model", "onnx", "onnxruntime",
    "rollbus_learner.learner", "rollbus_learner.losses", "rollbus_broker.sources.source",
    "rollbus_learner.algorithms.ppo", "rollbus_learner.algorithms.sac", "rollbus_policies.mlp",
    "rollbus_envs.gymnasium", "rollbus_envs.toy",
)  # fmt: skip


def main() -> None:
    """Modules of extras that are not installed are left out."""
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue


if __name__ == "__main__":
    main()
