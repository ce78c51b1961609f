"""What the learner's tests build on: slabs written by hand and a small algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rollbus_core.columns import Layout, chunk_columns
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.slabs import SlabFolder
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, Plan, Progress, Role, Step
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

QUEUE = Feed(table=TableConfig(batch_steps=8), num_decisions=4, extras=("log_prob",))
SPEC = EnvSpec(
    "line", {"x": ArraySpec("float32", (2,))}, ActionSpec("continuous", (1,), low=[-1.0], high=[1.0])
)


def make_layout(
    num_decisions: int, num_rows: int, *, history: int = 0, finals: int = 4, carry: int = 0,
    shape: tuple[int, ...] = (), chunk_length: int = 1, extras: Mapping[str, Any] | None = None,
) -> Layout:  # fmt: skip
    columns = chunk_columns(
        {"x": ("float32", shape)}, ("float32", (1,)), num_decisions=num_decisions, num_rows=num_rows,
        num_finals=finals, num_history=history, chunk_length=chunk_length, carry_bytes=carry,
        extras={"log_prob": ("float32", ()), **(extras or {})},
    )  # fmt: skip
    return Layout.build(
        columns, num_decisions=num_decisions, num_rows=num_rows, num_finals=finals, num_history=history
    )


class SlabWriter:
    """A store's slab with cells that tests fill."""

    def __init__(self, folder: Path, layout: Layout, num_cells: int, slab: int = 0) -> None:
        self.layout, self.slab = layout, slab
        self.num_bytes = layout.cell_bytes * num_cells
        self.buffer = SlabFolder(folder).create(slab, self.num_bytes)

    def cell(self, index: int) -> dict[str, np.ndarray]:
        return self.layout.views(self.buffer, index * self.layout.cell_bytes)

    def generation(self, index: int, value: int) -> None:
        np.ndarray((1,), np.uint64, self.buffer, index * self.layout.cell_bytes)[0] = value

    @property
    def item(self) -> dict[str, Any]:
        return {"slab": self.slab, "slab_bytes": self.num_bytes, "layout": self.layout.to_data()}

    def chunk(
        self, index: int, lengths: list[int], *, finals: int = 0, generation: int = 1,
        slice: str = "hub-0/0", order: tuple[int, int] = (0, 0), sequence: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Name the cell as a queue batch does; its generation is set."""
        self.generation(index, generation)
        return self.item | {
            "offset": index * self.layout.cell_bytes, "generation": generation, "sequence": sequence,
            "lengths": lengths, "num_finals": finals, "slice": slice, "order": list(order),
        }  # fmt: skip


def fill_counting(cell: dict[str, np.ndarray], base: float, *, length: int | None = None) -> None:
    """One endless episode per row from step 5 on: obs of frame f, row n is base + 10 f + n."""
    frames, rows = cell["obs/x"].shape[:2]
    value = base + 10.0 * np.arange(frames)[:, None] + np.arange(rows)
    cell["obs/x"][...] = value.reshape(frames, rows, *[1] * (cell["obs/x"].ndim - 2))
    cell["final_slot"][...] = -1
    cell["num_steps"][...] = 1
    cell["step"][...] = 5 + np.arange(len(cell["step"]))[:, None]
    cell["episode"][...] = int(base) + np.arange(rows)
    cell["last_step"][...] = 5 + (len(cell["step"]) if length is None else length)


class Line(nn.Module):
    """A linear policy with a running mean, as a stand-in for a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = None
        self.layer = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("num", torch.zeros((), dtype=torch.float64))

    def forward(self, batch: Mapping[str, torch.Tensor], want: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return {"value": self.layer(batch["obs/x"] - self.mean)[..., 0]}

    def update_normaliser(self, batch: Mapping[str, torch.Tensor], valid: torch.Tensor) -> None:
        self.mean += 0.1 * (batch["obs/x"][valid].mean(0) - self.mean)
        self.num += valid.sum()


class Regression(Algorithm):
    """Fits the policy's value to ``reward``; ``breaks_at`` makes that update's loss NaN."""

    def __init__(self, feed: Feed = QUEUE, *, epochs: int = 2, breaks_at: int = -1) -> None:
        torch.manual_seed(7)
        super().__init__(AlgorithmConfig(), SPEC, Line(), feed)
        self.critic = nn.Linear(2, 1)
        self.breaks_at, self.epochs, self.seen, self.update = breaks_at, epochs, [], 0
        self.running = 1.0

    def roles(self) -> dict[str, Role]:
        return {"policy": Role(self.policy), "critic": Role(self.critic)}

    def plan(self) -> Plan:
        return Plan(epochs=self.epochs, batch_size=4)

    def steps(self) -> list[Step]:
        return [Step("policy", ("policy",), self.loss, 0.1, clip=1.0)]

    def before_update(self, progress: Progress) -> dict[str, float]:
        self.update = progress.updates
        return {"policy": 1.0 - 0.5 * progress.fraction}

    def loss(self, roles: Mapping[str, nn.Module], batch: Mapping[str, torch.Tensor]) -> Loss:
        error = (roles["policy"](batch, ("value",))["value"] - batch["reward"][..., 0]) ** 2
        also = roles["critic"](batch["obs/x"])[..., 0]
        num = torch.tensor(len(error))
        self.seen.append(len(error))
        extra = torch.full((), float("nan") if self.update == self.breaks_at else 0.0)
        terms = {"fit": (error.sum(), num), "also": (also.sum() * 0 + extra, num)}
        return Loss(terms, {"error": (error.detach().sqrt().sum(), num)})

    def after_update(self, batch: Any, roles: Any, metrics: Mapping[str, float]) -> None:
        self.running += metrics["fit"]
        roles["policy"].update_normaliser({"obs/x": batch["obs/x"][: len(batch["valid"])]}, batch["valid"])

    def state(self) -> dict[str, Any]:
        return {"running": self.running, "table": {1: [self.running, None]}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.running = state["running"]
        assert state["table"] == {1: [self.running, None]}


def line_batch(length: int = 4, rows: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch of `SPEC` as gather makes them, reward = x0 - x1."""
    draw = np.random.default_rng(seed)
    obs = draw.normal(size=(length + 1, rows, 2)).astype(np.float32)
    flags = {name: np.zeros((length, rows), bool) for name in ("terminated", "truncated", "interrupted")}
    columns = flags | {
        "obs/x": obs, "reward": (obs[:-1, :, :1] - obs[:-1, :, 1:]), "valid": np.ones((length, rows), bool),
        "num_steps": np.ones((length, rows), np.int32), "version": np.zeros((length, rows), np.int64),
        "lengths": np.full(rows, length, np.int32), "final_slot": np.full((length, rows), -1, np.int32),
        "final_return": np.zeros(0, np.float32), "final_length": np.zeros(0, np.int32),
        "final_success_once": np.zeros(0, np.int8),
    }  # fmt: skip
    return {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}
