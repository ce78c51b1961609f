"""Attention blocks (Vaswani et al., 1706.03762, with the norm before each part, 2002.04745).

Rows never see each other. Symbols: B rows, n positions, m positions that are attended to, W width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Keeps a layer's keys and values [2, B, H, n, W / H] of new positions; those [2, B, H, m, W / H] they see.
Keep = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """Of x [B, n, W] to itself, and to ``memory`` [B, m, W] before it."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor | None, keep: Keep | None) -> Tensor:
        """[B, n, W]; ``mask`` bool [B, 1, n, m] is True where seen."""
        query = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        both = self.both(x if memory is None else torch.cat([memory, x], 1))
        both = both.unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        key, value = both if keep is None else keep(both)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and a perceptron, each added to what came in."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, num_heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.wide_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor | None, keep: Keep | None) -> Tensor:
        x = x + self.attention(self.norm(x), memory, mask, keep)
        return x + self.narrow(functional.gelu(self.wide(self.wide_norm(x))))


class Transformer(nn.Module):
    """Blocks and a last norm: [B, n, W] -> [B, n, W]."""

    def __init__(self, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, keep: Sequence[Keep] = ()
    ) -> Tensor:
        """``mask`` bool [B, 1, n, m + n], or what broadcasts to it; ``memory`` [B, m, W] is seen too.

        ``keep``: per block, where keys and values stay between calls, if they do.
        """
        for i, block in enumerate(self.blocks):
            x = block(x, memory, mask, keep[i] if keep else None)
        return self.norm(x)


def causal(num: int, valid: Tensor | None = None, device: torch.device | None = None) -> Tensor:
    """Mask bool [B or 1, 1, n, n]: each position sees itself and the ``valid`` [B, n] ones before it."""
    before = torch.ones(num, num, dtype=torch.bool, device=device).tril()[None, None]
    if valid is None:
        return before
    return (before & valid[:, None, None]) | torch.eye(num, dtype=torch.bool, device=device)


def sinusoid(position: Tensor, width: int, longest: float = 1e4) -> Tensor:
    """[..., width] of ``position`` [...]: sines and cosines of many wavelengths."""
    half = width // 2
    exponents = torch.arange(half, device=position.device) / half
    angle = position.unsqueeze(-1).float() * longest ** (-exponents)
    return torch.cat([angle.sin(), angle.cos()], -1)
