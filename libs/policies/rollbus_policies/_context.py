"""Observations as positions for attention: image patches, tokens, and one position for all numbers.

Instructions are tokens, one row each: bytes by `rollbus_policies.text`, or any vocabulary. Rows are never
mixed.
Symbols: B rows, n positions, W width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus_policies._critics import ValueNet
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._transformer import Transformer, sinusoid
from rollbus_policies._transforms import ImageInput, VectorInput, is_classes, is_image
from rollbus_policies._value_heads import Scalar, TwoHot
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ArraySpec, EnvSpec

#: An image is cut into at most so many patches along a side.
MAX_PATCHES = 8


def is_sequence(array: ArraySpec) -> bool:
    """Whether ``array`` is a row of tokens, as an instruction is."""
    return is_classes(array) and array.layout == "tokens" and len(array.shape) == 1


class _Patches(nn.Module):
    """Images [B, channels, H, W] to positions [B, n, W]."""

    def __init__(self, images: ImageInput, width: int) -> None:
        super().__init__()
        self.side = -(-max(images.height, images.width) // MAX_PATCHES)
        down, right = (-size % self.side for size in (images.height, images.width))
        self._pad = (0, right, 0, down)
        self.cut = nn.Conv2d(images.channels, width, self.side, self.side)
        num = (images.height + down) * (images.width + right) // self.side**2
        self.places = nn.Parameter(0.02 * torch.randn(num, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(functional.pad(x, self._pad)).flatten(2).transpose(1, 2) + self.places


class _Tokens(nn.Module):
    """Tokens [B, L] to positions [B, L, W] and which of them are there."""

    def __init__(self, key: str, array: ArraySpec, width: int) -> None:
        super().__init__()
        if array.high is None:
            raise SpecError(f"observation {key!r}: layout 'tokens' needs high, the largest token")
        #: Padding is what is below 0, or the byte 0.
        self._first = 1 if np.dtype(array.dtype).kind == "u" else 0
        self.embed = nn.Embedding(int(array.high) + 1, width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        tokens = tokens.long()
        there = tokens >= self._first
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        return self.embed(tokens.clamp(min=0)) + sinusoid(places, self.embed.embedding_dim), there


class Context(nn.Module):
    """The observations of ``keys`` behind an encoder: positions [B, n, W] and which of them are there."""

    def __init__(
        self, spec: EnvSpec, keys: Iterable[str], frame_stack: int, *, width: int, layers: int, num_heads: int
    ) -> None:
        super().__init__()
        keys = sorted(keys)
        images = [key for key in keys if is_image(spec.observation[key])]
        self._sequences = [key for key in keys if is_sequence(spec.observation[key])]
        numbers = [key for key in keys if key not in images and key not in self._sequences]
        self._images = ImageInput(spec, images, frame_stack) if images else None
        self._numbers = VectorInput(spec, numbers, frame_stack) if numbers else None
        self._stacked = frame_stack > 1
        if self._images is not None:
            self.patches = _Patches(self._images, width)
        if self._numbers is not None:
            self.numbers = nn.Linear(self._numbers.size, width)
        self.tokens = nn.ModuleList(_Tokens(key, spec.observation[key], width) for key in self._sequences)
        self.encoder = Transformer(width, layers, num_heads)
        patches = len(self.patches.places) if self._images is not None else 0
        #: n, padded ones included.
        self.num_positions = (self._numbers is not None) + patches
        self.num_positions += sum(spec.observation[key].shape[0] for key in self._sequences)

    def forward(self, obs: Mapping[str, Tensor], normalisers: Normalisers | None) -> tuple[Tensor, Tensor]:
        """(positions [B, n, W], bool [B, n]) of ``obs`` [B, ...]; of a stack of instructions the newest."""
        parts, there = [], []
        if self._numbers is not None:
            parts.append(self.numbers(self._numbers(obs, normalisers)).unsqueeze(1))
        if self._images is not None:
            parts.append(self.patches(self._images(obs)[0]))
        there = [torch.ones(part.shape[:2], dtype=torch.bool, device=part.device) for part in parts]
        for key, tokens in zip(self._sequences, self.tokens):
            part, valid = tokens(obs[key][:, -1] if self._stacked else obs[key])
            parts.append(part)
            there.append(valid)
        x, valid = torch.cat(parts, 1), torch.cat(there, 1)
        return self.encoder(x, _seen(valid)), valid


def _seen(valid: Tensor) -> Tensor:
    """Mask bool [B, 1, n, n]; a position always sees itself, so that none sees nothing."""
    places = torch.arange(valid.shape[1], device=valid.device)
    return valid[:, None, None] | (places == places[:, None])  # ONNX knows no eye of bools


def pooled(x: Tensor, valid: Tensor) -> Tensor:
    """Mean [B, W] over the positions of x [B, n, W] that are there."""
    weight = valid.unsqueeze(-1).to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1.0)


class ContextCritic(nn.Module):
    """What ``head`` takes, from an encoder of its own, for observations with one leading dimension."""

    def __init__(
        self,
        spec: EnvSpec,
        keys: list[str],
        frame_stack: int,
        hidden: list[int],
        head: Scalar | TwoHot,
        *,
        width: int,
        num_heads: int,
    ) -> None:
        super().__init__()
        self.context = Context(spec, keys, frame_stack, width=width, layers=1, num_heads=num_heads)
        self.net = ValueNet(width, hidden, "relu", "orthogonal", head)

    def forward(self, obs: Mapping[str, Tensor], normalisers: Normalisers | None) -> Tensor:
        return self.net(pooled(*self.context(obs, normalisers)))


class Expert(nn.Module):
    """C action positions that see each other and the context; the result is [B, C, W].

    They start from learned queries, to which ``actions`` [B, C, A] and their ``time`` [B] in [0, 1] are added
    where there are some (``num_in`` is A), or anything else of width W.
    """

    def __init__(self, num_in: int, chunk: int, *, width: int, layers: int, num_heads: int) -> None:
        super().__init__()
        self.width = width
        self.queries = nn.Parameter(0.02 * torch.randn(chunk, width))
        if num_in:
            self.read = nn.Linear(num_in, width)
            self.clock = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = Transformer(width, layers, num_heads)

    def forward(self, context: tuple[Tensor, Tensor], added: Tensor | None = None) -> Tensor:
        """For ``context`` of `Context` and ``added`` [B, C or 1, W]."""
        memory, valid = context
        x = self.queries.expand(memory.shape[0], -1, -1)
        x = x if added is None else x + added
        seen = functional.pad(valid, (0, x.shape[1]), value=True)
        return self.blocks(x, seen[:, None, None], memory)

    def noised(self, context: tuple[Tensor, Tensor], actions: Tensor, time: Tensor) -> Tensor:
        """For ``actions`` with the noise of ``time``."""
        # Wavelengths between 1/160 and 63 of the unit interval.
        clock = self.clock(sinusoid(time * 1000.0, self.width))
        return self.forward(context, self.read(actions) + clock.unsqueeze(1))
