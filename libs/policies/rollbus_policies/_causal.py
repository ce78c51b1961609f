"""A causal transformer over token ids, whose keys and values can be kept between calls.

Symbols: B rows, Q new positions, K positions with keys, W width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollbus_policies._transformer import Cache, Transformer


class Causal(nn.Module):
    """Features of each position of a sequence of ``num_tokens`` different ids, up to ``longest`` of them."""

    def __init__(self, num_tokens: int, longest: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(num_tokens, width), nn.Embedding(longest, width)
        self.layers = Transformer(width, depth, heads)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor, visible: Tensor, kept: Sequence[Cache] = ()) -> tuple[Tensor, list[Cache]]:
        """[B, Q, W] of ``ids`` int64 [B, Q], which follow the positions that are ``kept``.

        ``visible`` bool [B, K]: positions, new ones included, that later ones may look at.
        """
        num, total = ids.shape[1], visible.shape[1]
        place = torch.arange(total, device=ids.device)
        x = self.tokens(ids) + self.places(place[total - num :])
        causal = place <= place[total - num :, None]
        return self.layers.extend(x, (visible[:, None, :] & causal)[:, None], list(kept))
