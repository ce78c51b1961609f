"""Episodes of a dataset as an environment's spec wants them, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rollbus_core.columns import SOURCES
from rollbus_core.datasets import features as names
from rollbus_core.datasets.episode import Arrays, Episode
from rollbus_core.datasets.features import Feature
from rollbus_core.datasets.reader import Dataset, Rows
from rollbus_core.datasets.stated import restatement, stored_as
from rollbus_core.rotations import ACTION, Restated
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ArraySpec, EnvSpec

#: Numbers may be outside of the stated range by this part of it: rounding on the way.
SLACK = 1e-3


class FittedDataset:
    """``dataset`` read as environment ``spec``; ``keys``: observation -> feature, where names differ.

    ``rotations``: observation, or "action", -> how the data set states those of the spec, where it does not
    say so itself. Raises `ConfigError` with one line per feature that does not fit.
    """

    def __init__(
        self, dataset: Dataset, spec: EnvSpec, keys: Mapping[str, str] | None = None,
        rotations: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.dataset, self.spec = dataset, spec
        keys = dict(keys or {})
        self._keys = {key: keys.pop(key, names.observation_feature(key)) for key in spec.observation}
        problems = [
            f"data.keys names {key!r}, which {spec.name} does not observe; it observes "
            f"{', '.join(spec.observation)}"
            for key in keys
        ]
        #: Key, or "action" -> how the environment has the array, and the way to it from the data set's.
        self._arrays = {**spec.observation, ACTION: _action_array(spec)}
        self._restate: dict[str, Restated | None] = {}
        for key, array in self._arrays.items():
            try:
                stored = stored_as(key, array, dataset.spec, rotations or {})
            except ConfigError as error:
                problems.append(str(error))
                continue
            self._restate[key] = restatement(stored, array)
            what = "the action" if key == ACTION else f"observation {key!r}"
            problems += self._misfit(self._keys.get(key, names.ACTION), stored, what)
        if problems:
            raise ConfigError(f"{dataset.folder} does not fit {spec.name}: " + "; ".join(problems))
        own = (names.REWARD, names.DONE, names.TERMINATED, names.TRUNCATED, names.SUCCESS, names.SOURCE,
               names.SEED)  # fmt: skip
        self._also = [name for name in own if name in dataset.features]
        self._tasks = {index: text for text, index in dataset.tasks().items()}

    def episodes(self, chosen: Sequence[int], first: int = 0) -> Iterator[tuple[int, Episode]]:
        """(index, episode) of those ``chosen``, from index ``first`` on, in order."""
        wanted = [*dict.fromkeys(self._keys.values()), names.ACTION, *self._also, names.TASK]
        wanted = [name for name in wanted if name in self.dataset.features]
        finals = self.dataset.finals(list(dict.fromkeys(self._keys.values())))
        left, final = set(chosen), next(finals, None)
        for rows in self.dataset.rows(wanted, first):
            if rows.index not in left:
                continue
            left.discard(rows.index)
            while final is not None and final.index < rows.index:
                final = next(finals, None)
            yield rows.index, self._episode(rows, final if final and final.index == rows.index else None)
        if missing := sorted(index for index in left if index >= first):
            raise ConfigError(f"{self.dataset.folder} has no frames of episode {missing[0]}")

    def _misfit(self, name: str, array: ArraySpec, what: str) -> list[str]:
        feature = self.dataset.features.get(name)
        if feature is None:
            have = ", ".join(n for n in self.dataset.features if n not in (names.INDEX, names.FRAME))
            return [f"there is no feature {name!r} for {what} (it has {have}; data.keys maps names)"]
        if feature.dtype == "video":
            return [f"{name} is a video, which is not read yet; record images"]
        expected = array.shape or (1,)
        if feature.is_image:
            if len(array.shape) != 3 or array.layout not in ("HWC", "CHW"):
                return [f"{name} is an image, {what} is {array.dtype} {list(array.shape)}"]
            expected = names.height_width_channels(array)
        if feature.shape != expected:
            return [f"{name} has shape {list(feature.shape)}, {what} has {list(expected)}"]
        stored = "uint8" if feature.is_image else feature.dtype
        if not _convertible(stored, array.dtype):
            return [f"{name} is {stored}, {what} is {array.dtype}"]
        return []

    def _episode(self, rows: Rows, final: Rows | None) -> Episode:
        columns, count = rows.columns, len(next(iter(rows.columns.values())))
        obs = {key: self._array(rows, key) for key in self._keys}
        done = self._flag(columns, names.DONE)
        terminated = self._flag(columns, names.TERMINATED)
        known = names.TERMINATED in columns
        source = columns.get(names.SOURCE)
        seed, task = columns.get(names.SEED), columns.get(names.TASK)
        reward = columns.get(names.REWARD)
        ends = None
        if final is not None:
            ends = {key: self._array(final, key)[0] for key in self._keys}
        return Episode(
            obs, self._array(rows, ACTION),
            np.zeros(count, np.float32) if reward is None else reward[:, 0].astype(np.float32),
            np.full(count, SOURCES.index("human"), np.uint8) if source is None else source[:, 0],
            terminated=bool(terminated), truncated=bool(done and not terminated) if known else False,
            final_obs=ends,
            success=self._flag(columns, names.SUCCESS) if names.SUCCESS in columns else None,
            seed=-1 if seed is None else int(seed[0, 0]),
            task="" if task is None else self._tasks.get(int(task[0, 0]), ""),
        )  # fmt: skip

    @staticmethod
    def _flag(columns: Arrays, name: str) -> bool:
        return bool(columns[name].any()) if name in columns else False

    def _array(self, rows: Rows, key: str) -> np.ndarray:
        """[T, *shape] of an observation or the action, checked number by number."""
        name, array, restate = self._keys.get(key, names.ACTION), self._arrays[key], self._restate[key]
        values, feature = rows.columns[name], self.dataset.features[name]
        if restate is not None:
            values = restate(values)
        _check_numbers(values, array, feature, rows)
        if feature.is_image and array.layout == "CHW":
            values = np.moveaxis(values, -1, 1)
        return np.ascontiguousarray(values.reshape(len(values), *array.shape).astype(array.dtype, copy=False))


def _check_numbers(values: np.ndarray, array: ArraySpec, feature: Feature, rows: Rows) -> None:
    if feature.is_image:
        return
    flat = values.reshape(len(values), -1)
    wrong = ~np.isfinite(flat) if flat.dtype.kind == "f" else np.zeros(flat.shape, bool)
    expected = "a finite number"
    if not wrong.any() and array.low is not None and array.high is not None:
        low, high = np.asarray(array.low, np.float64), np.asarray(array.high, np.float64)
        slack = SLACK * (high - low) if flat.dtype.kind == "f" else 0.0
        wrong = (flat < low - slack) | (flat > high + slack)
        expected = f"at least {array.low} and at most {array.high}"
    if wrong.any():
        row, element = (int(i) for i in np.argwhere(wrong)[0])
        raise ConfigError(
            f"{rows.where} row {rows.first_row + row}: element {element} of {feature.name} is "
            f"{flat[row, element]}; the environment's spec wants {expected}"
        )


def _convertible(stored: str, wanted: str) -> bool:
    """Whether numbers keep their meaning: float64 may become float32, integers may become wider."""
    a, b = np.dtype(stored), np.dtype(wanted)
    return a == b or (a.kind == "f" and b.kind == "f") or (a.kind in "iu" and bool(np.can_cast(a, b)))


def _action_array(spec: EnvSpec) -> ArraySpec:
    """The action as an array with its range."""
    action = spec.action
    array = ArraySpec(action.dtype, action.shape, rotations=action.rotations)
    if action.kind == "continuous":
        array.low, array.high = np.asarray(action.low), np.asarray(action.high)  # type: ignore[assignment]
    else:
        array.low = 0.0
        array.high = np.asarray(action.num) - 1  # type: ignore[assignment]
    return array
