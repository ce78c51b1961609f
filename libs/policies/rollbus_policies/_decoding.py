"""Completions of many prompts, token by token, in slots: rows come, and leave as soon as they are done.

A row's tokens depend on its prompt and its seed alone; who else is there changes only how sums are rounded.
Symbols: B rows that come, n open rows, P tokens of a prompt, L of a completion, V different tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rollbus_core import rng
from rollbus_policies._heads import first_to_finish, race
from rollbus_policies._slots import KeptKeys, Slots
from rollbus_policies._transforms import to_tensor
from rollbus_policies.base import Act, Mode
from rollbus_wire.errors import SpecError

if TYPE_CHECKING:
    from rollbus_policies._tokens import TokenPolicy

PAD = 0
#: A row's random numbers are made for so many tokens at once: most completions end long before the limit.
NOISE_BLOCK = 16


class Decoder:
    """Open rows, each at its own place of its own completion; see `rollbus_policies.base.Decoder`."""

    def __init__(self, policy: TokenPolicy, want: tuple[str, ...]) -> None:
        """``want``: extras of every decision. Raises `SpecError` for one that the policy does not give."""
        if unknown := set(want) - set(policy.spec.extras):
            known = ", ".join(sorted(policy.spec.extras))
            raise SpecError(f"act was asked for {sorted(unknown)[0]!r}; it gives {known}")
        self._policy, self._want = policy, want
        self._device = policy.output.weight.device
        self._block = min(NOISE_BLOCK, policy.longest)
        body, each = policy.body, (policy.longest,)
        self._slots = Slots(
            number=(np.int64, ()), seed=(np.uint64, ()), greedy=(np.bool_, ()),
            visible=(np.bool_, (body.longest,)), noise=(np.float32, (self._block, policy.vocabulary)),
            #: Tokens drawn so far; and of a row that is done, how many count.
            drawn=(np.int64, ()), length=(np.int64, ()),
            token=(np.int64, each), log_prob=(np.float32, each), entropy=(np.float32, each),
            value=(np.float32, ()),
        )  # fmt: skip
        self._kept = KeptKeys(policy.output.weight, body.depth, body.heads, body.longest, body.width)
        #: [n, W] of each row's newest position, from which its next token is drawn.
        self._features: Tensor = policy.output.weight.new_empty((0, policy.output.weight.shape[1]))
        self._next = 0

    @property
    def num_rows(self) -> int:
        """Rows that are open."""
        return self._slots.num

    @torch.inference_mode()
    def admit(self, obs: Mapping[str, np.ndarray], mode: Mode | list[Mode], seeds: np.ndarray) -> np.ndarray:
        """Open B rows: their prompts are read in one pass. Returns their numbers int64 [B]."""
        greedy = self._greedy(mode, len(seeds))
        ids = self._policy.prompted(to_tensor(obs[self._policy.key], self._device))
        rows, prompt = self._slots.take(len(seeds)), ids.shape[1]
        numbers = self._next + np.arange(len(seeds))
        self._next += len(seeds)
        visible, slots = ids != PAD, self._slots
        slots["number"][rows], slots["seed"][rows], slots["greedy"][rows] = numbers, seeds, greedy
        slots["visible"][rows, :prompt] = visible.numpy(force=True)
        self._kept.grow(slots.size)
        self._kept.clear(rows)
        keep = self._kept.prompts(rows, prompt)
        features = self._policy.body(ids, visible, keep)[:, -1]
        self._features = torch.cat([self._features, features])
        if "value" in self._want:
            slots["value"][rows] = self._policy.first_value(features).numpy(force=True)
        return numbers

    @torch.inference_mode()
    def step(self) -> tuple[np.ndarray, Act] | None:
        """One token of every open row; (numbers, decisions) of those that are done with it, which leave."""
        self._draw()
        done = np.flatnonzero(self._slots["length"])
        result = None
        if done.size:
            result = self._slots["number"][done], self._act(done)
            self._leave(done)
        if self._slots.num:
            self._extend()
        return result

    @torch.inference_mode()
    def drop(self, numbers: np.ndarray) -> None:
        """Rows of these ``numbers`` leave; those that have left already are no matter."""
        rows = np.flatnonzero(np.isin(self._slots["number"], numbers))
        if rows.size:
            self._leave(rows)

    @torch.inference_mode()
    def finish(self) -> Act:
        """All open rows to their end, in the order in which they came.

        None leaves before the last is done: passes keep one shape, so that a row's bits do not depend on
        when its neighbours end.
        """
        self._draw()
        while not self._slots["length"].all():
            self._extend()
            self._draw()
        act = self._act(np.arange(self._slots.num))
        self._leave(np.arange(self._slots.num))
        return act

    # --- details ---------------------------------------------------------------------------------

    def _draw(self) -> None:
        """The next token of every row, from its features."""
        slots, rows = self._slots, np.arange(self._slots.num)
        place = slots["drawn"].copy()
        noise = to_tensor(self._clocks(rows, place), self._device)
        log_probs = torch.log_softmax(self._policy.output(self._features).float(), -1)
        drawn = first_to_finish(log_probs, noise)
        tokens = drawn.numpy(force=True)
        slots["token"][rows, place] = tokens
        slots["log_prob"][rows, place] = log_probs.gather(-1, drawn[:, None])[:, 0].numpy(force=True)
        if "entropy" in self._want:
            entropy = -(log_probs.exp() * log_probs).sum(-1)
            slots["entropy"][rows, place] = entropy.numpy(force=True)
        place += 1
        slots["drawn"][:] = place
        ends = ((tokens == self._policy.end_token) | (place == self._policy.longest)) & (slots["length"] == 0)
        slots["length"][ends] = place[ends]

    def _extend(self) -> None:
        """Features of the tokens drawn last."""
        slots, rows = self._slots, np.arange(self._slots.num)
        place = slots["drawn"] - 1
        position = self._policy.prompt + 1 + place
        slots["visible"][rows, position] = True
        seen = slots["visible"][:, : int(position.max()) + 1]
        keep = self._kept.tokens(position)
        self._features = self._policy.body.extend(
            to_tensor(slots["token"][rows, place], self._device)[:, None],
            to_tensor(position, self._device)[:, None],
            to_tensor(seen, self._device)[:, None],
            keep,
        )[:, 0]

    def _clocks(self, rows: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Float32 [n, V] for `first_to_finish`: equal clocks give the mode."""
        slots, column = self._slots, place % self._block
        due = np.flatnonzero(column == 0)
        if due.size:
            num = self._policy.vocabulary
            seeds = rng.skip(slots["seed"][due], place[due] * num)
            fresh = race(rng.uniform(seeds, self._block * num)).reshape(-1, self._block, num)
            fresh[slots["greedy"][due]] = -1.0
            slots["noise"][due] = fresh
        clocks: np.ndarray = slots["noise"][rows, column]
        return clocks

    def _greedy(self, mode: Mode | list[Mode], num: int) -> list[bool]:
        """Which rows take the mode. "random" is "sample": there is no distribution but the policy's."""
        modes = [mode] * num if isinstance(mode, str) else list(mode)
        if len(modes) != num or not set(modes) <= {"sample", "mode", "random"}:
            raise SpecError(f"modes {sorted(set(modes))} for {num} rows; sample, mode or random")
        return [each == "mode" for each in modes]

    def _act(self, rows: np.ndarray) -> Act:
        """Decisions of ``rows``, which are done."""
        slots = self._slots
        counts = np.arange(self._policy.longest) < slots["length"][rows, None]
        action = np.where(counts, slots["token"][rows], PAD)
        token_log_prob = np.where(counts, slots["log_prob"][rows], np.float32(0))
        found = {
            "token_log_prob": token_log_prob,
            "log_prob": torch.from_numpy(token_log_prob).sum(1).numpy(),
            "entropy": np.where(counts, slots["entropy"][rows], np.float32(0)).sum(1),
            "value": slots["value"][rows],
        }
        return Act(env_action=action, action=action, extras={name: found[name] for name in self._want})

    def _leave(self, rows: np.ndarray) -> None:
        to, source = self._slots.leave(rows)
        if to.size:
            self._kept.move(to, source)
            self._features[to] = self._features[source]
        self._features = self._features[: self._slots.num]
