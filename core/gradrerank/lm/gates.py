r"""Attention with gates: where the model reads the documents.

Each document lies in a cache of keys and values. A token that comes after the documents attends to
all of them, and the attention logits towards the tokens of span s get ``+ log z_s`` (design of the
method: ``z = 1`` leaves the span as it is, ``z = 0`` removes it). With the logits :math:`a_{tj}` of
query token t towards key j, and :math:`z_j` the gate of the span that j belongs to,

    p_tj = z_j exp(a_tj) / Z_t,     Z_t = sum_j z_j exp(a_tj),     o_t = sum_j p_tj v_j

With :math:`D_{tj} = \langle dL/do_t, v_j \rangle` and :math:`\delta_t = \langle dL/do_t, o_t \rangle` the gradients are

    dL/da_tj = p_tj (D_tj - delta_t)          dL/dz_s = sum_{j in s} sum_t exp(a_tj) / Z_t (D_tj - delta_t)

The second needs no division by z, so it holds at z = 0 too. Both are recomputed from the cached keys
in the backward pass: what is kept for it grows with the number of question tokens, not with the
number of document tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradrerank.errors import UnsupportedModelError
from gradrerank.lm.kv_store import DocumentCache

ATTENTION_NAME = "gradrerank"
# Arguments of attention that would change the numbers and that the gates do not know.
_REFUSED = ("softcap", "s_aux", "sinks")


@dataclass(slots=True)
class Memory:
    """Keys and values that every row of a batch attends to: prefix and documents.

    Args:
        parts: Caches that lie side by side, N tokens together. One part is read as it is; several are
            joined layer by layer when they are read, so that a large memory is never held twice.
        positions: [N], the position that each token was encoded at.
        spans: [N], the span that each token belongs to; ``n_spans`` for tokens without a gate.
        n_spans: Number of gated spans S.
    """

    parts: Sequence[DocumentCache]
    positions: Tensor
    spans: Tensor
    n_spans: int

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys [kv_heads, N, key_dim] and values [kv_heads, N, value_dim] of one layer."""
        if len(self.parts) == 1:
            return self.parts[0].keys[index], self.parts[0].values[index]
        keys = torch.cat([part.keys[index] for part in self.parts], dim=1)
        return keys, torch.cat([part.values[index] for part in self.parts], dim=1)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.parts[0].keys)


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
    if job.record_layers != 0:
        job.keys.append(key)
        job.values.append(value)
        if job.layer == job.record_layers:
            raise EverythingRecorded
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    gates = job.gates[layer] if job.gates else None
    if job.memory is None or gates is None:
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
    output: Tensor = _GatedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, gates, memory, layer, scale, hidden
    )
    return output


class _GatedAttention(torch.autograd.Function):
    """Gated attention with the backward pass of the module's docstring.

    Shapes: R rows, H heads in K groups of G that share keys, T new tokens, N tokens of memory. What is
    as large as the memory is laid out [K, R * G * T, N], one matrix product for each group of heads, and
    is worked on in place. New tokens among themselves are [R, K, G, T, T].
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        gates: Tensor,
        memory: Memory,
        layer: int,
        scale: float,
        hidden: Tensor | None,
    ) -> Tensor:
        """Attend; keep the log of the normaliser Z instead of the weights."""
        memory_keys, memory_values = memory.layer(layer)
        shape = query.unflatten(1, (key.shape[1], -1)).shape
        is_open = bool((gates == 1).all())
        near = _own_logits(query, key, scale)
        far = _hide(
            torch.bmm(_stacked(query * scale, shape), memory_keys.transpose(1, 2)).to(near.dtype), hidden, shape
        )
        if not is_open:
            _by_gates(far, gates, memory.spans, shape, torch.Tensor.add_, torch.log)
        top = far.amax(-1, keepdim=True).clamp_(min=torch.finfo(far.dtype).min)
        weights = far.sub_(top).exp_()
        log_far = _unstacked(weights.sum(-1, keepdim=True).log_().add_(top), shape)
        log_z = torch.logaddexp(log_far, near.logsumexp(-1, keepdim=True))
        own = (near - log_z).exp_().to(value.dtype)
        seen = _unstacked(torch.bmm(weights.to(value.dtype), memory_values), shape)
        share = (_unstacked(top, shape) - log_z).exp_().to(value.dtype)
        output = seen * share + _mix_own(own, value)
        ctx.save_for_backward(query, key, value, gates, log_z, output, hidden)
        ctx.memory, ctx.layer, ctx.scale, ctx.is_open = memory, layer, scale, is_open
        return output.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Recompute the weights and reduce them to one number per row, head and span."""
        query, key, value, gates, log_z, output, hidden = ctx.saved_tensors
        (memory_keys, memory_values), spans = ctx.memory.layer(ctx.layer), ctx.memory.spans
        shape, wide = output.shape, log_z.dtype
        grad, split = grad.reshape(shape), query.unflatten(1, shape[1:3])
        delta = (grad.to(wide) * output.to(wide)).sum(-1, keepdim=True)

        # exp(a) / Z and D - delta, each in the product that makes it.
        pull = _shifted_product(grad, memory_values, delta, shape)
        ungated = _shifted_product(split * ctx.scale, memory_keys, log_z, shape)
        _hide(ungated, hidden, shape).exp_().mul_(pull)
        grad_gates = None
        if ctx.needs_input_grad[3]:
            per_token = _view(ungated, shape).sum(-2).transpose(0, 1).flatten(1, 2)
            grad_gates = _per_span(per_token, spans, ctx.memory.n_spans)

        grad_query = grad_key = grad_value = None
        if any(ctx.needs_input_grad[:3]):
            if not ctx.is_open:
                _by_gates(ungated, gates, spans, shape, torch.Tensor.mul_, lambda z: z)
            own = (_own_logits(query, key, ctx.scale) - log_z).exp_()
            own_slope = (own * (_mix_own(grad, value.transpose(-1, -2)).to(wide) - delta)).to(query.dtype)
            slope = _unstacked(torch.bmm(ungated.to(query.dtype), memory_keys), shape) + _mix_own(own_slope, key)
            grad_query = (slope * ctx.scale).flatten(1, 2)
            grad_key = torch.einsum("rkgts,rkgtd->rksd", own_slope, split) * ctx.scale
            grad_value = torch.einsum("rkgts,rkgtd->rksd", own.to(grad.dtype), grad)
        return grad_query, grad_key, grad_value, grad_gates, None, None, None, None


def _stacked(part: Tensor, shape: torch.Size) -> Tensor:
    """[R, H, T, a] or [R, K, G, T, a] as [K, R * G * T, a]."""
    rows, kv_heads, groups, tokens, _ = shape
    split = part.reshape(rows, kv_heads, groups, tokens, -1)
    return split.transpose(0, 1).reshape(kv_heads, rows * groups * tokens, -1)


def _view(stacked: Tensor, shape: torch.Size) -> Tensor:
    """[K, R * G * T, a] seen as [K, R, G, T, a]."""
    rows, kv_heads, groups, tokens, _ = shape
    return stacked.view(kv_heads, rows, groups, tokens, -1)


def _unstacked(stacked: Tensor, shape: torch.Size) -> Tensor:
    """[K, R * G * T, a] as [R, K, G, T, a]."""
    return _view(stacked, shape).transpose(0, 1)


def _shifted_product(part: Tensor, memory: Tensor, shift: Tensor, shape: torch.Size) -> Tensor:
    """Products of [R, K, G, T, a] with [K, N, a], less [R, K, G, T, 1]: [K, R * G * T, N], at least float32."""
    stacked, other, wide = _stacked(part, shape), memory.transpose(1, 2), shift.dtype
    if stacked.dtype == wide:
        return torch.baddbmm(_stacked(shift, shape), stacked, other, beta=-1)
    return torch.bmm(stacked, other).to(wide).sub_(_stacked(shift, shape))


def _hide(stacked: Tensor, hidden: Tensor | None, shape: torch.Size) -> Tensor:
    """Put minus infinity, in place, where a token of memory is out of a new token's sight."""
    if hidden is not None:
        _view(stacked, shape).masked_fill_(hidden, -torch.inf)
    return stacked


def _by_gates(
    stacked: Tensor,
    gates: Tensor,
    spans: Tensor,
    shape: torch.Size,
    apply: Callable[[Tensor, Tensor], Tensor],
    transform: Callable[[Tensor], Tensor],
) -> None:
    """Apply the transformed gate of every token of memory in place; tokens without a gate have 1."""
    with_one = transform(functional.pad(gates.to(stacked.dtype), (0, 1), value=1.0))
    spread = with_one[..., spans].unflatten(1, shape[1:3]).transpose(0, 1).unsqueeze(-2)
    apply(_view(stacked, shape), spread)


def _own_logits(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """[R, K, G, T, T] causal logits among the new tokens, at least in float32."""
    logits = _mix_own(query.unflatten(1, (key.shape[1], -1)) * scale, key.transpose(-1, -2))
    logits = logits.to(torch.promote_types(query.dtype, torch.float32))
    later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(later, -torch.inf)


def _mix_own(weights: Tensor, own: Tensor) -> Tensor:
    """[R, K, G, T, a] times [R, K, a, b]."""
    return torch.matmul(weights, own.unsqueeze(2))


def _per_span(per_token: Tensor, spans: Tensor, n_spans: int) -> Tensor:
    """[R, H, N] summed over the tokens of each span: [R, H, S]."""
    sums = per_token.new_zeros(*per_token.shape[:-1], n_spans + 1)
    return sums.index_add_(-1, spans, per_token)[..., :n_spans]
