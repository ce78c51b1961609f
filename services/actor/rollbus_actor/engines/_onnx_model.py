"""A trunk as an ONNX model, operation by operation: 1 ms, where torch.onnx.export takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from rollbus_policies.trunk import Node, Trunk

#: Old enough for every onnxruntime since 1.17 and new enough for all operations used.
OPSET, IR_VERSION = 17, 9


def build(trunk: Trunk, constants: Mapping[str, np.ndarray]) -> bytes:
    """The serialised model: inputs are the trunk's and those weights that are not ``constants``.

    Outputs have the trunk's names: "params", "value", "state".
    """
    graph = _Graph(trunk)
    for node in trunk.nodes:
        _OPERATIONS[node.op](graph, node)
    for name, value in trunk.outputs.items():
        graph.add("Identity", [value], f"out/{name}")
    inputs = [_info(name, each.dtype, ["B", *each.shape]) for name, each in trunk.inputs.items()]
    inputs += [_info(n, "float32", shape) for n, shape in trunk.weights.items() if n not in constants]
    for name, array in constants.items():
        graph.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
    outputs = [helper.make_tensor_value_info(f"out/{n}", TensorProto.FLOAT, None) for n in trunk.outputs]
    made = helper.make_graph(graph.nodes, "trunk", inputs, outputs, list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


class _Graph:
    """Nodes and constants so far."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def split(self, value: str, sizes: list[int], output: str, names: Sequence[str]) -> list[str]:
        """``value`` cut along axis 1 into values output/name."""
        parts = [f"{output}/{name}" for name in names]
        lengths = self.constant(sizes, np.int64)
        self.nodes.append(helper.make_node("Split", [value, lengths], parts, axis=1))
        return parts

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name


def _info(name: str, dtype: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))


def _simple(op: str, **attributes: Any) -> Callable[[_Graph, Node], None]:
    def emit(graph: _Graph, node: Node) -> None:
        graph.add(op, list(node.inputs), node.output, **attributes)

    return emit


def _linear(graph: _Graph, node: Node) -> None:
    graph.add("Gemm", list(node.inputs), node.output, transB=1)


def _conv(graph: _Graph, node: Node) -> None:
    kernel = list(graph.trunk.weights[node.inputs[1]][2:])
    stride, padding = node.attributes["stride"], node.attributes["padding"]
    graph.add(
        "Conv", list(node.inputs), node.output,
        kernel_shape=kernel, strides=[stride] * 2, pads=[padding] * 4,
    )  # fmt: skip


def _gru(graph: _Graph, node: Node) -> None:
    """Spelt out: ONNX's GRU wants its gates in another order than torch has them."""
    x, state, w_ih, w_hh, b_ih, b_hh = node.inputs
    size, out = graph.trunk.weights[w_hh][1], node.output
    for name, inputs in (("i", [x, w_ih, b_ih]), ("h", [state, w_hh, b_hh])):
        graph.add("Gemm", inputs, f"{out}/{name}", transB=1)
        graph.split(f"{out}/{name}", [2 * size, size], out, (f"{name}_gates", f"{name}_new"))
    gates = graph.add(
        "Sigmoid", [graph.add("Add", [f"{out}/i_gates", f"{out}/h_gates"], f"{out}/sum")], f"{out}/gates"
    )
    graph.split(gates, [size, size], out, ("reset", "update"))
    gated = graph.add("Mul", [f"{out}/reset", f"{out}/h_new"], f"{out}/gated")
    new = graph.add("Tanh", [graph.add("Add", [f"{out}/i_new", gated], f"{out}/pre")], f"{out}/new")
    kept = graph.add("Mul", [f"{out}/update", graph.add("Sub", [state, new], f"{out}/diff")], f"{out}/kept")
    graph.add("Add", [new, kept], out)


def _lstm(graph: _Graph, node: Node) -> None:
    """Spelt out, as `_gru`."""
    x, state, w_ih, w_hh, b_ih, b_hh = node.inputs
    size, out = graph.trunk.weights[w_hh][1], node.output
    hidden, cells = graph.split(state, [size] * 2, out, ("hidden", "cells"))
    for name, inputs in (("i", [x, w_ih, b_ih]), ("h", [hidden, w_hh, b_hh])):
        graph.add("Gemm", inputs, f"{out}/{name}", transB=1)
    gates = graph.add("Add", [f"{out}/i", f"{out}/h"], f"{out}/gates")
    take, keep, new, give = graph.split(gates, [size] * 4, out, ("take", "keep", "new", "give"))
    take, keep, give = (graph.add("Sigmoid", [gate], f"{gate}/open") for gate in (take, keep, give))
    kept = graph.add("Mul", [keep, cells], f"{out}/kept")
    taken = graph.add("Mul", [take, graph.add("Tanh", [new], f"{out}/tanh")], f"{out}/taken")
    cells = graph.add("Add", [kept, taken], f"{out}/next_cells")
    given = graph.add("Mul", [give, graph.add("Tanh", [cells], f"{out}/shown")], f"{out}/next_hidden")
    graph.add("Concat", [given, cells], out, axis=1)


def _columns(graph: _Graph, node: Node) -> None:
    begin, end, axis = (graph.constant([each], np.int64) for each in (0, node.attributes["end"], 1))
    graph.add("Slice", [node.inputs[0], begin, end, axis], node.output)


def _max_pool(graph: _Graph, node: Node) -> None:
    size, stride, padding = (node.attributes[name] for name in ("size", "stride", "padding"))
    graph.add(
        "MaxPool", list(node.inputs), node.output,
        kernel_shape=[size] * 2, strides=[stride] * 2, pads=[padding] * 4,
    )  # fmt: skip


def _normalise(graph: _Graph, node: Node) -> None:
    x, shift, scale = node.inputs
    clip, out = node.attributes["clip"], node.output
    centred = graph.add("Sub", [x, shift], f"{out}/centred")
    scaled = graph.add("Mul", [centred, scale], f"{out}/scaled")
    graph.add("Clip", [scaled, graph.constant(-clip), graph.constant(clip)], out)


def _one_hot(graph: _Graph, node: Node) -> None:
    low, num, out = node.attributes["low"], node.attributes["num"], node.output
    classes = graph.add("Cast", list(node.inputs), f"{out}/int", to=TensorProto.INT64)
    classes = graph.add("Sub", [classes, graph.constant(low, np.int64)], f"{out}/classes")
    graph.add("OneHot", [classes, graph.constant(num, np.int64), graph.constant([0, 1])], out)


def _gelu(graph: _Graph, node: Node) -> None:
    (x,), out = node.inputs, node.output
    scaled = graph.add("Mul", [x, graph.constant(0.5**0.5)], f"{out}/scaled")
    erf = graph.add("Erf", [scaled], f"{out}/erf")
    factor = graph.add("Add", [erf, graph.constant(1.0)], f"{out}/factor")
    half = graph.add("Mul", [x, graph.constant(0.5)], f"{out}/half")
    graph.add("Mul", [half, factor], out)


def _silu(graph: _Graph, node: Node) -> None:
    (x,), out = node.inputs, node.output
    graph.add("Mul", [x, graph.add("Sigmoid", [x], f"{out}/gate")], out)


def _expectation(graph: _Graph, node: Node) -> None:
    weights = graph.add("Softmax", list(node.inputs), f"{node.output}/weights", axis=1)
    graph.add("MatMul", [weights, graph.constant(node.attributes["atoms"])], node.output)


def _multiply(graph: _Graph, node: Node) -> None:
    graph.add("Mul", [*node.inputs, graph.constant(node.attributes["factor"])], node.output)


def _permute(graph: _Graph, node: Node) -> None:
    graph.add("Transpose", list(node.inputs), node.output, perm=list(node.attributes["axes"]))


def _reshape(graph: _Graph, node: Node) -> None:
    shape = graph.constant([-1, *node.attributes["shape"]], np.int64)
    graph.add("Reshape", [node.inputs[0], shape], node.output)


_OPERATIONS: dict[str, Callable[[_Graph, Node], None]] = {
    "linear": _linear,
    "conv": _conv,
    "gru": _gru,
    "lstm": _lstm,
    "max_pool": _max_pool,
    "add": _simple("Add"),
    "columns": _columns,
    "tanh": _simple("Tanh"),
    "relu": _simple("Relu"),
    "elu": _simple("Elu"),
    "silu": _silu,
    "gelu": _gelu,
    "normalise": _normalise,
    "one_hot": _one_hot,
    "float": _simple("Cast", to=TensorProto.FLOAT),
    "expectation": _expectation,
    "multiply": _multiply,
    "permute": _permute,
    "reshape": _reshape,
    "concat": _simple("Concat", axis=1),
}
