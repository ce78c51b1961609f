"""What each stage of a run costs on one machine: measured, or given in a file.

All times are CPU seconds of an otherwise idle machine unless said otherwise; `Cores` stretches them where
processes share cores. The fits hold between the row counts that were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollbus_core.plan.trials import Tried
from rollbus_wire.errors import ConfigError


class _Costs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ends(NamedTuple):
    """Ends of episodes per tick: share of ticks with any, and their number."""

    ticks: float
    episodes: float


class HubCosts(_Costs):
    """A hub that answers one act of a slice: check, step all rows, outcomes, next tick."""

    tick_s: float = Field(ge=0, description="per act")
    row_s: float = Field(ge=0, description="per row of it")
    ending_s: float = Field(0.0, ge=0, description="more if any episode ends in it")
    episode_s: float = Field(0.0, ge=0, description="per episode that ends: reset, final observation")

    def at(self, num_rows: int, ends: Ends) -> float:
        """One act for ``num_rows`` rows."""
        ended_s = ends.ticks * self.ending_s + ends.episodes * self.episode_s
        return self.tick_s + num_rows * self.row_s + ended_s


class ActorCosts(_Costs):
    """An actor's turn: book outcomes, one forward pass, answers, records; chunks are spread over ticks."""

    turn_s: float = Field(ge=0, description="per turn, the pass included")
    tick_s: float = Field(ge=0, description="per tick of the turn")
    row_s: float = Field(ge=0, description="per row of the turn")
    ending_s: float = Field(0.0, ge=0, description="more per tick that tells of an end")
    episode_s: float = Field(0.0, ge=0, description="per episode that ended")
    record_s: float = Field(0.0, ge=0, description="part per tick that comes after the answers")

    def at(self, num_ticks: int, num_rows: int, ends: Ends) -> float:
        """A turn with ``num_ticks`` ticks of ``num_rows`` rows in all; ``ends`` of all of them."""
        ended_s = ends.ticks * self.ending_s + ends.episodes * self.episode_s
        return self.turn_s + num_ticks * self.tick_s + num_rows * self.row_s + ended_s


class IdleCosts(_Costs):
    """A poll of each service that finds nothing, and one wait on the sockets of a process."""

    hub: float = Field(0.0, ge=0)
    actor: float = Field(0.0, ge=0)
    broker: float = Field(0.0, ge=0)
    learner: float = Field(0.0, ge=0)
    wait: float = Field(0.0, ge=0)


class StageCosts(_Costs):
    """Everything the model needs of one recipe on one machine."""

    #: Hub and actor in one process (local link), and in two (ZeroMQ).
    hub_fused: HubCosts
    hub_apart: HubCosts
    actor_fused: ActorCosts
    actor_apart: ActorCosts
    idle: IdleCosts = IdleCosts()
    #: One ticket or commit, and one sample or consumed, at the store.
    store_s: float = Field(ge=0)
    #: One update without gather and publish.
    update_s: float = Field(ge=0)
    #: Gather, publish, metrics, store messages of one update.
    learner_s: float = Field(ge=0)
    #: The update needs no core of the host (it runs on an accelerator).
    update_on_device: bool = False
    #: New weights into an engine.
    apply_s: float = Field(0.0, ge=0)
    #: I/O threads, per message between processes: sender's and receiver's together.
    message_s: float = Field(0.0, ge=0)
    #: Extra delay until a sleeping process on an idle core runs; no CPU time.
    wake_s: float = Field(0.0, ge=0)
    #: How much slower two processes run side by side on two cores than one alone.
    slowdown: float = Field(1.0, ge=1)
    #: Mean episode length of the untrained policy, and the limit; steps.
    episode_steps: float = Field(1000.0, gt=0)
    episode_limit: float = Field(0.0, ge=0)
    #: Mean length after some seconds of training; 0: not seen.
    trained_steps: float = Field(0.0, ge=0)
    #: Ticks with ends as a share of what independent rows would have; rows of equal length end together.
    ending_share: float = Field(1.0, ge=0, le=1)
    #: Bytes of one recorded step, of the published weights, of one batch.
    step_bytes: float = Field(0.0, ge=0)
    weights_bytes: float = Field(0.0, ge=0)
    batch_bytes: float = Field(0.0, ge=0)
    #: Role -> private bytes of a process that hosts it; shared: once per host.
    role_bytes: dict[str, float] = {}
    shared_bytes: float = Field(0.0, ge=0)
    #: Layouts that ran for some seconds; what a prediction is corrected by.
    trials: tuple[Tried, ...] = ()
    #: Cores, machine and versions they were measured with.
    machine: dict[str, str] = {}

    def ends(self, num_rows: int, episode_steps: float) -> Ends:
        """Of a tick of ``num_rows`` rows whose episodes last ``episode_steps`` steps in the mean."""
        independent = 1.0 - (1.0 - 1.0 / max(1.0, episode_steps)) ** num_rows
        return Ends(self.ending_share * independent, num_rows / episode_steps)

    def hub(self, fused: bool) -> HubCosts:
        """Costs of a hub whose actor is in its own process, or not."""
        return self.hub_fused if fused else self.hub_apart

    def actor(self, fused: bool) -> ActorCosts:
        """Costs of an actor whose hub is in its own process, or not."""
        return self.actor_fused if fused else self.actor_apart


def load_costs(path: Path) -> StageCosts:
    """Costs from a JSON file. Raises `ConfigError` with the key that is wrong."""
    try:
        return StageCosts.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"costs {path} cannot be read: {error.strerror}; write some with --save") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"costs {path}: {key}: {first['msg']}, came {first.get('input')!r}; --save writes a valid file"
        ) from None
