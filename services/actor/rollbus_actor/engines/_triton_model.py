"""The model that NVIDIA Triton's Python backend runs; copied as ``model.py`` beside ``ops.py``.

It answers requests with the trunk's outputs and the version that made them. A request with ``weights``
replaces the weights: float32 of all tensors one after the other, in the order of ``trunk.json``.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ops import Plan  # type: ignore[import-not-found]


class TritonPythonModel:
    """One policy."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "trunk.json")) as file:
            trunk = json.load(file)
        self.inputs, self.names = trunk["inputs"], trunk["weights"]
        self.weights = {name: np.zeros(shape, np.float32) for name, shape in self.names.items()}
        self.version = np.array([-1, -1], np.int64)
        self.plan = Plan(trunk["nodes"], trunk["outputs"], self.weights)

    def execute(self, requests):  # type: ignore[no-untyped-def]
        parts = [self.read(request) for request in requests]
        rows = [part for part in parts if part is not None]
        outputs = {}
        if rows:
            # One pass for all requests that the server has put together.
            joined = rows[0] if len(rows) == 1 else {n: np.concatenate([r[n] for r in rows]) for n in rows[0]}
            outputs = self.plan.run(joined)
        responses, start = [], 0
        for part in parts:
            num = 1 if part is None else len(next(iter(part.values())))
            tensors = [pb_utils.Tensor("version", np.tile(self.version, (num, 1)))]
            if part is not None:
                for name, value in outputs.items():
                    piece = value[start : start + num].reshape(num, -1)
                    tensors.append(pb_utils.Tensor("out_" + name, np.ascontiguousarray(piece, np.float32)))
                start += num
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses

    def read(self, request):  # type: ignore[no-untyped-def]
        """Inputs of the trunk, or None for a request that brought weights."""
        flat = pb_utils.get_input_tensor_by_name(request, "weights")
        if flat is None:
            return {
                name: pb_utils.get_input_tensor_by_name(request, field).as_numpy().reshape(-1, *shape)
                for name, (field, _, shape) in self.inputs.items()
            }
        flat, start = flat.as_numpy().reshape(-1), 0
        for weight in self.weights.values():
            weight[...] = flat[start : start + weight.size].reshape(weight.shape)
            start += weight.size
        self.version = pb_utils.get_input_tensor_by_name(request, "version_in").as_numpy().reshape(2).copy()
        return None
