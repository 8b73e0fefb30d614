r"""Attention with open gates for the usual call: one question behind some dozens of documents.

The arithmetic is that of :mod:`gradrerank.lm.gated_attention` at z = 1,

    dL/dz_s = sum_{j in s} sum_t p_tj (D_tj - delta_t),

where weights, keys and values of a layer take so little room that they are kept for the backward pass, and
where the new tokens stand behind the documents in one matrix, so that few operations do it all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradrerank.lm.gated_attention import shifted_product
from gradrerank.lm.memory import Memory

# Bytes that one layer may keep.
_KEPT_BYTES = 8 << 20


def is_small(query: Tensor, key: Tensor, gates: Tensor, memory: Memory) -> bool:
    """Whether :class:`SmallAttention` can serve.

    Args:
        query: [R, H, T, key_dim].
        key: [R, K, T, key_dim].
        gates: [R, H, S].
        memory: What the new tokens attend to.
    """
    rows, heads, tokens, _ = query.shape
    each = heads * tokens * max(4, query.element_size()) + 2 * key[0, :, 0].numel() * key.element_size()
    return rows == 1 and each * (len(memory) + tokens) <= _KEPT_BYTES and bool((gates == 1).all())


class SmallAttention(torch.autograd.Function):
    """Attention of one row to a small memory, whose gates are all 1.

    Shapes: H heads in K groups of G that share keys, T new tokens, N tokens of memory; weights are
    [K, G * T, N + T].
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
        later: Tensor,
    ) -> Tensor:
        """Attend and keep the weights.

        Args:
            ctx: Where autograd keeps what the backward pass needs.
            query: [1, H, T, key_dim], positions already applied.
            key: [1, K, T, key_dim] of the new tokens.
            value: [1, K, T, value_dim] of the new tokens.
            gates: [1, H, S], all 1; they are here for their gradient.
            memory: N tokens.
            layer: The layer of memory.
            scale: Factor of the logits.
            later: [T, T] which new token comes after which, and is not seen by it.

        Returns:
            [1, H, T, value_dim].
        """
        kv_heads, tokens = key.shape[1:3]
        keys, values = memory.blocks(len(memory))[0].layer_and(layer, key[0], value[0])
        queries = (query * scale).reshape(kv_heads, -1, query.shape[-1])
        wide = torch.promote_types(query.dtype, torch.float32)
        logits = torch.bmm(queries, keys.transpose(1, 2)).to(wide)
        logits.view(kv_heads, -1, tokens, logits.shape[-1])[..., len(memory) :].masked_fill_(later, -torch.inf)
        weights = logits.softmax(-1)
        output = torch.bmm(weights.to(value.dtype), values).view(1, -1, tokens, values.shape[-1])
        ctx.save_for_backward(queries, keys, values, gates, weights, output)
        ctx.memory, ctx.scale = memory, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradients of the weights to one number per head and span.

        Args:
            ctx: What the forward pass kept.
            grad: [1, H, T, value_dim], dL/do.

        Returns:
            A gradient for each argument of the forward pass, None for those that have none.
        """
        queries, keys, values, gates, weights, output = ctx.saved_tensors
        memory, tokens = ctx.memory, output.shape[2]
        pulls = grad.reshape(len(keys), -1, grad.shape[-1])
        delta = (grad.to(weights.dtype) * output.to(weights.dtype)).sum(-1).reshape(*weights.shape[:2], 1)
        slopes = shifted_product(pulls, values, delta).mul_(weights)
        grad_gates = None
        if ctx.needs_input_grad[3]:
            per_token = slopes.view(gates.shape[1], tokens, -1)[..., : len(memory)].sum(1)
            per_span = weights.new_zeros(gates.shape[1], memory.n_spans + 1).index_add_(-1, memory.spans, per_token)
            grad_gates = per_span[None, :, : memory.n_spans]
        if not any(ctx.needs_input_grad[:3]):
            return None, None, None, grad_gates, None, None, None, None
        narrow = slopes.to(keys.dtype)
        grad_query = (torch.bmm(narrow, keys) * ctx.scale).view(1, -1, tokens, keys.shape[-1])
        grad_key = torch.bmm(narrow[..., len(memory) :].transpose(1, 2), queries)[None]
        grad_value = torch.bmm(weights[..., len(memory) :].to(grad.dtype).transpose(1, 2), pulls)[None]
        return grad_query, grad_key, grad_value, grad_gates, None, None, None, None
