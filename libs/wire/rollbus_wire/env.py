"""The batched environment contract, and `Rows`, which adapts Gymnasium-style environments to it.

Symbols: R rows of one request; ``rows`` is int32 [R] of distinct places in ``[0, num_rows)``.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .actions import ActionBounds, validate_actions
from .errors import RollbusError, SpecError
from .places import place_of_error, place_of_method
from .spaces import Observations, action_spec
from .spec import EnvSpec, with_rotations

__all__ = [
    "ActionBounds", "Env", "RowFailed", "Rows", "StepResult", "as_env", "made_by", "validate_actions",
]  # fmt: skip

Arrays = Dict[str, np.ndarray]


class StepResult(NamedTuple):
    """What one step of R rows gave."""

    #: [R, ...] per key, or None if it was not asked for.
    obs: Optional[Arrays]
    #: float32 [R].
    reward: np.ndarray
    #: bool [R] each.
    terminated: np.ndarray
    truncated: np.ndarray
    #: bool [R], where the spec has it.
    success: Optional[np.ndarray] = None
    #: Place in the request -> what its row raised; its reward is NaN. The episodes of other rows go on.
    failed: Optional[Dict[int, RollbusError]] = None


class RowFailed(RollbusError):
    """The environment of one row raised; its exception is the cause."""

    code = "env"


class Env:
    """Many rows of one environment. It never resets by itself.

    Arrays that a method returns are given away: the environment does not touch them again.
    """

    spec: EnvSpec
    num_rows: int
    #: int32 [num_rows], the index of the task that each row runs; None where the spec has no tasks.
    row_tasks: Optional[np.ndarray] = None

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Sequence[Any]) -> Arrays:
        """Start an episode on ``rows`` from ``seeds`` int64 [R]; observations [R, ...] per key.

        ``options`` holds one map per row, or is empty.
        """
        raise NotImplementedError

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        """One step of ``rows`` with valid ``actions`` [R, ...]; without ``observe`` no obs."""
        raise NotImplementedError

    def observe(self, rows: np.ndarray) -> Arrays:
        """Observations [R, ...] of ``rows`` as they are now."""
        raise NotImplementedError

    def get_state(self, rows: np.ndarray) -> List[bytes]:
        """The whole state of each of ``rows``."""
        raise SpecError("%s cannot give its state" % self.spec.name)

    def set_state(self, rows: np.ndarray, states: Sequence[bytes]) -> Arrays:
        """Put ``rows`` into ``states`` that `get_state` gave; their observations."""
        raise SpecError("%s cannot be put into a state" % self.spec.name)

    def frame_times(self, rows: np.ndarray) -> Arrays:
        """When the newest frames of ``rows`` were taken, float64 [R] per key with ``max_age_s``.

        In seconds of `time.monotonic` of this process.
        """
        raise SpecError("%s states max_age_s, but cannot say when its frames were taken" % self.spec.name)

    def stop(self, rows: np.ndarray) -> None:
        """Bring ``rows`` to their safe state at once: nobody knows what they see. Nothing, in simulation."""

    def close(self) -> None:
        """Give everything back. A robot goes to its safe state here."""


class Rows(Env):
    """Gymnasium-style environments, one per row.

    Flat observations get the key "obs", maps are flattened to "a/b", float64 becomes float32,
    discrete observations and actions count from 0. The time limit of the wrappers goes into the spec and is
    kept by the hub. ``has_success``: success is in ``info`` under "success" or "is_success"; None
    reads an attribute ``has_success`` of the environment. Its attribute ``rotations`` says which elements
    are rotations: observation, or "action", -> list of (type, first element), see `RotationSpec`.
    """

    def __init__(self, envs: Sequence[Any], *, name: str = "", has_success: Optional[bool] = None) -> None:
        if not envs:
            raise SpecError("no environments: the number of rows must be at least 1")
        stripped = [_strip(env) for env in envs]
        self.envs = [env for env, _ in stripped]
        self.num_rows = len(self.envs)
        first, limit = stripped[0]
        for space in ("observation_space", "action_space"):
            if getattr(first, space, None) is None:
                raise SpecError(
                    "%s has no %s; set self.%s in __init__, for example to a gymnasium.spaces.Box"
                    % (type(_chain(first)[-1]).__name__, space, space)
                )
        if not _takes_seed(first):
            raise SpecError(_OLD_RESET % type(first).__name__)
        self._observations = Observations(first.observation_space)
        action, self._to_env = action_spec(first.action_space)
        if has_success is None:
            has_success = any(bool(getattr(e, "has_success", False)) for e in _chain(first))
        registered = getattr(first, "spec", None)
        self.spec = EnvSpec(
            name=name or getattr(registered, "id", None) or type(_chain(first)[-1]).__name__,
            observation=self._observations.specs,
            action=action,
            time_limit=limit,
            internal_truncation=not limit,
            deterministic=not getattr(registered, "nondeterministic", False),
            has_success=has_success,
        )
        stated = [env.rotations for env in _chain(first) if isinstance(getattr(env, "rotations", None), dict)]
        if stated:
            self.spec = with_rotations(self.spec, stated[0])
        self._steps = [env.step for env in self.envs]
        self._latest: List[Any] = [None] * self.num_rows
        self._warned = False

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Sequence[Any]) -> Arrays:
        given = options or [None] * len(rows)
        places = rows.tolist()
        for row, seed, option in zip(places, np.asarray(seeds).tolist(), given):
            try:
                answer = self.envs[row].reset(seed=seed, options=option)
                if not isinstance(answer, tuple) or len(answer) != 2:
                    raise SpecError(_OLD_RESET % type(_chain(self.envs[row])[-1]).__name__)
                self._latest[row] = answer[0]
            except Exception as error:
                old = [each for each in _chain(self.envs[row]) if not _takes_seed(each)]
                if isinstance(error, TypeError) and old:
                    raise SpecError(_OLD_RESET % type(old[0]).__name__) from error
                raise _failed("reset", row, error) from error
        return self._gathered(places, "reset")

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        places, given = rows.tolist(), self._to_env(actions)
        count, latest, steps = len(places), self._latest, self._steps
        reward = np.empty(count, np.float32)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        success = np.zeros(count, np.bool_) if self.spec.has_success else None
        failed: Dict[int, RollbusError] = {}
        turns = iter(enumerate(places))
        while True:
            i = row = -1
            answer: Any = _NONE_YET
            try:
                for i, row in turns:
                    answer = steps[row](given[i])
                    latest[row], reward[i], ended, cut, info = answer
                    if ended or cut:
                        terminated[i], truncated[i] = ended, cut
                        self._at_end(info)
                    if success is not None:
                        success[i] = bool(info.get("success", info.get("is_success", False)))
                break
            except Exception as error:
                if answer is not _NONE_YET:
                    error = _misfit(answer, self.envs[row]) or error
                failed[i] = _failed("step", row, error)
                reward[i], terminated[i], truncated[i] = np.nan, False, False
                if len(failed) == count or isinstance(error, SpecError):
                    raise failed[i] from error
        obs = self._gathered(places, "step") if observe else None
        return StepResult(obs, reward, terminated, truncated, success, failed or None)

    def observe(self, rows: np.ndarray) -> Arrays:
        return self._gathered(rows.tolist(), "step")

    def close(self) -> None:
        for env in self.envs:
            if hasattr(env, "close"):
                env.close()

    def _gathered(self, places: Sequence[int], method: str) -> Arrays:
        """The newest observations of rows, [R, ...] per key; ``method`` gave them."""
        try:
            return self._observations.gather([self._latest[row] for row in places])
        except (SpecError, LookupError, TypeError, ValueError) as error:
            text = str(error)
            if not isinstance(error, SpecError):
                text = "an observation is not what its space says: %s: %s" % (type(error).__name__, error)
            place = place_of_method(_chain(self.envs[places[0]]), method)
            raise SpecError(text + (", from " + place if place else "")) from None

    def _at_end(self, info: Any) -> None:
        for key in ("final_obs", "final_observation", "terminal_observation"):
            if key in info:
                raise SpecError(
                    "info has %r at the end of an episode: the environment resets itself; remove "
                    "its auto-reset wrapper, the hub resets" % key
                )
        if not self.spec.has_success and not self._warned:
            if "success" in info or "is_success" in info:
                self._warned = True
                warnings.warn(
                    "%s reports success in info, but success is not declared and is ignored; set "
                    "has_success = True on the environment" % self.spec.name
                )


def as_env(env_or_factory: Any, num_rows: int = 1) -> Env:
    """A batched environment as it is, one Gymnasium-style environment, or ``num_rows`` calls."""
    if _is_batched(env_or_factory):
        return env_or_factory
    if _is_single(env_or_factory):
        if num_rows != 1:
            raise SpecError(
                "%d rows of one environment object; give a function that makes one, for example "
                "run_env(lambda: MyEnv(), ..., num_rows=%d)" % (num_rows, num_rows)
            )
        return Rows([env_or_factory])
    if num_rows < 1:
        raise SpecError("num_rows is %r; at least 1" % (num_rows,))
    if not callable(env_or_factory):
        raise SpecError("a %s is neither an environment nor a function that makes one" % type(env_or_factory))
    first = env_or_factory()
    if _is_batched(first):
        return first
    if not _is_single(first):
        lacks = " and ".join(name + "()" for name in ("reset", "step") if not hasattr(first, name))
        raise SpecError("a %s is no environment: it has no %s" % (type(first).__name__, lacks))
    return Rows([first] + [env_or_factory() for _ in range(num_rows - 1)])


def made_by(factory: Any, num_rows: int) -> Env:
    """What ``factory`` makes: one Gymnasium-style environment per call, or all rows at once.

    It gets the number of rows if it has a required argument, or a first one of the name ``num_rows``.
    """
    name = _takes_rows(factory)
    made = factory(num_rows) if name else factory
    if name and num_rows > 1 and _is_single(made) and not _is_batched(made):
        raise SpecError(
            "%s has a required argument %r, so it was given the number of rows, %d, and made one "
            "environment: set %r (in a recipe: env.kwargs), or make that many"
            % (getattr(getattr(factory, "func", factory), "__qualname__", factory), name, num_rows, name)
        )
    return as_env(made, num_rows)


def _takes_rows(factory: Any) -> str:
    """The argument of ``factory`` that is the number of rows; "" if it makes one environment."""
    if not callable(factory) or (hasattr(factory, "step") and not isinstance(factory, type)):
        return ""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except ValueError:
        return ""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = (
        p.name
        for p in parameters
        if p.kind in positional and (p.default is p.empty or (p.name == "num_rows" and p is parameters[0]))
    )
    return next(taken, "")


def _is_batched(env: Any) -> bool:
    return isinstance(getattr(env, "spec", None), EnvSpec) and hasattr(env, "num_rows")


def _is_single(env: Any) -> bool:
    return not isinstance(env, type) and hasattr(env, "step") and hasattr(env, "reset")


_OLD_RESET = (
    "%s has another reset() than Gymnasium's: def reset(self, *, seed=None, options=None), which returns "
    "(observation, info); change it, or wrap the environment (gymnasium.Wrapper)"
)


_NONE_YET = object()
_STEP = "(observation, reward, terminated, truncated, info)"


def check_step(answer: Any, env: Any) -> None:
    """Raise `SpecError` unless ``answer``, of the step of ``env``, has the parts Gymnasium's has."""
    wrong = _misfit(answer, env)
    if wrong is not None:
        raise wrong


def _misfit(answer: Any, env: Any) -> Optional[SpecError]:
    chain = _chain(env)
    place = place_of_method(chain, "step")
    who = type(chain[-1]).__name__ + (", " + place if place else "")
    if not isinstance(answer, tuple) or len(answer) != 5:
        came = "%d values" % len(answer) if isinstance(answer, tuple) else "a %s" % type(answer).__name__
        return SpecError(
            "%s has another step() than Gymnasium's: it returned %s, where %s is due; change it, or wrap the "
            "environment (gymnasium.Wrapper)" % (who, came, _STEP)
        )
    for part, kind, value in zip(("reward", "terminated", "truncated"), (float, bool, bool), answer[1:4]):
        try:
            kind(value)
        except (TypeError, ValueError) as error:
            return SpecError("%s: step() returned a %s that is none: %s" % (who, part, error))
    if not hasattr(answer[4], "get"):
        return SpecError("%s: step() returned %.80r as info; a dict is due" % (who, answer[4]))
    return None


def _takes_seed(env: Any) -> bool:
    """Whether `reset` can be called with ``seed`` and ``options``."""
    try:
        inspect.signature(env.reset).bind(seed=0, options=None)
    except TypeError:
        return False
    except ValueError:  # nobody knows
        pass
    return True


def _failed(what: str, row: int, error: Exception) -> RollbusError:
    """A fault of the contract as it is, anything else as `RowFailed`."""
    failure: RollbusError
    if isinstance(error, SpecError):
        failure = SpecError("row %d failed in %s: %s" % (row, what, error))
    else:
        place = place_of_error(error)
        text = "row %d failed in %s: %s: %s" % (row, what, type(error).__name__, error)
        failure = RowFailed(text + (", in " + place if place else ""))
    failure.__cause__ = error
    return failure


#: Wrappers whose duty the hub or `check_env` has.
_SHED = ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker")


def _chain(env: Any) -> List[Any]:
    """``env`` and what it wraps, outermost first."""
    chain = [env]
    while "env" in getattr(chain[-1], "__dict__", {}):
        chain.append(chain[-1].__dict__["env"])
    return chain


def _strip(env: Any) -> Tuple[Any, int]:
    """``env`` without the wrappers the hub replaces, and its time limit (0: none was there)."""
    limit, kept = 0, []
    for wrapper in _chain(env):
        name = type(wrapper).__name__
        if name == "TimeLimit" and "env" in wrapper.__dict__:
            steps = int(getattr(wrapper, "_max_episode_steps", 0) or 0)
            if not steps:
                steps = int(getattr(getattr(env, "spec", None), "max_episode_steps", 0) or 0)
            limit = min(limit or steps, steps)
        if name not in _SHED or "env" not in wrapper.__dict__:
            kept.append(wrapper)
    for outer, inner in zip(kept, kept[1:]):
        outer.env = inner
    return kept[0], limit
