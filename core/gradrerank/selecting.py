"""From scores to the documents that are kept, in the order in which they belong into the prompt.

The rules apply in this order:

1. ``min_score``: what lies below is out, whatever else is asked for.
2. ``compress``: of each document only the sentences that help are placed; they are what is counted.
3. The floors of ``per_source`` are filled with the best documents of their sources, as far as ``top_n``, the
   limits of ``per_source`` and ``token_budget`` allow. A document that several sources found counts for each of
   their floors, and takes one place.
4. ``selection`` says which of the others it would take, and they are taken one by one within ``top_n``, the
   limits of ``per_source`` and ``token_budget``.
5. ``order`` arranges what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradrerank.context.choosers import as_chooser
from gradrerank.context.choosing import ChoiceJob, choose
from gradrerank.context.compression import helpful_ranges
from gradrerank.context.limits import Limits
from gradrerank.context.ordering import arrange
from gradrerank.context.prompt_tokens import prompt_tokens
from gradrerank.context.selection import Selection, rank_and_cut
from gradrerank.documents import Document, RenderedDocument, cut_out, placed
from gradrerank.sources.embedding import Encoder, embed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gradrerank.call import Call
    from gradrerank.lm.generator import Generator
    from gradrerank.settings import Settings

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Context:
    """What is kept for the prompt.

    Args:
        selection: Kept candidates, best first, and the others with the reason.
        arranged: The kept candidates in the order in which they will stand.
        excerpts: For each candidate the ranges of its text that are placed; none for all of it.
        tokens: Tokens that the kept documents take, where they were counted.
    """

    selection: Selection
    arranged: tuple[int, ...]
    excerpts: Sequence[Ranges]
    tokens: int | None


def select_documents(
    call: Call, scores: Sequence[float], use: Settings, generator: Generator, encoder: Encoder
) -> Context:
    """Choose, compress and arrange, by the rules at the top of this module.

    Args:
        call: The query with its n candidates.
        scores: Their final scores.
        use: The settings.
        generator: The scoring model, whose tokenizer counts where the caller brings none.
        encoder: Sentence encoder, for ``selection="mmr"``.
    """
    ranked = rank_and_cut(scores, top_n=None, min_score=use.least_score(scores))
    documents = [candidate.document for candidate in call.pool.candidates]
    excerpts = _excerpts(call, documents, generator) if use.compress else [()] * len(documents)
    texts = [_as_placed(documents[i], excerpts[i]) for i in ranked.kept]
    job = _choice_job(call, scores, ranked.kept, texts, use, generator, encoder)
    choice = choose(as_chooser(use.selection, use.mmr_lambda), job)
    left_out = tuple((i, choice.reasons[k]) for k, i in enumerate(ranked.kept) if k in choice.reasons)
    return Context(
        selection=Selection(tuple(ranked.kept[k] for k in choice.kept), (*left_out, *ranked.dropped)),
        arranged=tuple(ranked.kept[k] for k in arrange(choice.kept, use.order, _homes(job.sources))),
        excerpts=excerpts,
        tokens=job.limits.tokens(choice.kept, None) if use.counts_tokens else None,
    )


def _choice_job(
    call: Call,
    scores: Sequence[float],
    ranked: Sequence[int],
    texts: Sequence[str],
    use: Settings,
    generator: Generator,
    encoder: Encoder,
) -> ChoiceJob:
    """The ranking with its bounds."""
    candidates = [call.pool.candidates[i] for i in ranked]
    sources = [candidate.sources for candidate in candidates]
    names = [candidate.label for candidate in candidates]
    tokens = prompt_tokens(texts, use.token_counter, generator, names) if use.counts_tokens else None
    counted = tokens if use.token_budget is not None else None

    def together(kept: Sequence[int], limit: int | None) -> int:
        return 0 if tokens is None else tokens.together(arrange(kept, use.order, _homes(sources)), limit)

    limits = Limits(sources, use.top_n, call.per_source, use.token_budget, together)
    return ChoiceJob(
        query=call.query,
        texts=texts,
        scores=[scores[i] for i in ranked],
        sources=sources,
        costs=[0 if counted is None else counted.alone(k) for k in range(len(texts))],
        slack=0 if counted is None else counted.separator,
        limits=limits,
        required=limits.floors(),
        **_on_demand(call, ranked, generator, encoder),
    )


def _homes(sources: Sequence[Sequence[str]]) -> list[str]:
    """The source that each document stands with: the one that gave it the best rank."""
    return [names[0] for names in sources]


def _on_demand(call: Call, ranked: Sequence[int], generator: Generator, encoder: Encoder) -> dict[str, Any]:
    """What costs time and only some choosers want."""
    places = list(ranked)

    def utilities() -> NDArray[np.float64]:
        return call.token_utilities(generator)[:, places]

    def vectors() -> NDArray[np.float64]:
        return embed(encoder, [call.pool.candidates[i].text for i in places])

    return {"token_utilities": utilities, "vectors": vectors}


def _excerpts(call: Call, documents: Sequence[Document], generator: Generator) -> list[Ranges]:
    """The helpful sentences of every document, by the scorer's own pieces where it has looked inside."""
    spans = call.scores.spans
    if not spans:
        from gradrerank.scorers.gates import GatesScorer

        spans = GatesScorer(pieces="sentence").score(call.job(generator)).spans
    return [helpful_ranges(document, own) for document, own in zip(documents, spans, strict=True)]


def _as_placed(document: Document, ranges: Ranges) -> str:
    if isinstance(document, RenderedDocument):
        return document.render(cut_out(document.text, ranges or [document.own]))
    return placed(document.title, cut_out(document.text, ranges))
