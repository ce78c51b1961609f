"""Features of LeRobot's info.json: names, dtypes and shapes, and how a spec maps to them.

An observation ``key`` is the feature ``observation.<key>`` ("/" in a key becomes "."). Scalars have shape
[1], as in LeRobot. Images lie in the files as PNG, height x width x channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EXPERT_ACTION, ArraySpec, EnvSpec

CODEBASE_VERSION = "v3.0"
ACTION, REWARD, DONE, SUCCESS = "action", "next.reward", "next.done", "next.success"
#: Ours, beside LeRobot's: how an episode ended, who acted (an index into `SOURCES`), the seed of the reset.
TERMINATED, TRUNCATED, SOURCE, SEED = "next.terminated", "next.truncated", "source", "seed"
#: Every LeRobot dataset has these.
TIMESTAMP, FRAME, EPISODE, INDEX, TASK = "timestamp", "frame_index", "episode_index", "index", "task_index"
_ALWAYS = {TIMESTAMP: "float32", FRAME: "int64", EPISODE: "int64", INDEX: "int64", TASK: "int64"}
#: Channels that a PNG may have, and Pillow's name for them.
PNG_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_DTYPES = frozenset(
    "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool image video string".split()
)


@dataclass(frozen=True)
class Feature:
    """One column of a dataset."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_image(self) -> bool:
        return self.dtype == "image"

    def to_data(self) -> dict[str, Any]:
        """As in info.json."""
        names = ["height", "width", "channels"] if self.is_image else None
        return {"dtype": self.dtype, "shape": list(self.shape), "names": names}


def without_expert(spec: EnvSpec) -> EnvSpec:
    """``spec`` as data sets hold it: what an expert would do is no observation of a policy."""
    kept = {key: array for key, array in spec.observation.items() if key != EXPERT_ACTION}
    return spec if len(kept) == len(spec.observation) else replace(spec, observation=kept)


def observation_feature(key: str) -> str:
    """The feature of observation ``key`` where a recipe names no other."""
    return "observation." + key.replace("/", ".")


def is_image(array: ArraySpec) -> bool:
    """Whether ``array`` is kept as PNG."""
    return array.dtype == "uint8" and array.layout in ("HWC", "CHW") and channels(array) in PNG_MODES


def channels(array: ArraySpec) -> int:
    """Of an image; 0 for anything else."""
    return 0 if len(array.shape) != 3 else array.shape[2 if array.layout == "HWC" else 0]


def height_width_channels(array: ArraySpec) -> tuple[int, ...]:
    """Shape of an image in a file."""
    c, h, w = array.shape if array.layout == "CHW" else (array.shape[2], *array.shape[:2])
    return (h, w, c)


def of_spec(spec: EnvSpec) -> dict[str, Feature]:
    """The features that `DatasetWriter` writes for environment ``spec``, observations first."""
    found: list[Feature] = []
    for key, array in spec.observation.items():
        name = observation_feature(key)
        if is_image(array):
            found.append(Feature(name, "image", height_width_channels(array)))
        else:
            found.append(Feature(name, array.dtype, array.shape or (1,)))
    found.append(Feature(ACTION, spec.action.dtype, spec.action.shape or (1,)))
    found.append(Feature(REWARD, "float32", (1,)))
    flags = [DONE, TERMINATED, TRUNCATED] + ([SUCCESS] if spec.has_success else [])
    found += [Feature(name, "bool", (1,)) for name in flags]
    found += [Feature(SOURCE, "uint8", (1,)), Feature(SEED, "int64", (1,))]
    found += [Feature(name, dtype, (1,)) for name, dtype in _ALWAYS.items()]
    names = [feature.name for feature in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{spec.name}: observations would share the feature {', '.join(twice)}; rename one")
    return {feature.name: feature for feature in found}


def from_data(data: Any, where: str) -> dict[str, Feature]:
    """The features of an info.json. Raises `ConfigError` naming what is not readable."""
    if not isinstance(data, Mapping) or not data:
        raise ConfigError(f"{where}: 'features' is {type(data).__name__}, not a map of features")
    found = {}
    for name, item in data.items():
        try:
            dtype, shape = str(item["dtype"]), tuple(int(n) for n in item["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: feature {name!r} is not readable: {error!r}") from None
        if dtype not in _DTYPES or any(n < 0 for n in shape):
            raise ConfigError(f"{where}: feature {name!r} has dtype {dtype!r} and shape {list(shape)}")
        names = [str(n) for n in item.get("names") or ()]
        if dtype in ("image", "video") and len(shape) == 3 and names[:1] == ["channels"]:
            shape = (*shape[1:], shape[0])
        found[str(name)] = Feature(str(name), dtype, shape)
    return found
