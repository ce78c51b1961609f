"""What algorithms share that learn what somebody did: sequences for recurrent policies, several streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollbus_core.lazy import lazy_import
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from rollbus_core.feed import Feed
    from rollbus_learner.algorithm import Batch
else:
    torch = lazy_import("torch")


def with_state(batch: Batch, policy: Any, burn_in: int, prefix: str = "") -> None:
    """Give sequences ``prefix`` [T, S] of a recurrent policy a state, 0 where none was recorded.

    A sequence that begins within an episode of which the state is not known is masked for its first
    ``burn_in`` decisions.
    """
    valid, start = batch[f"{prefix}valid"], batch[f"{prefix}start"]
    if f"{prefix}state" in batch:
        return
    batch[f"{prefix}state"] = torch.zeros(valid.shape[1], policy.spec.state_size, device=valid.device)
    early = torch.arange(len(valid), device=valid.device)[:, None] < burn_in
    batch[f"{prefix}valid"] = valid & ~(early & ~start[0])


def labels_of(batch: Batch, algorithm: str) -> torch.Tensor:
    """The column of labels: 1 good, 0 poor, -1 not known. Raises `ConfigError` where data has none."""
    if "label" not in batch:
        raise ConfigError(
            f"algorithm.name: {algorithm} learns from labels, but the data has none; make them with rollbus "
            "label and name their folder in data.sources (labels)"
        )
    return batch["label"]


def wanted_loss(policy: Any) -> str:
    """What to ask ``policy`` for: "cloning_loss" where it has one of its own, else "log_prob"."""
    offers = getattr(getattr(policy, "config", None), "offers", ())
    return "cloning_loss" if "cloning_loss" in offers else "log_prob"


def cloning_loss(policy: Any, batch: Batch, want: str) -> torch.Tensor:
    """[...] for what was executed in ``batch``, with gradient; ``want`` is that of `wanted_loss`."""
    if want == "cloning_loss":
        # It takes what was executed, in the environment's units.
        batch = {**batch, "action": batch["env_action"]}
    found: torch.Tensor = policy(batch, (want,))[want]
    return found if want == "cloning_loss" else -found


def join(batch: Batch, further: Batch, feed: Feed) -> None:
    """Minibatch k of ``batch`` becomes minibatch k of both; columns that only one has are left out.

    Columns are [S, ...], those of sequences [T, S, ...] (``state`` [S, ...]).
    """
    groups = feed.num_batches
    along = 1 if feed.unit == "sequence" else 0
    for name in list(batch):
        column, other = batch[name], further.get(name)
        dim = 0 if name == "state" else along
        of_episodes = name.startswith("final_") and name != "final_slot"
        if other is None or of_episodes or column.ndim <= dim or column.ndim != other.ndim:
            del batch[name]
            continue
        pairs = zip(column.tensor_split(groups, dim), other.tensor_split(groups, dim))
        batch[name] = torch.cat([part for pair in pairs for part in _alike(*pair, dim)], dim)


def _alike(one: torch.Tensor, other: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with as many decisions: the shorter sequences are padded."""
    if dim == 0 or len(one) == len(other):
        return one, other
    longer = max(len(one), len(other))
    padded = [torch.cat([x, x.new_zeros(longer - len(x), *x.shape[1:])]) for x in (one, other)]
    return padded[0], padded[1]
