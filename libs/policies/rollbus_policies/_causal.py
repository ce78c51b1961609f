"""A causal transformer over token ids, whose keys and values can be kept between calls.

Symbols: B rows, Q new positions, K positions that are seen, W width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollbus_policies._transformer import Keep, Transformer


class Causal(nn.Module):
    """Features of each position of a sequence of ``num_tokens`` different ids, up to ``longest`` of them."""

    def __init__(self, num_tokens: int, longest: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(num_tokens, width), nn.Embedding(longest, width)
        self.layers = Transformer(width, depth, heads)
        self.longest, self.width, self.depth, self.heads = longest, width, depth, heads
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor, visible: Tensor, keep: Sequence[Keep] = ()) -> Tensor:
        """[B, Q, W] of whole sequences ``ids`` int64 [B, Q].

        ``visible`` bool [B, Q]: positions that later ones may look at.
        """
        place = torch.arange(ids.shape[1], device=ids.device)
        causal = place <= place[:, None]
        return self.extend(ids, place, visible[:, None, :] & causal, keep)

    def extend(self, ids: Tensor, place: Tensor, seen: Tensor, keep: Sequence[Keep]) -> Tensor:
        """[B, Q, W] of ``ids`` [B, Q] at ``place`` int64 [Q] or [B, Q], which see ``seen`` bool [B, Q, K]."""
        x = self.tokens(ids) + self.places(place)
        features: Tensor = self.layers(x, seen[:, None], keep=keep)
        return features
