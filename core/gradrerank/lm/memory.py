"""What every row of a batch attends to: the caches of prefix and documents, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradrerank.lm.kv_store import DocumentCache


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens of memory that lie in one or several caches and are attended to together.

    Args:
        start: First token, counted in the whole memory.
        end: One past the last token.
        keys: For each layer the keys that are taken of each cache, [kv_heads, n, key_dim].
        values: For each layer the values that are taken of each cache, [kv_heads, n, value_dim].
    """

    start: int
    end: int
    keys: tuple[tuple[Tensor, ...], ...]
    values: tuple[tuple[Tensor, ...], ...]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys [kv_heads, B, key_dim] and values [kv_heads, B, value_dim] of one layer."""
        keys, values = self.keys[index], self.values[index]
        if len(keys) == 1:
            return keys[0], values[0]
        return torch.cat(keys, dim=1), torch.cat(values, dim=1)

    def layer_and(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer with those of T new tokens behind them, [kv_heads, B + T, ...]."""
        return torch.cat([*self.keys[index], key], dim=1), torch.cat([*self.values[index], value], dim=1)


@dataclass(slots=True)
class Memory:
    """Keys and values that every row of a batch attends to: prefix and documents.

    The caches are never copied into one: attention walks over them in blocks and joins those of a
    block in one layer at a time, when the processor needs them in its cache anyway.

    Args:
        parts: Caches that lie side by side, N tokens together.
        positions: [N], the position that each token was encoded at.
        spans: [N], the span that each token belongs to; ``n_spans`` for tokens without a gate.
        n_spans: Number of gated spans S.
        plans: Blocks by their size, made on first use.
    """

    parts: Sequence[DocumentCache]
    positions: Tensor
    spans: Tensor
    n_spans: int
    plans: dict[int, list[Block]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of tokens N."""
        return len(self.positions)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.parts[0].keys)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys [kv_heads, N, key_dim] and values [kv_heads, N, value_dim] of one layer."""
        return self.blocks(max(1, len(self)))[0].layer(index)

    def blocks(self, size: int) -> list[Block]:
        """The memory in blocks of at most ``size`` tokens."""
        if size not in self.plans:
            self.plans[size] = _plan(self.parts, size)
        return self.plans[size]


def _plan(parts: Sequence[DocumentCache], size: int) -> list[Block]:
    blocks: list[Block] = []
    start = end = 0
    slices: list[tuple[DocumentCache, int, int]] = []
    for part in parts:
        first = 0
        while first < len(part):
            taken = min(len(part) - first, size - (end - start))
            slices.append((part, first, first + taken))
            first, end = first + taken, end + taken
            if end - start == size:
                blocks.append(_block(start, end, slices))
                start, slices = end, []
    if slices:
        blocks.append(_block(start, end, slices))
    return blocks


def _block(start: int, end: int, slices: Sequence[tuple[DocumentCache, int, int]]) -> Block:
    """Views of all layers at once: made one by one in every layer they would cost as much as a product."""
    keys = zip(*(cache.keys[:, :, first:last].unbind() for cache, first, last in slices), strict=True)
    values = zip(*(cache.values[:, :, first:last].unbind() for cache, first, last in slices), strict=True)
    return Block(start, end, tuple(keys), tuple(values))
