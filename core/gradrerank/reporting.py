"""From decisions to the result that a user reads: ranked documents, cut ones, one report a source."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradrerank.documents import DroppedDocument, RankedDocument, SourceReport, SpanUtility, copied
from gradrerank.errors import NoSignalWarning
from gradrerank.explaining import stripped

if TYPE_CHECKING:
    from gradrerank.call import Call
    from gradrerank.context.fusion import FinalScores
    from gradrerank.context.selection import Selection
    from gradrerank.lm.prompt import DocumentTokens
    from gradrerank.selecting import Context
    from gradrerank.settings import Settings
    from gradrerank.sources.pool import Candidate


def ranked_documents(
    context: Context,
    candidates: Sequence[Candidate],
    documents: Sequence[DocumentTokens],
    final: FinalScores,
    spans: Sequence[Sequence[SpanUtility]],
) -> tuple[RankedDocument, ...]:
    """The documents that are kept, in the order in which they will stand.

    Args:
        context: Which of the n candidates are kept, of which text how much, and in which order.
        candidates: n candidates.
        documents: The same n as the model read them.
        final: Their final scores.
        spans: Utilities of their pieces, or nothing.

    Returns:
        Ranked documents with copies of the caller's metadata, and pieces without white space around them.
    """
    ranks = {i: rank for rank, i in enumerate(context.selection.kept, start=1)}
    return tuple(
        RankedDocument(
            text=candidates[i].text,
            id=candidates[i].document.id,
            title=candidates[i].title,
            metadata=copied(candidates[i].document.metadata),
            score=final.scores[i],
            rank=ranks[i],
            provenance=candidates[i].provenance,
            truncated=documents[i].truncated,
            kept=documents[i].kept,
            spans=tuple(_trimmed(candidates[i].text, span) for span in spans[i]) if spans else (),
            scores=final.stages[i],
            excerpts=tuple(context.excerpts[i]),
        )
        for i in context.arranged
    )


def _trimmed(text: str, span: SpanUtility) -> SpanUtility:
    """A piece without the white space at its edges; one that is nothing else stays as it is."""
    start, end = stripped(text, span.start, span.end)
    return SpanUtility(start, end, span.score) if start < end else span


def cut_documents(
    selection: Selection, candidates: Sequence[Candidate], final: FinalScores
) -> tuple[DroppedDocument, ...]:
    """The documents that were scored and cut, with the reason."""
    return tuple(
        DroppedDocument(candidates[i].document, candidates[i].provenance, reason, final.scores[i])
        for i, reason in selection.dropped
    )


def source_reports(call: Call, selected: Sequence[str], ranked: Sequence[RankedDocument]) -> tuple[SourceReport, ...]:
    """One report for each source: chosen ones in the order of choice, then the others by name.

    Args:
        call: The query with what its sources handed over, the choice among them, and what they contributed.
        selected: Names of the sources that were chosen.
        ranked: The final ranking.
    """
    found = Counter(name for document in ranked for name in document.sources)
    chosen, credit, n_documents = call.chosen, call.contributions, call.pool.n_documents
    cosines = call.agreement.cosines if call.agreement else {}
    return tuple(
        SourceReport(
            name=name,
            selected=name in selected,
            gain=None if chosen is None else chosen.gains.get(name),
            relevance=None if chosen is None else chosen.relevance.get(name),
            n_documents=n_documents[name],
            n_kept=found[name],
            utility=credit[name].utility if name in credit else None,
            share=credit[name].share if name in credit else None,
            agreement=cosines.get(name, {}),
        )
        for name in [*selected, *(n for n in n_documents if n not in selected)]
    )


def warn_of_silence(call: Call, use: Settings, scorer: str) -> None:
    """Warn where something that was to tell the documents apart said nothing of any of them.

    Args:
        call: The query with its scores.
        use: The settings.
        scorer: Name of the scorer.
    """
    if len(call.scores.utilities) > 1 and not any(call.scores.utilities):
        warnings.warn(
            f"scorer {scorer!r} gave every document exactly 0, so the retrieval order stands; is the model's attention "
            "to the documents cut off?",
            NoSignalWarning,
            stacklevel=3,
        )
    found = (p for candidate in call.pool.candidates for p in candidate.provenance)
    if use.fusion == "score" and use.fusion_weight > 0 and all(p.score is None for p in found):
        warnings.warn(
            "fusion='score' adds nothing, since no source gave any document a score; fusion='rrf' takes the ranks",
            NoSignalWarning,
            stacklevel=3,
        )
