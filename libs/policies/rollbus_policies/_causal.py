"""A causal transformer whose keys and values can be kept between calls.

Symbols: B rows, Q new positions, K positions with keys, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Keys and values of one layer, each [B, heads, K, W / heads].
Kept = tuple[Tensor, Tensor]


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.hidden, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor, kept: Kept | None) -> tuple[Tensor, Kept]:
        rows, num, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x))
        query, key, value = parts.view(rows, num, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if kept is not None:
            key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.mixed(mixed.transpose(1, 2).reshape(rows, num, width))
        return x + self.output(functional.gelu(self.hidden(self.before_hidden(x)))), (key, value)


class Causal(nn.Module):
    """Features of each position of a sequence of ``num_tokens`` different ids, up to ``longest`` of them."""

    def __init__(self, num_tokens: int, longest: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(num_tokens, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(depth))
        self.last = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(
        self, ids: Tensor, visible: Tensor, kept: list[Kept] | None = None
    ) -> tuple[Tensor, list[Kept]]:
        """[B, Q, W] of ``ids`` int64 [B, Q], which follow the positions that are ``kept``.

        ``visible`` bool [B, K]: positions, new ones included, that later ones may look at.
        """
        num, total = ids.shape[1], visible.shape[1]
        place = torch.arange(total, device=ids.device)
        x = self.tokens(ids) + self.places(place[total - num :])
        causal = place <= place[total - num :, None]
        mask = (visible[:, None, :] & causal)[:, None]
        after = []
        for index, layer in enumerate(self.layers):
            x, both = layer(x, mask, None if kept is None else kept[index])
            after.append(both)
        return self.last(x), after
