"""What a learner is fed: settings of a table and of the batches drawn from it.

Each update takes a batch of one or several streams; a stream is drawn from the table of its name.

On-policy and off-policy differ here, not in the program. An algorithm's `Config` computes its
`Feed` from the recipe without torch, so that actors, store and learner read one and the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: The table that actors fill and the learner drains.
TRAINING_TABLE = "train"


class TableConfig(BaseModel):
    """Sampler, rate limiter and bounds of one table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: "queue": each chunk is delivered once, in order. "replay": uniform draws of steps.
    sampler: Literal["queue", "replay"] = "queue"
    #: Queue: steps of one batch.
    batch_steps: int = Field(0, ge=0)
    #: Queue: rows of one batch instead of its steps, where every row of a chunk is a whole episode.
    batch_rows: int = Field(0, ge=0)
    #: Queue: updates between the version that acted and the version that learns.
    max_lag: int = Field(1, ge=0)
    #: Queue: each slice gives each batch exactly one chunk (deterministic mode).
    one_chunk_per_slice: bool = False
    #: Replay: steps inserted before the first draw.
    min_steps: int = Field(0, ge=0)
    #: Replay: steps inserted per update; 0: no ratio is kept (data that is there from the start).
    steps_per_update: int = Field(0, ge=0)
    #: Replay: the first so many steps act at random.
    random_steps: int = Field(0, ge=0)
    #: Replay: steps kept; older ones are evicted. 0: only ``max_bytes`` bounds it.
    max_steps: int = Field(0, ge=0)
    #: Replay: steps are drawn with probability in proportion to priority to this power; 0: uniformly.
    priority_exponent: float = Field(0.0, ge=0)
    #: Columns that annotators attach to chunks after they are committed.
    late_columns: tuple[str, ...] = ()
    #: A chunk waits for them so long; then it goes on with zeros, or is dropped.
    late_deadline_s: float = Field(5.0, gt=0)
    late_missing: Literal["zero", "drop"] = "zero"
    #: Bytes of slabs the table may hold.
    max_bytes: int = Field(1 << 30, gt=0)

    @model_validator(mode="after")
    def _complete(self) -> TableConfig:
        if self.sampler == "queue" and (self.batch_steps > 0) == (self.batch_rows > 0):
            raise ValueError("a queue table needs either batch_steps or batch_rows >= 1")
        return self


class Hindsight(BaseModel):
    """Which drawn transitions get the goal that was reached later, and who says what that is worth."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Observations: what is wanted, and what is achieved.
    goal: str
    achieved: str
    #: ``module:function``: (achieved [B, ...], goal [B, ...]) -> reward [B], or (reward, terminated) [B].
    reward: str
    #: Part of the transitions.
    fraction: float = Field(0.8, gt=0, le=1)
    #: Decisions from the drawn one on that a goal may come from.
    horizon: int = Field(1000, ge=1)


class ExpertConfig(BaseModel):
    """When the environment's expert (its observation ``expert_action``) acts in place of the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Its chance at version 0, by what it is multiplied at each version.
    share: float = Field(0.0, ge=0, le=1)
    decay: float = Field(1.0, ge=0, le=1)
    #: It takes over where an element of the policy's action is further than this from its own, in parts of
    #: half the bounds' width (discrete actions: where they differ); 0: never.
    gate: float = Field(0.0, ge=0)


class Feed(BaseModel):
    """What actors record and what the learner samples for one update.

    unit "chunk": whole chunks side by side, columns [T, N, ...], padded decisions masked by
    ``valid``. unit "step": ``num_batches * batch_size`` transitions with ``next_obs`` taken from
    the final observation where an episode ended. With ``n_step`` n > 1 a transition is a stretch of up to n
    decisions: ``next_obs`` and the flags are those of its end, ``n_step_reward`` [S, n C] and ``n_step_num``
    [S] its executed steps. unit "sequence": as many rows of chunks, whole, [T, S, ...], for policies with a
    recurrent state; drawn by their steps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: TableConfig
    #: Decisions per row of one chunk.
    num_decisions: int = Field(ge=1)
    #: Episodes of one group: neighbouring rows begin alike, and a chunk is one whole episode per row.
    #: 0: rows run on their own and chunks are cut anywhere.
    group_size: int = Field(0, ge=0)
    unit: Literal["chunk", "step", "sequence"] = "chunk"
    #: Policies with a recurrent state get sequences in place of steps, with about as many decisions.
    or_sequences: bool = False
    #: Unit "step": decisions whose rewards count before the bootstrap, over an episode's chunks; fewer at an
    #: end and where the next chunk is not there yet.
    n_step: int = Field(1, ge=1)
    hindsight: Hindsight | None = None
    num_batches: int = Field(0, ge=0)
    batch_size: int = Field(0, ge=0)
    #: Of data sets: the discount of a column ``return_to_go``, what the episode's rewards are worth from each
    #: decision on; None: no such column.
    return_discount: float | None = Field(None, ge=0, le=1)
    #: Which episodes of each data set come to this table: a range of [0, 1) of them, in a shuffled order
    #: that is the same for all tables.
    part: tuple[float, float] = (0.0, 1.0)
    #: Updates from one batch of this stream to the next; of the main stream 1.
    every: int = Field(1, ge=1)
    #: What the policy returns besides the action and is recorded: "log_prob", "value".
    extras: tuple[str, ...] = ()
    #: Recorded as well where the policy offers it: "token_log_prob".
    extras_if_offered: tuple[str, ...] = ()
    #: Whether the environment's expert acts at times; None: never.
    expert: ExpertConfig | None = None
    #: Unit "step", with an expert: whether a draw tells how the episode of each decision ended.
    episode_success: bool = False
    #: Printed at the start: "one update = 64 rows x 32 steps = 2048 samples, ...".
    summary: str = ""

    @property
    def ahead(self) -> int:
        """Decisions after each drawn one that a draw must reach."""
        return max(self.n_step, self.hindsight.horizon if self.hindsight else 1) - 1

    def offered(self, offers: Collection[str]) -> Feed:
        """This feed of a policy that ``offers`` so much."""
        more = tuple(name for name in self.extras_if_offered if name in offers)
        found: dict[str, Any] = {"extras": self.extras + more, "extras_if_offered": ()}
        if self.or_sequences and "recurrent" in offers:
            size = -(-self.batch_size // self.num_decisions)
            found |= {"unit": "sequence", "batch_size": size, "or_sequences": False}
        return self.model_copy(update=found)
