r"""Attention with gates, forward and backward, in blocks over the memory.

Each document lies in a cache of keys and values. A token that comes after the documents attends to
all of them, and the attention logits towards the tokens of span s get ``+ log z_s`` (design of the
method: ``z = 1`` leaves the span as it is, ``z = 0`` removes it). With the logits :math:`a_{tj}` of
query token t towards key j, and :math:`z_j` the gate of the span that j belongs to,

    p_tj = z_j exp(a_tj) / Z_t,     Z_t = sum_j z_j exp(a_tj),     o_t = sum_j p_tj v_j

With :math:`D_{tj} = \langle dL/do_t, v_j \rangle` and :math:`\delta_t = \langle dL/do_t, o_t \rangle` the gradients are

    dL/da_tj = p_tj (D_tj - delta_t)          dL/dz_s = sum_{j in s} sum_t exp(a_tj) / Z_t (D_tj - delta_t)

The second needs no division by z, so it holds at z = 0 too. Both are recomputed from the cached keys
in the backward pass: what is kept for it grows with the number of question tokens, not with the
number of document tokens. Normalisers of several blocks are brought together as in online softmax
(Milakov and Gimelshein 2018), so that the weights of one block are all that exists at a time.

A slope says what lowering a gate a little does. Where a span is removed, the others take its place: with
its share :math:`m_{ts} = \sum_{j \in s} p_{tj}` of a head's attention, closing the gate moves o_t by 1 / (1 - m_ts)
times what the slope says, exactly. With ``removal`` c the gradient in a gate is therefore

    sum_t [dL/dz_s]_t / (1 - c m_ts),

the slope at c = 0, what removing the span does to the head at c = 1, and in between no more than
1 / (1 - c) times the slope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradrerank.lm.memory import Block, Memory

# Bytes of the weights of one block: small enough for a processor's cache, and on an accelerator large
# enough that starting a kernel costs little beside running it.
_BLOCK_BYTES = {"cpu": 4 << 20}
_BLOCK_BYTES_ELSEWHERE = 256 << 20
_LEAST_TOKENS = 256


class GatedAttention(torch.autograd.Function):
    """Gated attention with the backward pass of the module's docstring.

    Shapes: R rows, H heads in K groups of G that share keys, T new tokens, B tokens of a block of memory.
    What is as large as a block is laid out [K, R * G * T, B], one matrix product for each group of
    heads, and is worked on in place. New tokens among themselves are [R, K, G, T, T].
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
        removal: float = 0.0,
    ) -> Tensor:
        """Attend; keep the log of the normaliser Z instead of the weights.

        Args:
            ctx: Where autograd keeps what the backward pass needs.
            query: [R, H, T, key_dim], positions already applied.
            key: [R, K, T, key_dim] of the new tokens.
            value: [R, K, T, value_dim] of the new tokens.
            gates: [R, H, S].
            memory: N tokens that every row attends to.
            layer: The layer of memory.
            scale: Factor of the logits.
            hidden: [T, N] where a token of memory is out of sight, or None.
            removal: Between a slope (0) and removing the whole span (1).

        Returns:
            [R, H, T, value_dim].
        """
        shape = query.unflatten(1, (key.shape[1], -1)).shape
        is_open = bool((gates == 1).all())
        near = _own_logits(query, key, scale)
        stacked, wide = _stacked(query * scale, shape), near.dtype
        top: Tensor | None = None
        sums = seen = top
        for block in memory.blocks(_block_tokens(stacked)):
            keys, values = block.layer(layer)
            far = _hide(torch.bmm(stacked, keys.transpose(1, 2)).to(wide), hidden, block, shape)
            if not is_open:
                _by_gates(far, gates, _spans(memory, block), shape, torch.Tensor.add_, torch.log)
            before, top = top, _highest(far, top)
            weights = far.sub_(top).exp_()
            total, mixed = weights.sum(-1, keepdim=True), torch.bmm(weights.to(value.dtype), values).to(wide)
            if before is None or sums is None or seen is None:
                sums, seen = total, mixed
            else:
                shrink = before.sub_(top).exp_()
                sums, seen = sums.mul_(shrink).add_(total), seen.mul_(shrink).add_(mixed)
        if top is None or sums is None or seen is None:
            raise ValueError("a memory without a token cannot be attended to")
        log_z = torch.logaddexp(_unstacked(sums.log().add_(top), shape), near.logsumexp(-1, keepdim=True))
        own = (near - log_z).exp_().to(value.dtype)
        share = (_unstacked(top, shape) - log_z).exp_()
        output = (_unstacked(seen, shape) * share).to(value.dtype) + _mix_own(own, value)
        ctx.save_for_backward(query, key, value, gates, log_z, output, hidden)
        ctx.memory, ctx.layer, ctx.scale, ctx.is_open, ctx.removal = memory, layer, scale, is_open, removal
        return output.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Recompute the weights and reduce them to one number per row, head and span.

        Args:
            ctx: What the forward pass kept.
            grad: [R, H, T, value_dim], dL/do.

        Returns:
            A gradient for each argument of the forward pass, None for those that have none.
        """
        query, key, value, gates, log_z, output, hidden = ctx.saved_tensors
        memory, shape, scale = ctx.memory, output.shape, ctx.scale
        grad, split = grad.reshape(shape), query.unflatten(1, output.shape[1:3])
        delta = (grad.to(log_z.dtype) * output.to(log_z.dtype)).sum(-1, keepdim=True)
        wants_gates, wants_inputs = ctx.needs_input_grad[3], any(ctx.needs_input_grad[:3])
        queries, pulls = _stacked(split * scale, shape), _stacked(grad, shape)
        log_zs, deltas = _stacked(log_z, shape), _stacked(delta, shape)
        per_span = log_z.new_zeros(*gates.shape[:2], memory.n_spans + 1)
        removal = _Removal(log_zs, gates, memory, shape, ctx.removal) if ctx.removal and wants_gates else None
        slope = torch.zeros_like(queries, dtype=log_z.dtype)
        for block in memory.blocks(_block_tokens(queries)):
            keys, values = block.layer(ctx.layer)
            # exp(a) / Z and D - delta, each in the product that makes it.
            ungated = _hide(shifted_product(queries, keys, log_zs), hidden, block, shape).exp_()
            pulled = shifted_product(pulls, values, deltas)
            if removal is not None:
                removal.add(_spans(memory, block), ungated, pulled)
            ungated.mul_(pulled)
            if wants_gates and removal is None:
                per_token = _view(ungated, shape).sum(-2).transpose(0, 1).flatten(1, 2)
                per_span.index_add_(-1, _spans(memory, block), per_token)
            if wants_inputs:
                if not ctx.is_open:
                    _by_gates(ungated, gates, _spans(memory, block), shape, torch.Tensor.mul_, lambda z: z)
                _add_product(slope, ungated, keys)
        if removal is not None:
            per_span = removal.per_span()
        grad_gates = per_span[..., : memory.n_spans] if wants_gates else None
        if not wants_inputs:
            return None, None, None, grad_gates, None, None, None, None, None
        own = (_own_logits(query, key, scale) - log_z).exp_()
        own_slope = (own * (_mix_own(grad, value.transpose(-1, -2)).to(own.dtype) - delta)).to(query.dtype)
        grad_query = ((_unstacked(slope, shape).to(query.dtype) + _mix_own(own_slope, key)) * scale).flatten(1, 2)
        grad_key = _pull_own(own_slope, split) * scale
        grad_value = _pull_own(own.to(grad.dtype), grad)
        return grad_query, grad_key, grad_value, grad_gates, None, None, None, None, None


class _Removal:
    """Adds up, for every new token, what a span has of a head's attention and what its slope is.

    Args:
        like: [K, R * G * T, 1], for its type and device.
        gates: [R, H, S].
        memory: N tokens.
        shape: R, K, G, T and value_dim.
        part: c of the module's docstring.
    """

    def __init__(self, like: Tensor, gates: Tensor, memory: Memory, shape: torch.Size, part: float) -> None:
        self.shape, self.part = shape, part
        self.gates = functional.pad(gates.to(like.dtype), (0, 1), value=1.0)
        self.shares = like.new_zeros(*like.shape[:2], memory.n_spans + 1)
        self.slopes = torch.zeros_like(self.shares)

    def add(self, spans: Tensor, ungated: Tensor, pulled: Tensor) -> None:
        """Add a block of B tokens: exp(a) / Z and D - delta, both [K, R * G * T, B]."""
        self.shares.index_add_(-1, spans, ungated)
        self.slopes.index_add_(-1, spans, ungated * pulled)

    def per_span(self) -> Tensor:
        """[R, H, S + 1], summed over the new tokens."""
        gates = self.gates.unflatten(1, self.shape[1:3])[..., None, :]  # [R, K, G, 1, S + 1]
        left = 1 - self.part * _unstacked(self.shares, self.shape) * gates
        left.clamp_(min=torch.finfo(left.dtype).eps)  # a share may round to all
        steps: Tensor = _unstacked(self.slopes, self.shape) / left
        return steps.sum(-2).flatten(1, 2)


def _block_tokens(stacked: Tensor) -> int:
    """Tokens of a block for [K, R * G * T, a] queries."""
    limit = _BLOCK_BYTES.get(stacked.device.type, _BLOCK_BYTES_ELSEWHERE)
    return max(_LEAST_TOKENS, limit // (4 * stacked.shape[0] * stacked.shape[1]))


def _spans(memory: Memory, block: Block) -> Tensor:
    """[B], the span of every token of a block."""
    return memory.spans[block.start : block.end]


def _highest(logits: Tensor, before: Tensor | None) -> Tensor:
    """[K, R * G * T, 1], the largest logit so far; finite even where every token is hidden."""
    top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    return top if before is None else torch.maximum(top, before)


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


def shifted_product(stacked: Tensor, memory: Tensor, shift: Tensor) -> Tensor:
    """Products of [K, R * G * T, a] with [K, B, a], less [K, R * G * T, 1], at least in float32."""
    other = memory.transpose(1, 2)
    if stacked.dtype == shift.dtype:
        return torch.baddbmm(shift, stacked, other, beta=-1)
    return torch.bmm(stacked, other).to(shift.dtype).sub_(shift)


def _add_product(total: Tensor, weights: Tensor, memory: Tensor) -> None:
    """Add the product of [K, R * G * T, B] with [K, B, a] in place, the sum never narrower than float32."""
    if memory.dtype == total.dtype:
        total.baddbmm_(weights, memory)
    else:
        total.add_(torch.bmm(weights.to(memory.dtype), memory))


def _hide(stacked: Tensor, hidden: Tensor | None, block: Block, shape: torch.Size) -> Tensor:
    """Put minus infinity, in place, where a token of a block is out of a new token's sight."""
    if hidden is not None:
        _view(stacked, shape).masked_fill_(hidden[:, block.start : block.end], -torch.inf)
    return stacked


def _by_gates(
    stacked: Tensor,
    gates: Tensor,
    spans: Tensor,
    shape: torch.Size,
    apply: Callable[[Tensor, Tensor], Tensor],
    transform: Callable[[Tensor], Tensor],
) -> None:
    """Apply the transformed gate of every token of a block in place; tokens without a gate have 1."""
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
    mixed: Tensor = torch.matmul(weights.flatten(2, 3), own).unflatten(2, weights.shape[2:4])
    return mixed


def _pull_own(weights: Tensor, grad: Tensor) -> Tensor:
    """[R, K, G, T, a] transposed times [R, K, G, T, b], summed over G."""
    return torch.matmul(weights.flatten(2, 3).transpose(2, 3), grad.flatten(2, 3))
