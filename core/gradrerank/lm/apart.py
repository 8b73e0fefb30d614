"""Losses behind one document at a time: what each says on its own.

Every row reads the prefix and one document's cache, like an ordinary prompt with this document alone.
All rows pass through the model as one row of many texts, so nothing is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from gradrerank.lm.gates import Reading
from gradrerank.lm.kv_store import DocumentCache
from gradrerank.lm.retrying import in_batches

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.prompt import Continuation

# Tokens that pass through the model together at most, unless one text alone has more. Few enough that
# the logits of their targets over a large vocabulary stay small beside the model.
_TOKENS_AT_ONCE = 1024


@dataclass(slots=True)
class ApartAttention:
    """Lets each text of a row see the prefix, its own document and itself.

    Args:
        prefix: Keys and values of the prefix.
        caches: The document of each text, None for a text without one.
        texts: Where each text starts and ends in the row.
        masks: Masks by length of text, tokens before it and attention window; made on first use.
    """

    prefix: DocumentCache
    caches: Sequence[DocumentCache | None]
    texts: Sequence[tuple[int, int]]
    masks: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer.

        Args:
            layer: The layer.
            query: [1, heads, T, key_dim].
            key: [1, kv_heads, T, key_dim] of the new tokens.
            value: [1, kv_heads, T, value_dim] of the new tokens.
            scale: Factor of the logits.
            window: How far back a token sees, or None.

        Returns:
            [1, heads, T, value_dim].
        """
        kv_heads = key.shape[1]
        outputs = []
        for cache, (start, end) in zip(self.caches, self.texts, strict=True):
            before = [self.prefix] if cache is None else [self.prefix, cache]
            keys = torch.cat([*(part.keys[layer] for part in before), key[0, :, start:end]], dim=1)
            values = torch.cat([*(part.values[layer] for part in before), value[0, :, start:end]], dim=1)
            # The heads of a group share their keys, so they stand below each other as further queries.
            stacked = query[0, :, start:end].reshape(kv_heads, -1, query.shape[-1])
            mask = self._mask(end - start, keys.shape[1] - (end - start), window, query.shape[1] // kv_heads)
            seen = functional.scaled_dot_product_attention(
                stacked[None], keys[None], values[None], attn_mask=mask, scale=scale
            )
            outputs.append(seen.reshape(1, query.shape[1], end - start, -1))
        return torch.cat(outputs, dim=2)

    def _mask(self, length: int, before: int, window: int | None, groups: int) -> Tensor:
        """[groups * length, before + length] what each new token sees."""
        key = (length, before, window)
        if key not in self.masks:
            mask = torch.ones(length, before + length, dtype=torch.bool, device=self.prefix.keys.device)
            mask.tril_(before)
            if window is not None:
                mask.triu_(before - window + 1)
            self.masks[key] = mask.repeat(groups, 1)
        return self.masks[key]


def losses_apart(
    generator: Generator, caches: Sequence[DocumentCache | None], continuations: Sequence[Continuation]
) -> list[Tensor]:
    """Losses of n continuations, each behind its own document alone.

    Args:
        generator: The model.
        caches: The document before each continuation; None for the bare prompt.
        continuations: n questions and targets.

    Returns:
        n tensors with the negative log-likelihood in nats of each token of the target, float32 or wider.
    """

    def read(rows: Sequence[int]) -> list[Tensor]:
        return _losses(generator, [caches[i] for i in rows], [continuations[i] for i in rows])

    losses: list[Tensor] = []
    with generator.exact_mode(grad=False):
        for batch in _batches(continuations):
            losses += in_batches(batch, len(batch), read, "a question behind one document")
    return losses


def _batches(continuations: Sequence[Continuation]) -> Iterator[list[int]]:
    batch: list[int] = []
    tokens = 0
    for i, continuation in enumerate(continuations):
        if batch and tokens + len(continuation) > _TOKENS_AT_ONCE:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += len(continuation)
    if batch:
        yield batch


def _losses(
    generator: Generator, caches: Sequence[DocumentCache | None], continuations: Sequence[Continuation]
) -> list[Tensor]:
    device, prefix = generator.device, generator.reader.prefix().parts[0]
    ends = list(accumulate(map(len, continuations)))
    texts = list(zip([0, *ends[:-1]], ends, strict=True))
    first = [len(prefix) + (0 if cache is None else len(cache)) for cache in caches]
    positions = [torch.arange(a, a + end - start) for a, (start, end) in zip(first, texts, strict=True)]
    ids = [token for c in continuations for token in c.question + c.target[:-1]]
    keep = [i for c, (_, end) in zip(continuations, texts, strict=True) for i in range(end - len(c.target), end)]
    job = Reading(
        memory=None,
        positions=torch.cat(positions).to(device),
        apart=ApartAttention(prefix, caches, texts),
    )
    logits = generator.engine.logits(torch.tensor([ids], device=device), job, torch.tensor(keep, device=device))[0]
    labels = torch.tensor([token for c in continuations for token in c.target], device=device)
    losses = functional.cross_entropy(logits.to(generator.engine.wide), labels, reduction="none")
    return list(losses.split([len(c.target) for c in continuations]))
