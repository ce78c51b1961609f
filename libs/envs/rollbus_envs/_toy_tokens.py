"""Toys whose observation is a prompt and whose action is a completion, both token ids.

16 tokens: padding, end, four words and the digits 0 to 9. A completion counts up to its first end token;
what follows is ignored.
"""

from __future__ import annotations

from typing import Any, Sequence, Tuple

import numpy as np

from rollbus_wire.env import Arrays
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

from ._toy_base import Advance, Toy, draws

PAD, END, COPY, REVERSE, TOOL, ASK, ZERO = range(7)
VOCABULARY = ZERO + 10


def cut(completion: np.ndarray) -> np.ndarray:
    """int64 [R, L]: ``completion`` with padding behind its first end token."""
    ended = np.cumsum(completion == END, axis=1)
    return np.where((ended == 0) | ((ended == 1) & (completion == END)), completion, PAD)


class Prompted(Toy):
    """Completions of at most ``longest`` tokens of a prompt of ``prompt`` tokens."""

    def __init__(self, name: str, num_rows: int, prompt: int, longest: int) -> None:
        super().__init__(num_rows)
        self.prompt, self.longest = prompt, longest
        self.spec = EnvSpec(
            name=name,
            observation={
                "prompt": ArraySpec("int64", (prompt,), 0.0, float(VOCABULARY - 1), layout="tokens")
            },
            action=ActionSpec(
                "multi_discrete", shape=(longest,), num=[VOCABULARY] * longest, layout="tokens", end_token=END
            ),
            has_success=True,
            optimal_return=1.0,
        )

    def answer(self, digits: np.ndarray) -> np.ndarray:
        """int64 [R, longest]: ``digits`` [R, n] (negative: none), the end token, padding."""
        num = (digits >= 0).sum(1)
        full = np.full((len(digits), self.longest), PAD, np.int64)
        full[:, : digits.shape[1]] = np.where(digits >= 0, digits + ZERO, PAD)
        full[np.arange(len(digits)), num] = END
        return full


class Digits(Prompted):
    """Copy or reverse 2 to ``size`` digits; reward 1 for exactly that, else 0. One decision.

    In ``confused`` of all episodes the expert takes each word for the other one.
    """

    def __init__(self, config: Any, num_rows: int) -> None:
        self.size, self.confused = config.size or 8, config.confused
        super().__init__("toy-digits", num_rows, 1 + self.size, 1 + self.size)

    def task(self, rows: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Whether to reverse, bool [R], and the digits int64 [R, size], -1 behind the last."""
        drawn = draws(self.seed[rows], 2 + self.size)
        num = 2 + (drawn[:, 1] * (self.size - 1)).astype(np.int64)
        digits = (drawn[:, 2:] * 10).astype(np.int64)
        return drawn[:, 0] < 0.5, np.where(np.arange(self.size) < num[:, None], digits, -1)

    def look(self, rows: np.ndarray) -> Arrays:
        reverse, digits = self.task(rows)
        words = np.where(reverse, REVERSE, COPY)[:, None]
        return {"prompt": np.concatenate([words, np.where(digits >= 0, digits + ZERO, PAD)], 1)}

    def right(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R, longest]: the right completion."""
        return self._completion(*self.task(rows))

    def expert(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R, longest]: the right completion, or that of the other word."""
        reverse, digits = self.task(rows)
        mistaken = draws(self.seed[rows], 3 + self.size)[:, -1] < self.confused
        return self._completion(reverse ^ mistaken, digits)

    def _completion(self, reverse: np.ndarray, digits: np.ndarray) -> np.ndarray:
        num = (digits >= 0).sum(1)[:, None]
        place = np.arange(self.size)
        backwards = np.take_along_axis(digits, np.maximum(num - 1 - place, 0), 1)
        return self.answer(np.where(reverse[:, None] & (place < num), backwards, digits))

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        right = (cut(actions) == self.right(rows)).all(1)
        return right.astype(np.float32), np.ones(len(rows), np.bool_), right


class Lookup(Prompted):
    """Name the digit that this episode keeps under a key; only the tool knows it.

    Turn 1: the completion TOOL key END is a call of the tool, its result is appended to the prompt and
    turn 2 follows. Any other completion is the answer: reward 1 for the right digit. ``tool: false``
    leaves the result out, so that a tenth of all guesses is right.
    """

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__("toy-tool", num_rows, prompt=5, longest=3)
        self.tool = config.tool
        self.called = self.array("called", (), np.bool_)

    def secret(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R, 2]: the key that is asked for, and the digit under it."""
        return (draws(self.seed[rows], 2) * 10).astype(np.int64)

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.called[rows] = False

    def look(self, rows: np.ndarray) -> Arrays:
        key, digit = (self.secret(rows) + ZERO).T
        result = np.where(self.tool, digit, PAD)
        asked = np.stack([np.full_like(key, ASK), key], 1)
        called = np.stack([np.full_like(key, TOOL), key, result], 1)
        return {"prompt": np.concatenate([asked, np.where(self.called[rows, None], called, PAD)], 1)}

    def call(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R, 3]: the right call of the tool."""
        key = self.secret(rows)[:, 0] + ZERO
        return np.stack([np.full_like(key, TOOL), key, np.full_like(key, END)], 1)

    def expert(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R, 3]: the call, or with its result the answer."""
        return np.where(self.called[rows, None], self.answer(self.secret(rows)[:, 1:]), self.call(rows))

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        given = cut(actions)
        calls = (given == self.call(rows)).all(1) & ~self.called[rows]
        right = (given == self.answer(self.secret(rows)[:, 1:])).all(1)
        self.called[rows] |= calls
        return right.astype(np.float32), ~calls, right
