"""Where the gates meet the model: the attention function that transformers calls in every layer.

What a forward pass reads is a :class:`Reading`; the arithmetic of the gates is in
:mod:`gradrerank.lm.gated_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from gradrerank.errors import UnsupportedModelError
from gradrerank.lm.gated_attention import GatedAttention
from gradrerank.lm.memory import Memory
from gradrerank.lm.small_attention import SmallAttention, is_small

if TYPE_CHECKING:
    from gradrerank.lm.apart import ApartAttention

ATTENTION_NAME = "gradrerank"
# Arguments of attention that would change the numbers and that the gates do not know.
_REFUSED = ("softcap", "s_aux", "sinks")


@dataclass(slots=True)
class Reading:
    """One forward pass over new tokens behind a memory.

    Args:
        memory: What was read before; None when the new tokens are the first.
        positions: [T], positions of the new tokens.
        texts: Where each of several texts that share one row starts and ends; they do not see each other.
            Nothing for one text a row.
        gates: For each layer [rows, heads, S], or None for a layer at z = 1 without gradient. An
            empty list gates nothing.
        record_layers: Layers whose keys and values are kept, after which the pass ends; None keeps those
            of all layers and runs to the end, 0 keeps nothing.
        keys: Recorded keys by layer, each [rows, kv_heads, T, key_dim].
        values: Recorded values by layer, each [rows, kv_heads, T, value_dim].
        layer: Number of attention layers that have run.
        alone: Whether every new token sees itself only, to find out what else mixes tokens.
        masks: Masks by attention window, made on first use.
        observe: Called in every layer with ``(layer, query, key, scale, window)`` of the new tokens, as
            :func:`_attention` has them, before the layer attends; None where nobody looks.
        removal: What gradients in gates are, between slopes (0) and removing a whole span (1); see
            :mod:`gradrerank.lm.gated_attention`.
        apart: Takes the place of attention where each of several texts reads a document of its own.
    """

    memory: Memory | None
    positions: Tensor
    texts: Sequence[tuple[int, int]] = ()
    gates: list[Tensor | None] = field(default_factory=list)
    record_layers: int | None = 0
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    layer: int = 0
    alone: bool = False
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    observe: Callable[[int, Tensor, Tensor, float, int | None], None] | None = None
    removal: float = 0.0
    apart: ApartAttention | None = None

    def allowed(self, window: int | None) -> Tensor:
        """[T, N + T] which token each new token of the longest text may see; made once for all layers.

        Texts begin at the same position, so a shorter one reads the upper left part for its length.
        """
        if window not in self.masks:
            start, end = max(self.texts or [(0, len(self.positions))], key=lambda text: text[1] - text[0])
            new = self.positions[start:end]
            seen = new if self.memory is None else torch.cat([self.memory.positions, new])
            mask = torch.ones(len(new), len(seen), dtype=torch.bool, device=seen.device)
            mask[:, len(seen) - len(new) :].tril_()
            if window is not None:
                mask &= new[:, None] - seen[None, :] < window
            if self.alone:
                mask = torch.eye(len(new), dtype=torch.bool, device=seen.device)
            self.masks[window] = mask
        return self.masks[window]


class EverythingRecorded(Exception):
    """Ends a forward pass when the keys and values that it was made for are there."""


_ACTIVE: ContextVar[Reading | None] = ContextVar("gradrerank_reading", default=None)


@contextmanager
def reading(job: Reading) -> Iterator[Reading]:
    """Let the attention layers that run inside this block serve ``job``."""
    token = _ACTIVE.set(job)
    try:
        yield job
    finally:
        _ACTIVE.reset(token)


def register() -> None:
    """Make the gated attention known to transformers under :data:`ATTENTION_NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attention)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in every layer.

    Args:
        module: The attention layer; not used.
        query: [rows, heads, T, key_dim], positions already applied.
        key: [rows, kv_heads, T, key_dim].
        value: [rows, kv_heads, T, value_dim].
        attention_mask: Always None, as no mask is built for this implementation.
        scaling: Factor of the logits.
        sliding_window: How far back a token sees, or None.
        **kwargs: Refused where they would change the numbers, else ignored.

    Returns:
        [rows, T, heads, value_dim], and None for the attention weights.
    """
    job = _ACTIVE.get()
    if job is None:
        raise RuntimeError("the gated view of a model was run outside of a reading")
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"its attention uses {name!r}, which gates do not support")
    layer, job.layer = job.layer, job.layer + 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if job.observe is not None:
        job.observe(layer, query, key, scale, sliding_window)
    if job.record_layers != 0:
        job.keys.append(key)
        job.values.append(value)
        if job.layer == job.record_layers:
            raise EverythingRecorded
    gates = job.gates[layer] if job.gates else None
    if job.apart is not None:
        output = job.apart.attend(layer, query, key, value, scale, sliding_window)
    elif job.memory is None or gates is None:
        output = _plain(query, key, value, job, layer, scale, sliding_window)
    else:
        output = _gated(query, key, value, gates, job.memory, job, layer, scale, sliding_window)
    return output.transpose(1, 2), None


def _plain(
    query: Tensor, key: Tensor, value: Tensor, job: Reading, layer: int, scale: float, window: int | None
) -> Tensor:
    """Causal attention to the memory and to earlier new tokens of the same text, without gates."""
    rows, groups = query.shape[0], query.shape[1] // key.shape[1]
    before = None if job.memory is None else [part.expand(rows, -1, -1, -1) for part in job.memory.layer(layer)]
    outputs = []
    for start, end in job.texts or [(0, query.shape[2])]:
        keys, values = key[:, :, start:end], value[:, :, start:end]
        if before is not None:
            keys, values = torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)
        if groups > 1:
            keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        mask, new = job.allowed(window)[: end - start, : keys.shape[2]], query[:, :, start:end]
        outputs.append(functional.scaled_dot_product_attention(new, keys, values, attn_mask=mask, scale=scale))
    return torch.cat(outputs, dim=2)


def _gated(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gates: Tensor,
    memory: Memory,
    job: Reading,
    layer: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention whose logits towards the memory carry the logarithm of the gates."""
    hidden = None
    if window is not None:
        far = ~job.allowed(window)[:, : len(memory.positions)]
        hidden = far if bool(far.any()) else None
        if len(job.positions) > window:
            raise UnsupportedModelError(f"its attention window of {window} tokens is shorter than the question")
    if hidden is None and not job.removal and is_small(query, key, gates, memory):
        later = ~job.allowed(window)[:, len(memory) :]
        small: Tensor = SmallAttention.apply(  # type: ignore[no-untyped-call]
            query, key, value, gates, memory, layer, scale, later
        )
        return small
    output: Tensor = GatedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, gates, memory, layer, scale, hidden, job.removal
    )
    return output
