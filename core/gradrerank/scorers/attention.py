r"""Attention as a score: in-context re-ranking (ICR; Chen, Gutierrez and Su, ICLR 2025).

With :math:`p^{lh}_{tj}` the attention of new token t towards token j of document i, in head h of layer l,

    s_j(q) = sum_l sum_h  1/|q| sum_{t in q} p^{lh}_{tj}          attention that the query gives token j
    c_j    = s_j(q) - s_j(q0)                                     calibrated by a content-free query q0
    phi_i  = sum_{j in i, kept} c_j                               kept: c_j >= mean_i(c) - 2 std_i(c)

A token that loses far more attention than the others of its document is abnormal: it drew the empty
query, and says nothing of this one. Mean over query tokens, sum over layers and heads, "N/A" as q0 and
the filter with its factor 2 and the sample deviation are those of the authors' published code
(OSU-NLP-Group/In-Context-Reranking, strategy ``masked_NA_calibration``). What differs here is that
documents are encoded on their own, so that none profits from its place, and have no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import InvalidArgumentError
from gradrerank.lm.prompt import Continuation
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.scorers.heads import check_layers_and_heads, chosen_heads
from gradrerank.validation import check_choice, check_count, check_number, is_blank

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.memory import Memory


@dataclass(frozen=True, slots=True)
class AttentionScorer:
    """Score documents by the attention that the query gives them, less that of a content-free query.

    It reads the query whatever the target is, and needs no backward pass. A utility is signed as
    everywhere, but it is attention and no loss: positive means that the query draws more attention to
    the document than a query without content does, not that the document lowers a loss. Its unit is
    attention weight, summed over layers and heads; it cannot be compared with nats.

    Args:
        layers: Layers that count, None for all. The pass ends at the highest of them.
        heads: Heads that count as pairs ``(layer, head)``, None for all of the layers.
        content_free: The query that the model's habits are read from.
        readers: Tokens whose attention counts: ``"query"`` for those of the query itself, ``"prompt"``
            for all after the documents, with the instruction before the query and the opening of the
            answer after it, as in the authors' code.
        outliers: Tokens of a document that lie more than this many standard deviations below its mean
            are left out; None keeps all.
        batch_size: Questions that pass through the model together.

    Raises:
        InvalidArgumentError: When an argument is out of range.

    Example:
        >>> AttentionScorer(layers=range(8, 24)).content_free
        'N/A'
    """

    layers: Sequence[int] | None = None
    heads: Sequence[tuple[int, int]] | None = None
    content_free: str = "N/A"
    readers: Literal["query", "prompt"] = "query"
    outliers: float | None = 2.0
    batch_size: int = field(default=8, kw_only=True)
    name: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        """Check every argument that needs no model."""
        check_layers_and_heads(self.layers, self.heads)
        if not isinstance(self.content_free, str) or is_blank(self.content_free):
            raise InvalidArgumentError(f"content_free must hold some text, got {self.content_free!r}")
        check_choice("readers", self.readers, ("query", "prompt"))
        if self.outliers is not None:
            check_number("outliers", self.outliers, minimum=0.0)
        check_count("batch_size", self.batch_size)

    def score(self, job: ScoringJob) -> Scores:
        """Score by two forward passes that share one batch: the query and the content-free one.

        Returns:
            Utilities in attention weight; ``details`` holds ``"query_attention"`` and
            ``"content_free_attention"`` of each document before the filter, ``"filtered"``, the number of
            tokens left out, and ``"passes"``.

        Raises:
            InvalidArgumentError: When layers or heads name one that the model has not.
            ContextOverflowError: When documents and queries do not fit the model's context.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents: the content-free one is read once for all."""
        generator, documents = jobs[0].generator, jobs[0].documents
        baseline, *asked = [self._row(generator, query) for query in [self.content_free, *(job.query for job in jobs)]]
        # Equal rows are read once, so that equal queries get equal numbers to the last digit.
        readers = dict(reversed([(baseline, jobs[0]), *zip(asked, jobs, strict=True)]))
        for ids, _ in readers:
            generator.check_fits(documents, _as_read(ids), [str(i) for i in range(len(documents))])
        memory = generator.reader.assemble(jobs[0].caches())
        mass = self._masses(generator, memory, list(readers))
        for (ids, _), job in readers.items():
            job.tokens["question"] += len(ids)
        spans = _token_ranges(jobs[0], len(generator.layout.prefix))
        return [self._scores(mass[row], mass[baseline], spans) for row in asked]

    def _row(self, generator: Generator, query: str) -> _Row:
        """Token ids after the documents, and the first one whose attention counts."""
        asked = generator.layout.query_continuation(query)
        if self.readers == "query":
            return asked.question + asked.target, len(asked.question)
        return generator.layout.answer_continuation(query, self.content_free).question, 0

    def _masses(self, generator: Generator, memory: Memory, rows: Sequence[_Row]) -> dict[_Row, NDArray[np.float64]]:
        """For each row the attention that it gives every token of memory."""
        from gradrerank.lm.attending import attention_mass
        from gradrerank.lm.retrying import in_batches

        heads = chosen_heads(self.layers, self.heads, generator.n_layers, generator.n_heads)
        # Questions of similar length stand together, so that little is spent on padding.
        ordered = sorted(rows, key=lambda row: len(row[0]))

        def read(batch: Sequence[_Row]) -> list[NDArray[np.float64]]:
            mass = attention_mass(generator, memory, [ids for ids, _ in batch], [first for _, first in batch], heads)
            return list(mass.cpu().double().numpy())

        masses = in_batches(ordered, self.batch_size, read, f"a question behind {len(memory)} tokens of documents")
        return dict(zip(ordered, masses, strict=True))

    def _scores(self, query: NDArray[np.float64], baseline: NDArray[np.float64], spans: Sequence[slice]) -> Scores:
        calibrated = [query[span] - baseline[span] for span in spans]
        kept = [tokens[self._normal(tokens)] for tokens in calibrated]
        details = {
            "query_attention": [float(query[span].sum()) for span in spans],
            "content_free_attention": [float(baseline[span].sum()) for span in spans],
            "filtered": sum(map(len, calibrated)) - sum(map(len, kept)),
            "passes": 2,
        }
        return Scores([float(tokens.sum()) for tokens in kept], details=details)

    def _normal(self, tokens: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which tokens of one document count."""
        if self.outliers is None or len(tokens) < 2 or not np.isfinite(tokens).all():
            return np.ones(len(tokens), dtype=bool)
        return np.asarray(tokens - tokens.mean() >= -self.outliers * tokens.std(ddof=1))


_Row = tuple[tuple[int, ...], int]


def _as_read(ids: tuple[int, ...]) -> Continuation:
    """Ids of which all are read, the last one too."""
    return Continuation(ids, ids[-1:])


def _token_ranges(job: ScoringJob, first: int) -> list[slice]:
    """Where in memory the title and text of every document are; the separator after it is not the document's."""
    ranges = []
    for document in job.documents:
        ranges.append(slice(first, first + document.body_start + len(document.body)))
        first += len(document)
    return ranges
