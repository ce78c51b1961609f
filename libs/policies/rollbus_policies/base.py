"""The contract every policy is written against. Importing this module needs no torch.

A policy file has ``Config`` (a `PolicyConfig`), ``needs`` (packages) and
``make(config, spec, critic) -> Policy``.
A user's own policy is a module of the same kind, named by its dotted path.
Symbols: B rows of a batch, T decisions of a chunk, N rows of a chunk, C actions of one decision, of which k
are executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Mode = Literal["sample", "mode", "random"]


class PolicyConfig(BaseModel):
    """Base of the ``policy`` section; each family's `Config` adds its own keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "mlp"
    condition: Literal["none", "label"] = Field(
        "none",
        description="label: the policy is told whether a decision was labelled good (rollbus label), and "
        "acts as if the next one were. Needed by recap and steam.",
    )
    #: What policies of this family can do: "log_prob", "entropy", "value", "sample", "cloning_loss",
    #: "deterministic", "q_values", "steering", "refinement"; "recurrent": it has a state and learns from
    #: sequences.
    offers: ClassVar[frozenset[str]] = frozenset()

    def lacks(self) -> dict[str, str]:
        """What these settings take out of ``offers``: name -> why, and what to set."""
        return {}


@dataclass
class PolicySpec:
    """What a built policy states about itself."""

    #: dtype and shape of the action the learner scores ("action" column), e.g. pre-squash.
    action: tuple[str, tuple[int, ...]]
    #: What `act` can return besides the action, name -> (dtype, shape per row).
    extras: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    #: "hub": recurrent state of ``state_size`` float32 per row travels as carry; "none".
    state: Literal["hub", "none"] = "none"
    state_size: int = 0
    #: Frames stacked into one observation (1: none); the caller stacks, the policy sees K frames.
    frame_stack: int = 1
    #: Actions of one decision, C, and how many of them are executed, k <= C.
    chunk: int = 1
    execute: int = 1
    #: Elements of one of them.
    action_size: int = 1
    #: Width of the standard normal ``noise`` that "sample" takes.
    noise: int = 0
    #: Steps for which a row keeps its exploration noise (`Ask.held`), 0: an episode; None: it keeps none.
    held_noise: int | None = None
    #: Why only torch can run it; "": `describe` gives its trunk to other engines.
    no_trunk: str = ""
    #: Whether its value is trained by "value_loss" and not by an error of "value".
    value_loss: bool = False
    #: Whether actions are made from noise: then "mode" adds none, but starts from the row's own.
    generative: bool = False
    #: Most steps (tokens) of one decision, where the policy also has ``decoder(want) -> Decoder``, which
    #: takes them one at a time; 0: it decides at once. Such a policy has no recurrent state and no chunks.
    decoding_steps: int = 0


@dataclass
class Ask:
    """What the caller wants of one forward pass."""

    #: One mode for all rows, or one per row.
    mode: Mode | list[Mode] = "sample"
    #: Extras to return.
    want: tuple[str, ...] = ()
    #: float32 [B, C, *shape] for generative policies: what they start from, in place of the row's own noise.
    noise: np.ndarray | None = None
    #: uint64 [B], seeds that stay while ``spec.held_noise`` says so; None: those of the decision.
    held: np.ndarray | None = None


@dataclass
class Act:
    """Decisions of B rows, as numpy arrays.

    Where decisions hold several actions (``spec.chunk`` > 1) the extra "log_prob" is one per action to be
    executed, [B, k]: the learner sums those that were.
    """

    #: What the environment executes, in its own units and bounds; [B, k, ...] where ``spec.chunk`` > 1.
    env_action: np.ndarray
    #: What the learner scores: before squashing and clipping; of generative policies the whole chain.
    action: np.ndarray
    #: float32 [B, state_size], or None.
    state: np.ndarray | None = None
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    #: uint8 [B] where somebody else decided for some rows: indices into `rollbus_core.columns.SOURCES`.
    source: np.ndarray | None = None


class Decoder(Protocol):
    """Decides step by step for rows that come and go; n are open.

    The decisions are those of `Policy.act`, up to rounding, whatever else is open.
    """

    @property
    def num_rows(self) -> int:
        """n."""
        ...

    def admit(self, obs: Mapping[str, np.ndarray], mode: Mode | list[Mode], seeds: np.ndarray) -> np.ndarray:
        """Open B rows (arguments as in `Policy.act`). Returns their numbers int64 [B], ascending, never used
        again."""
        ...

    def step(self) -> tuple[np.ndarray, Act] | None:
        """One step of every open row, n > 0; (numbers int64 [k], decisions) of the k rows that are done with
        it, which leave; None if none is."""
        ...

    def drop(self, numbers: np.ndarray) -> None:
        """Rows of these ``numbers`` leave without a decision, if they are still open."""
        ...


class Policy(Protocol):
    """A torch module; `evaluate` is reached through ``module(...)``, its forward, only."""

    spec: PolicySpec
    #: Running statistics of observations, for critics that shall see what the policy sees; None: none.
    normaliser: Any
    #: What is a row's own where tasks share a padded spec (`_padding.Padding`), None: all of it; policies
    #: whose ``masks_padding`` is not true are refused where some is not.
    padding: Any

    def squash(self, action: Tensor) -> Tensor:
        """Stored actions in [-1, 1] units, as action-value functions take them (continuous actions)."""
        ...

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        """Decide for B rows.

        ``obs`` [B, ...] per key (with frame stacks [B, K, ...]), ``state`` float32
        [B, state_size], ``seeds`` uint64 [B] (`rollbus_core.rng.decision_seeds`): row i's noise is a
        function of ``seeds[i]`` alone.
        """
        ...

    def __call__(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate, with gradient.

        ``batch`` holds ``obs/<key>`` [..., ...] and ``action`` where scores are wanted; for
        recurrent policies the leading dimensions are [T, n] and ``state`` [n, state_size] and
        ``start`` bool [T, n] (an episode begins at this decision: the state is zero) are present.
        ``want``: "log_prob", "entropy", "value", "sample" (reparameterised: ``sample`` and
        ``sample_log_prob``, from ``noise`` [..., spec.noise]), "features", and "cloning_loss" [...], for
        which ``action`` holds executed actions in the environment's units ([..., C, *shape] where
        ``spec.chunk`` > 1, with ``action_valid`` bool [..., C] if some are padding), "deterministic" (the
        stored action without exploration), "q_values" [..., n] (of each discrete action), "value_loss" [...]
        (of values to ``target`` [...], where ``spec.value_loss``), "steering"
        (``steering`` [..., A], the chosen initial noise over its bound, and ``steering_log_prob``, from
        ``noise`` [..., A]). With "refinement": "token_loss" [...] of the token that is to sum up what the
        policy sees, "refinement_state" [..., S], "reference" [..., k, A] (what the policy decides alone, in
        [-1, 1], from ``noise`` [..., C A]), and "refinement" [..., k, A], what becomes of the columns
        ``refinement_state`` and ``reference``.
        With ``num_steps`` [...] log-probs and entropies count the actions that were executed.
        """
        ...

    def explore(self, amount: float) -> None:
        """Set the noise or chance that "sample" explores with; of policies that offer "deterministic",
        "q_values" or "refinement". It is one of the tensors that actors get."""
        ...

    def update_normaliser(self, batch: Mapping[str, Tensor], valid: Tensor) -> None:
        """Merge the raw observations of ``batch`` where ``valid`` into the running statistics."""
        ...


def make(config: Any, spec: Any, *, critic: bool, frame_stack: int = 1) -> Any:
    """Build the policy that ``config.name`` names for environment ``spec``.

    ``critic``: with its value function (learner), or without (actors that record no values). One of
    somebody's own is tried on two rows; `SpecError` says what it does otherwise than stated.
    """
    from rollbus_policies._condition import with_condition
    from rollbus_wire import lookup
    from rollbus_wire.errors import SpecError
    from rollbus_wire.own_code import guard, is_own

    module = lookup.find("rollbus_policies", config.name)
    told = with_condition(spec) if getattr(config, "condition", "none") == "label" else spec
    with guard(config.name, "making the policy"):
        policy = module.make(config, told, critic=critic, frame_stack=frame_stack)
    if spec.padded and not getattr(policy, "masks_padding", False):
        raise SpecError(
            f"policy.name: {config.name} cannot leave out what is padding, and the tasks of {spec.name} "
            "differ in what they observe or do; take a policy that can (docs/policies.md, Several tasks), or "
            "tasks of one size"
        )
    if is_own(config.name):
        from rollbus_policies._proof import prove

        prove(config.name, policy, spec)
    return policy
