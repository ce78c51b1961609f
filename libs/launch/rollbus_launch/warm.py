"""Import what a run imports, so that its bytecode is there when the first run starts."""

from __future__ import annotations

import importlib

from rollbus_wire import lookup

MODULES = (
    "torch", "torch.optim.adam", "safetensors.numpy", "gymnasium", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "tensorboard.summary.writer.event_file_writer",
    "tensorboard.compat.proto.summary_pb2", "uvicorn", "uvloop", "prometheus_client",
    "rollbus_launch.commands.train", "rollbus_launch.build", "rollbus_launch.evaluation.evaluator",
    "rollbus_broker.broker", "rollbus_simulator.hub", "rollbus_actor.actor", "onnx", "onnxruntime",
    "rollbus_learner.learner", "rollbus_learner.losses", "rollbus_broker.sources.source",
)  # fmt: skip
#: All of their plug-ins.
PACKAGES = ("rollbus_actor.engines", "rollbus_learner.algorithms", "rollbus_policies", "rollbus_envs")


def main() -> None:
    """Modules of extras that are not installed are left out."""
    plugins = (f"{package}.{name}" for package in PACKAGES for name in lookup.names(package))
    for name in (*MODULES, *plugins):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue


if __name__ == "__main__":
    main()
