r"""How much new tokens attend to every token of memory.

With the attention weights :math:`p^{lh}_{tj}` of new token t towards token j of memory, in head h of
layer l, and the tokens Q of a row that are asked for,

    m_j = sum_l sum_h  1/|Q|  sum_{t in Q} p^{lh}_{tj}

The weights are computed again from queries and keys, layer by layer and in blocks over the memory,
and reduced at once: no layer's weights are ever held as a whole. The pass ends with the queries of
the highest layer that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradrerank.lm.gates import Reading

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.memory import Block, Memory

# Bytes of the weights of one block, in all rows and heads.
_BLOCK_BYTES = 16 << 20


def attention_mass(
    generator: Generator, memory: Memory, rows: Sequence[Sequence[int]], first: Sequence[int], heads: Tensor
) -> Tensor:
    """Attention from the tokens of each row to every token of memory, by one forward pass.

    Args:
        generator: The frozen model.
        memory: N tokens that every row reads.
        rows: Token ids of R rows, at least one each; they do not see each other.
        first: For each row the index of its first token whose attention counts; all after it count too.
        heads: [layers, heads], true where a head counts; at least one is.

    Returns:
        [R, N] in float32 or wider: the mean over the row's tokens and the sum over layers and heads.
    """
    device, length = generator.device, max(map(len, rows))
    ids, shares = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length)
    for i, (row, start) in enumerate(zip(rows, first, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        shares[i, start : len(row)] = 1 / (len(row) - start)
    # Whoever is masked out of a row reads nothing: padding on the right is not seen by what is before it.
    positions = memory.positions.max() + 1 + torch.arange(length, device=device)
    wide = generator.engine.wide
    seen = _Mass(memory, positions, min(first), shares.to(device, wide), heads)
    job = Reading(
        memory=memory,
        positions=positions,
        gates=[torch.ones(len(rows), generator.n_heads, memory.n_spans, dtype=wide, device=device)] * len(heads),
        record_layers=1 + int(heads.any(1).nonzero().max()),
        observe=seen.add,
    )
    with generator.exact_mode(grad=False):
        seen.total = torch.zeros(len(rows), len(memory.positions), dtype=wide, device=device)
        generator.engine.record(ids.to(device), job)
    return seen.total


@dataclass(slots=True)
class _Mass:
    """Adds up what the layers of one forward pass show.

    Args:
        memory: N tokens.
        positions: [T], positions of the new tokens.
        start: New tokens before this one count in no row.
        shares: [R, T], weight of each new token; 0 where it does not count.
        heads: [layers, heads], true where a head counts.
        total: [R, N], the sum so far.
    """

    memory: Memory
    positions: Tensor
    start: int
    shares: Tensor
    heads: Tensor
    total: Tensor = torch.empty(0)

    def add(self, layer: int, query: Tensor, key: Tensor, scale: float, window: int | None) -> None:
        """Add one layer; see :attr:`gradrerank.lm.gates.Reading.observe` for the arguments."""
        if not bool(self.heads[layer].any()):
            return
        wide, kv_heads = self.shares.dtype, key.shape[1]
        # [R, K, G, T', key_dim]: heads in groups that share keys, and only tokens that count.
        asking = (query[:, :, self.start :].to(wide) * scale).unflatten(1, (kv_heads, -1))
        own = asking @ key.to(wide).transpose(-1, -2)[:, :, None]
        log_z = own.masked_fill_(~self._own_sight(window), -torch.inf).logsumexp(-1)
        blocks = self.memory.blocks(max(256, _BLOCK_BYTES // (asking[..., 0].numel() * own.element_size())))
        logits = torch.empty(0)
        for block in blocks:
            logits = self._logits(asking, layer, block, window)
            log_z = torch.logaddexp(log_z, logits.logsumexp(-1))
        # The weight of a token and head is put into the exponent, so that one subtraction does for both.
        counts = self.heads[layer].to(wide).to(log_z.device).view(kv_heads, -1, 1)
        shift = log_z - (self.shares[:, None, None, self.start :] * counts).log()
        for block in blocks:
            if len(blocks) > 1:
                logits = self._logits(asking, layer, block, window)
            self.total[:, block.start : block.end] += logits.sub_(shift[..., None]).exp_().sum((1, 2, 3))

    def _logits(self, asking: Tensor, layer: int, block: Block, window: int | None) -> Tensor:
        """[R, K, G, T', B] logits towards a block of memory."""
        keys = block.layer(layer)[0].to(asking.dtype)
        logits: Tensor = (asking.flatten(2, 3) @ keys.transpose(-1, -2)).view(*asking.shape[:-1], -1)
        if window is not None:
            ago = self.positions[self.start :, None] - self.memory.positions[None, block.start : block.end]
            logits.masked_fill_(ago >= window, -torch.inf)
        return logits

    def _own_sight(self, window: int | None) -> Tensor:
        """[T', T] which new token each new token that counts may see."""
        ago = self.positions[self.start :, None] - self.positions[None]
        return ago >= 0 if window is None else (ago >= 0) & (ago < window)
