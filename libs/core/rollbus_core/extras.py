"""Packages that Rollbus can do without: what each is for, which extra brings it, and one refusal for all."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollbus_wire.errors import MissingPackage


class Optional(NamedTuple):
    """A package as it is imported (``name``) and as pip knows it (``distribution``)."""

    name: str
    distribution: str
    #: Of this distribution; it brings the package.
    extra: str
    used_for: str
    #: Every training needs it.
    needed: bool = False


ALL = (
    Optional("torch", "torch", "learn", "policies and learners", True),
    Optional("safetensors", "safetensors", "learn", "checkpoints", True),
    Optional("gymnasium", "gymnasium", "gymnasium", "environments of Gymnasium"),
    Optional("mujoco", "mujoco", "mujoco", "MuJoCo tasks of Gymnasium, such as HalfCheetah-v5"),
    Optional("sklearn", "scikit-learn", "digit-images", "env digit_images"),
    Optional("scipy", "scipy", "rotations", "env.rotations, rotations of data sets"),
    Optional("pyarrow", "pyarrow", "datasets", "data sets: collect, value, label, reward, data.sources"),
    Optional("PIL", "pillow", "datasets", "images in data sets"),
    Optional("tensorboard", "tensorboard", "records", "TensorBoard files of a run"),
    Optional("matplotlib", "matplotlib", "records", "curve.png, compare --curve"),
    Optional("optuna", "optuna", "sweep", "rollbus sweep"),
    Optional("onnx", "onnx", "onnx", "rollbus export, actor.engine onnx"),
    Optional("onnxruntime", "onnxruntime", "onnx", "rollbus export, actor.engine onnx"),
    Optional("tritonclient", "tritonclient", "triton-server", "actor.engine triton_server"),
    Optional("peft", "peft", "lora", "algorithm.lora_rank"),
    Optional("numba", "numba", "kernels", "compiled kernels on CPUs"),
    Optional("triton", "triton", "kernels", "compiled kernels on GPUs"),
    Optional("zstandard", "zstandard", "stream", "smaller weights between hosts"),
)
_BY_NAME = {each.name: each for each in ALL}
#: What reading or writing data sets needs.
DATASETS = ("pyarrow", "PIL")
#: What stating rotations in another way needs.
ROTATIONS = ("scipy",)
#: What an export needs.
EXPORT = ("onnx", "onnxruntime")


def missing(names: Iterable[str]) -> list[str]:
    """Those of ``names`` (as imported; a version may follow) that this interpreter does not find."""
    return [name for name in names if importlib.util.find_spec(re.split(r"\W", name)[0]) is None]


def requirement(name: str) -> str:
    """What pip installs the package ``name`` by: an extra of ours, or its own name."""
    known = _BY_NAME.get(name)
    return f"rollbus[{known.extra}]" if known else name


def install_line(requirements: Iterable[str]) -> str:
    """The command for `requirement` texts."""
    return f"pip install {shlex.join(dict.fromkeys(requirements))}"


def require(what: str, names: Iterable[str]) -> None:
    """Raise `MissingPackage` unless all packages that ``what`` needs are there."""
    if lacking := missing(names):
        raise MissingPackage(f"{what} needs {not_there({name: requirement(name) for name in lacking})}")


def not_there(lacking: Mapping[str, str]) -> str:
    """``x and y, which are not installed; run: ...`` of packages as imported -> `requirement` texts."""
    verb = "is" if len(lacking) == 1 else "are"
    return f"{' and '.join(lacking)}, which {verb} not installed; run: {install_line(lacking.values())}"
