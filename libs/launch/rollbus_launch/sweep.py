"""Search for settings of a recipe: many runs, each with settings that what came before suggests (optuna).

Trials are kept in ``sweep.jsonl`` of the sweep's folder, one line each, so that a sweep that was cut goes on
where it stopped.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollbus_core.config.load import load
from rollbus_core.config.source import parse, plain
from rollbus_core.datasets.files import read_json, replace, to_json
from rollbus_launch.records import read_lines
from rollbus_wire.errors import ConfigError, MissingPackage, RollbusError

TRIALS, SWEEP = "sweep.jsonl", "sweep.json"
#: Sections that decide no result.
NO_MATTER = ("broker", "checkpoint", "deploy")
_RANGE = re.compile(r"([-+0-9.eE_]+)\.\.([-+0-9.eE_]+)(:log)?")


@dataclass(frozen=True)
class Space:
    """What one setting may be: numbers from ``low`` to ``high``, or one of ``choices``."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: Any) -> Any:
        """A value of an optuna trial."""
        if self.choices:
            return self.choices[trial.suggest_categorical(self.key, range(len(self.choices)))]
        if self.integer:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def distribution(self) -> Any:
        """As optuna writes it."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(tuple(range(len(self.choices))))
        if self.integer:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)

    def known(self, value: Any) -> Any:
        """``value`` as optuna knows it."""
        return self.choices.index(value) if self.choices else value


def space(text: str) -> Space:
    """``key=low..high``, ``key=low..high:log`` or ``key=[a, b, c]``. Raises `ConfigError`."""
    key, equals, given = text.partition("=")
    if equals and (found := _RANGE.fullmatch(given)):
        low, high = (plain(parse(part, key)) for part in found.groups()[:2])
        if not all(isinstance(n, int | float) for n in (low, high)) or not low < high:
            raise ConfigError(f"--over {text}: {low!r} is not below {high!r}")
        if found[3] and low <= 0:
            raise ConfigError(f"--over {text}: a logarithmic range begins above 0, not at {low}")
        integer = isinstance(low, int) and isinstance(high, int)
        return Space(key, low, high, bool(found[3]), integer)
    choices = plain(parse(given, key)) if equals else None
    if not isinstance(choices, list) or len(choices) < 2:
        raise ConfigError(
            f"--over {text}: give key=low..high, key=low..high:log or key=[a, b], such as "
            "algorithm.learning_rate=1e-4..1e-2:log"
        )
    return Space(key, choices=tuple(choices))


def _rank(row: dict[str, Any]) -> float:
    """The best first; what failed last."""
    return math.inf if row["mean_return"] is None else -row["mean_return"]


Train = Callable[[Path, list[str], Path], dict[str, Any]]


class Sweep:
    """``trials`` runs of ``recipe`` in ``folder``; ``train`` makes one and returns its summary."""

    def __init__(
        self,
        recipe: Path,
        overrides: list[str],
        spaces: list[Space],
        folder: Path,
        *,
        seed: int,
        train: Train,
    ) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise MissingPackage(
                "a sweep needs optuna, which is not installed; run: pip install 'rollbus[sweep]'"
            )
        for each in spaces:  # a wrong key or value shows before the first run
            for value in each.choices or (each.low, each.high):
                load(recipe, [*overrides, f"{each.key}={json.dumps(value)}"])
        self.recipe, self.overrides, self.spaces, self.folder = recipe, overrides, spaces, folder
        self.seed, self._train = seed, train

    def run(self, trials: int, tell: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
        """Rows of all trials, the best first, those that failed last; those of an earlier call count.

        A run that fails has no ``mean_return`` and says why in ``failed``; the search goes on without it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = read_lines(self.folder / TRIALS)
        self._refuse_another()
        for number in range(len(rows), trials):
            row = self._one(number, rows)
            with open(self.folder / TRIALS, "a") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
            tell(row)
        return sorted(rows, key=_rank)

    def _one(self, number: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
        study = self._study(rows, number)
        trial = study.ask()
        chosen = {each.key: each.suggest(trial) for each in self.spaces}
        given = [*self.overrides, *(f"{key}={json.dumps(value)}" for key, value in chosen.items())]
        row = {"trial": number, **chosen}
        try:
            summary = self._train(self.recipe, given, self.folder / f"trial-{number}")
        except RollbusError as error:
            return row | {"mean_return": None, "wall_s": 0.0, "failed": str(error)}
        wall_s, result = round(summary["wall_s"], 1), summary["mean_return"]
        if result is None:
            return row | {"mean_return": None, "wall_s": wall_s, "failed": "no episode ended"}
        return row | {"mean_return": float(result), "wall_s": wall_s}

    def _study(self, rows: list[dict[str, Any]], number: int) -> Any:
        """What is known so far; the same trials lead to the same next one."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self.seed + number, n_startup_trials=5)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        kinds = {each.key: each.distribution() for each in self.spaces}
        for row in rows:
            known = {each.key: each.known(row[each.key]) for each in self.spaces}
            failed = row["mean_return"] is None
            state = optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    state=state, params=known, distributions=kinds, value=row["mean_return"]
                )
            )
        return study

    def _refuse_another(self) -> None:
        """Trials of other spaces, or of a recipe with other settings, do not compare with these."""
        path, mine = self.folder / SWEEP, json.loads(json.dumps(self._what(), default=str))
        if not path.exists():
            if (self.folder / TRIALS).exists():
                raise ConfigError(f"{self.folder} has trials, but no {SWEEP} says of what; use another --dir")
            replace(path, to_json(mine))
            return
        theirs = read_json(path)
        for part in mine:
            for key in sorted({*mine[part], *theirs.get(part, {})}):
                before, now = theirs.get(part, {}).get(key), mine[part].get(key)
                if before != now:
                    raise ConfigError(
                        f"{self.folder} holds a sweep with {part} {key} {_brief(before)}, here it is "
                        f"{_brief(now)}; use another --dir"
                    )

    def _what(self) -> dict[str, dict[str, Any]]:
        """What is searched, and the settings of all runs."""
        recipe = load(self.recipe, self.overrides).recipe
        swept = {each.key for each in self.spaces}
        fixed = {
            f"{section}.{key}": value
            for section, values in recipe.model_dump(mode="json").items() if section not in NO_MATTER
            for key, value in values.items() if f"{section}.{key}" not in swept
        }  # fmt: skip
        return {"--over": {each.key: asdict(each) for each in self.spaces}, "setting": fixed}


def _brief(value: Any) -> str:
    """A space or a setting in a few words."""
    if isinstance(value, dict) and {"low", "high", "choices"} <= value.keys():
        return f"{value['choices'] or [value['low'], value['high']]}"
    return "unset" if value is None else json.dumps(value)
