"""Losses behind one document at a time, or behind a part of it: what each says on its own.

Every row reads the prefix and one document's cache, like an ordinary prompt with this document alone. A row
that reads a part of the cache stands where that part ends, and no token of the document passes through the model
again for it. All rows pass as one row of many texts, so nothing is padded.
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


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What a text sees of a document.

    Args:
        cache: The document.
        parts: Its tokens that are seen, as ranges ``(start, end)`` in ascending order, at least one.
    """

    cache: DocumentCache
    parts: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        """The place in the document after its last token that is seen."""
        return self.parts[-1][1]

    def positions(self) -> Tensor:
        """[n] places in the document of the tokens that are seen."""
        return torch.cat([torch.arange(start, end) for start, end in self.parts])


@dataclass(slots=True)
class ApartAttention:
    """Lets each text of a row see the prefix, its own document or a part of it, and itself.

    Args:
        prefix: Keys and values of the prefix.
        excerpts: What each text sees of a document, None for a text without one.
        texts: Where each text starts and ends in the row.
        masks: Masks by length of text, tokens before it and, where attention has a window, text and window; made
            on first use.
    """

    prefix: DocumentCache
    excerpts: Sequence[Excerpt | None]
    texts: Sequence[tuple[int, int]]
    masks: dict[tuple[int, int, tuple[int, int] | None], Tensor] = field(default_factory=dict)

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
        for index, (excerpt, (start, end)) in enumerate(zip(self.excerpts, self.texts, strict=True)):
            seen = [self.prefix.keys[layer]], [self.prefix.values[layer]]
            if excerpt is not None:
                for held, part in zip(seen, (excerpt.cache.keys[layer], excerpt.cache.values[layer]), strict=True):
                    held += [part[:, first:last] for first, last in excerpt.parts]
            keys = torch.cat([*seen[0], key[0, :, start:end]], dim=1)
            values = torch.cat([*seen[1], value[0, :, start:end]], dim=1)
            # The heads of a group share their keys, so they stand below each other as further queries.
            stacked = query[0, :, start:end].reshape(kv_heads, -1, query.shape[-1])
            mask = self._mask(index, keys.shape[1] - (end - start), window, query.shape[1] // kv_heads)
            mixed = functional.scaled_dot_product_attention(
                stacked[None], keys[None], values[None], attn_mask=mask, scale=scale
            )
            outputs.append(mixed.reshape(1, query.shape[1], end - start, -1))
        return torch.cat(outputs, dim=2)

    def _mask(self, index: int, before: int, window: int | None, groups: int) -> Tensor:
        """[groups * length, before + length] what each new token of a text sees."""
        start, end = self.texts[index]
        key = (end - start, before, None if window is None else (index, window))
        if key not in self.masks:
            mask = torch.ones(end - start, before + end - start, dtype=torch.bool).tril_(before)
            if window is not None:
                mask &= self._steps_back(index) < window
            self.masks[key] = mask.repeat(groups, 1).to(self.prefix.keys.device)
        return self.masks[key]

    def _steps_back(self, index: int) -> Tensor:
        """[length, before + length] how far each token that a new one may see lies back; excerpts leave gaps."""
        first, excerpt = len(self.prefix), self.excerpts[index]
        start, end = self.texts[index]
        seen = [torch.arange(first)]
        if excerpt is not None:
            seen.append(first + excerpt.positions())
            first += excerpt.end
        new = torch.arange(first, first + end - start)
        return new[:, None] - torch.cat([*seen, new])


def losses_apart(
    generator: Generator, excerpts: Sequence[Excerpt | None], continuations: Sequence[Continuation]
) -> list[Tensor]:
    """Losses of n continuations, each behind its own document, or a part of it, alone.

    Args:
        generator: The model.
        excerpts: What each continuation sees of a document; None for the bare prompt.
        continuations: n questions and targets.

    Returns:
        n tensors with the negative log-likelihood in nats of each token of the target, float32 or wider.
    """

    def read(rows: Sequence[int]) -> list[Tensor]:
        return _losses(generator, [excerpts[i] for i in rows], [continuations[i] for i in rows])

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
    generator: Generator, excerpts: Sequence[Excerpt | None], continuations: Sequence[Continuation]
) -> list[Tensor]:
    device, prefix = generator.device, generator.reader.prefix().parts[0]
    ends = list(accumulate(map(len, continuations)))
    texts = list(zip([0, *ends[:-1]], ends, strict=True))
    first = [len(prefix) + (0 if excerpt is None else excerpt.end) for excerpt in excerpts]
    positions = [torch.arange(a, a + end - start) for a, (start, end) in zip(first, texts, strict=True)]
    ids = [token for c in continuations for token in c.question + c.target[:-1]]
    keep = [i for c, (_, end) in zip(continuations, texts, strict=True) for i in range(end - len(c.target), end)]
    job = Reading(
        memory=None,
        positions=torch.cat(positions).to(device),
        apart=ApartAttention(prefix, excerpts, texts),
    )
    logits = generator.engine.logits(torch.tensor([ids], device=device), job, torch.tensor(keep, device=device))[0]
    labels = torch.tensor([token for c in continuations for token in c.target], device=device)
    losses = functional.cross_entropy(logits.to(generator.engine.wide), labels, reduction="none")
    return list(losses.split([len(c.target) for c in continuations]))
