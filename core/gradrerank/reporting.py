"""From decisions to the result that a user reads: ranked documents, cut ones, one report a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradrerank.documents import DroppedDocument, RankedDocument, SourceReport, SpanUtility, copied

if TYPE_CHECKING:
    from gradrerank.context.fusion import FinalScores
    from gradrerank.context.selection import Selection
    from gradrerank.lm.prompt import DocumentTokens
    from gradrerank.sources.combination import ChosenSources
    from gradrerank.sources.pool import Candidate, Pool


def ranked_documents(
    selection: Selection,
    candidates: Sequence[Candidate],
    documents: Sequence[DocumentTokens],
    final: FinalScores,
    spans: Sequence[Sequence[SpanUtility]],
) -> tuple[RankedDocument, ...]:
    """The documents that are kept, best first.

    Args:
        selection: Which of the n candidates are kept.
        candidates: n candidates.
        documents: The same n as the model read them.
        final: Their final scores.
        spans: Utilities of their pieces, or nothing.

    Returns:
        Ranked documents with copies of the caller's metadata.
    """
    return tuple(
        RankedDocument(
            text=candidates[i].text,
            id=candidates[i].document.id,
            title=candidates[i].title,
            metadata=copied(candidates[i].document.metadata),
            score=final.scores[i],
            rank=rank,
            provenance=candidates[i].provenance,
            truncated=documents[i].truncated,
            kept=documents[i].kept,
            spans=tuple(spans[i]) if spans else (),
            scores=final.stages[i],
        )
        for rank, i in enumerate(selection.kept, start=1)
    )


def cut_documents(
    selection: Selection, candidates: Sequence[Candidate], final: FinalScores
) -> tuple[DroppedDocument, ...]:
    """The documents that were scored and cut, with the reason."""
    return tuple(
        DroppedDocument(candidates[i].document, candidates[i].provenance, reason, final.scores[i])
        for i, reason in selection.dropped
    )


def source_reports(
    pool: Pool, selected: Sequence[str], chosen: ChosenSources | None, ranked: Sequence[RankedDocument]
) -> tuple[SourceReport, ...]:
    """One report for each source: chosen ones in the order of choice, then the others by name.

    Args:
        pool: What the sources handed over.
        selected: Names of the sources whose documents were read.
        chosen: The choice among them, or None where none was made.
        ranked: The final ranking.
    """
    found = Counter(name for document in ranked for name in document.sources)
    return tuple(
        SourceReport(
            name=name,
            selected=name in selected,
            gain=None if chosen is None else chosen.gains.get(name),
            relevance=None if chosen is None else chosen.relevance.get(name),
            n_documents=pool.n_documents[name],
            n_kept=found[name],
        )
        for name in [*selected, *(n for n in pool.n_documents if n not in selected)]
    )
