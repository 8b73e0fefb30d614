"""The gradient of the loss in the gates of attention: one forward and one backward pass.

    phi_i = - dL/dz_i    at z = 1, or at another z, or averaged along a path of z

Attention multiplies its unnormalised weights towards document i by z_i (see
:mod:`gradrerank.lm.gates`). At ``steps > 1`` the gradient is averaged at midpoints of the straight
path from 0 to z (integrated gradients, Sundararajan et al. 2017), so that the utilities of all
documents add up to L(0) - L(z), what the documents do together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from gradrerank.documents import SpanUtility
from gradrerank.errors import InvalidArgumentError
from gradrerank.lm.pieces import Pieces, Segmentation, split_into_pieces
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.scorers.heads import check_layers_and_heads, chosen_heads
from gradrerank.validation import check_count, check_number, check_optional_count

if TYPE_CHECKING:
    from gradrerank.lm.memory import Memory


@dataclass(frozen=True, slots=True)
class GatesScorer:
    """Score documents, and pieces of them, by the gradient in their attention gates.

    Args:
        z: The point at which the gradient is taken: 1 is every document as it is, ``"uniform"`` is 1/n
            for each of n documents.
        steps: 1 takes the gradient at z; more average it along the path from 0 to z, with one forward
            and backward pass each.
        layers: Layers whose gates carry the score, None for all. The backward pass stops at the
            lowest of them.
        heads: Heads that carry the score as pairs ``(layer, head)``, None for all of the layers.
        pieces: What has a gate of its own: ``"sentence"``, ``"window"`` (of ``window`` tokens),
            ``"document"``, or a callable from a text to character ranges ``(start, end)``. As long as
            ``best`` is None this changes no score: the gradient in a document's gate is the sum of those
            in the gates of its pieces (the chain rule, at any z that all pieces share).
        window: Tokens of a window.
        best: A document's score is the sum of its ``best`` largest pieces; None sums all of them.
        batch_size: Questions, and points of the path, that pass through the model together.

    Raises:
        InvalidArgumentError: When an argument is out of range.

    Example:
        >>> GatesScorer(pieces="window", window=64).best is None
        True
    """

    z: float | Literal["uniform"] = 1.0
    steps: int = 1
    layers: Sequence[int] | None = None
    heads: Sequence[tuple[int, int]] | None = None
    pieces: Segmentation = "sentence"
    window: int = 32
    best: int | None = None
    batch_size: int = field(default=8, kw_only=True)
    name: ClassVar[str] = "gates"

    def __post_init__(self) -> None:
        """Check every argument that needs no model."""
        if self.z != "uniform":
            check_number("z", self.z, minimum=0.0)
        for name in ("steps", "window", "batch_size"):
            check_count(name, getattr(self, name))
        check_optional_count("best", self.best)
        check_layers_and_heads(self.layers, self.heads)
        if not callable(self.pieces) and self.pieces not in ("document", "window", "sentence"):
            raise InvalidArgumentError(
                f"pieces must be 'document', 'window', 'sentence' or a callable, got {self.pieces!r}"
            )

    def score(self, job: ScoringJob) -> Scores:
        """Score by one gradient, or by the average of ``steps`` of them.

        Returns:
            Utilities in nats of the target's mean loss per unit of z; with the pieces of each document
            where documents are gated in pieces. ``details["loss"]`` is the loss at z, or at the last
            point of the path.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents: their questions pass through the model together."""
        pieces = split_into_pieces(jobs[0].documents, self.pieces, self.window)
        memory = jobs[0].generator.reader.assemble(jobs[0].caches(), pieces.token_spans)
        results = []
        for utilities, loss in self._span_utilities(jobs, memory):
            documents = [self._document_utility([utilities[s] for s in spans]) for spans in pieces.document_spans]
            details = {"loss": loss, "passes": self.steps}
            results.append(Scores(documents, self._explained(pieces, utilities), details))
        return results

    def _span_utilities(self, jobs: Sequence[ScoringJob], memory: Memory) -> list[tuple[list[float], float]]:
        """For each job -dL/dz of every span, summed over the layers and heads that carry the score, and the loss."""
        import torch

        generator = jobs[0].generator
        end = 1 / len(jobs[0].documents) if self.z == "uniform" else float(self.z)
        points = [end] if self.steps == 1 else [end * (k + 0.5) / self.steps for k in range(self.steps)]
        counts = chosen_heads(self.layers, self.heads, generator.n_layers, generator.n_heads)
        layers = counts.any(1).nonzero().flatten().tolist()
        totals = torch.zeros(len(jobs), memory.n_spans, dtype=torch.float64)
        losses = [0.0] * len(jobs)
        # Questions of similar length stand together, so that little is spent on padding.
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].continuation))
        rows = [(i, z) for i in order for z in points]
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            gates = torch.tensor([z for _, z in batch])[:, None].expand(-1, memory.n_spans)
            found = generator.gate_gradients(memory, [jobs[i].continuation for i, _ in batch], gates, layers)
            carried = found.gradients * counts[layers][:, :, None].to(found.gradients)
            slopes = carried.sum((1, 2)).cpu().double()
            totals.index_add_(0, torch.tensor([i for i, _ in batch]), -slopes)
            for (i, _), loss in zip(batch, found.loss.tolist(), strict=True):
                losses[i] = loss
        for job in jobs:
            job.tokens["documents"] += 0
            job.tokens["question"] += len(points) * len(job.continuation)
        scale = 1.0 if self.steps == 1 else end / self.steps
        return list(zip((totals * scale).tolist(), losses, strict=True))

    def _document_utility(self, utilities: list[float]) -> float:
        if self.best is None or not all(map(math.isfinite, utilities)):  # what is no number is not to be passed over
            return float(sum(utilities))
        return float(sum(sorted(utilities, reverse=True)[: self.best]))

    def _explained(self, pieces: Pieces, utilities: list[float]) -> list[list[SpanUtility]]:
        if self.pieces == "document":
            return []
        return [[SpanUtility(*pieces.characters[s], utilities[s]) for s in spans] for spans in pieces.document_spans]
