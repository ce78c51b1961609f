"""A policy as a model of NVIDIA Triton Inference Server: configuration, code and structure, without weights.

The model needs the server's Python backend and numpy. Weights come with requests (`_triton_model`), so one
load serves all versions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_policies.trunk import Trunk

#: Triton's names of dtypes: in requests and in configurations.
DTYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


def field_of(name: str) -> str:
    """The name of a trunk's input in requests: Triton's names hold no slash."""
    return "in_" + "".join(c if c.isalnum() else "_" for c in name)


def files(trunk: Trunk) -> dict[str, bytes]:
    """What lies in the folder of the model's version, by file name."""
    structure = {
        "inputs": {n: (field_of(n), each.dtype, each.shape) for n, each in trunk.inputs.items()},
        "nodes": [(node.op, node.inputs, node.output, dict(node.attributes)) for node in trunk.nodes],
        "outputs": trunk.outputs,
        "weights": trunk.weights,
    }
    here = Path(__file__).parent
    return {
        "model.py": (here / "_triton_model.py").read_bytes(),
        "ops.py": (here / "_numpy_ops.py").read_bytes(),
        "trunk.json": json.dumps(structure).encode(),
    }


def configuration(name: str, trunk: Trunk, sizes: dict[str, int], max_batch: int, delay_us: int) -> Any:
    """The model's configuration as data; ``sizes``: elements per row of each output of the trunk."""
    num_weights = sum(int(np.prod(shape)) for shape in trunk.weights.values())
    inputs = [_entry(field_of(n), each.dtype, each.shape or (1,)) for n, each in trunk.inputs.items()]
    inputs += [_entry("weights", "float32", (num_weights,)), _entry("version_in", "int64", (2,))]
    outputs = [_entry(f"out_{n}", "float32", (size,)) for n, size in sizes.items()]
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": max_batch,
        "input": [{**each, "optional": True} for each in inputs],
        "output": [*outputs, _entry("version", "int64", (2,))],
        "dynamic_batching": {"max_queue_delay_microseconds": delay_us},
        # One instance: weights must reach all of them.
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }


def write(folder: Path, trunk: Trunk, config: Any) -> Path:
    """The model under ``folder``, a model repository; its own folder."""
    place = folder / config["name"]
    version = place / "1"
    version.mkdir(parents=True, exist_ok=True)
    for name, content in files(trunk).items():
        (version / name).write_bytes(content)
    (place / "config.pbtxt").write_text(_text(config))
    return place


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{DTYPES[dtype]}", "dims": [int(n) for n in shape]}


def _text(message: dict[str, Any], indent: str = "") -> str:
    """protobuf's text format of ``message``."""
    lines = []
    for key, value in message.items():
        for each in value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]:
            if isinstance(each, dict):
                lines.append(f"{indent}{key} {{\n{_text(each, indent + '  ')}{indent}}}")
            else:
                lines.append(f"{indent}{key}: {_scalar(key, each)}")
    return "\n".join(lines) + "\n"


def _scalar(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if key in ("data_type", "kind") else json.dumps(value)
    return json.dumps(value)
