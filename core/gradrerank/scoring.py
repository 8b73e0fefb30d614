"""From calls to scores: queries over the same documents together, long pools only as far as it pays."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradrerank.context.selection import rank_and_cut
from gradrerank.documents import DroppedDocument
from gradrerank.scorers.base import Scorer, Scores, ScoringJob
from gradrerank.scorers.checking import score_jobs
from gradrerank.sources.pool import same_text

if TYPE_CHECKING:
    from gradrerank.call import Call
    from gradrerank.lm.generator import Generator
    from gradrerank.settings import Settings


def score_calls(
    calls: Iterable[Call], scorer: Scorer, use: Settings, generator: Generator, encoder: Any = None
) -> None:
    """Fill in the scores of every call.

    Calls over the same documents are scored together where the scorer can; with ``max_candidates``
    each is scored on its own.

    Args:
        calls: Calls with at least one document each.
        scorer: The scorer.
        use: The settings.
        generator: The model.
        encoder: The sentence encoder, for scorers that ask for one.
    """
    for group in _same_documents(calls):
        start = time.perf_counter()
        if use.max_candidates is not None:
            for call in group:
                score_as_far_as_it_pays(call, scorer, use, generator, encoder)
        else:
            jobs = [_job(call, len(call.documents), use, generator, encoder) for call in group]
            for call, scores in zip(group, scores_of(scorer, jobs), strict=True):
                call.scores = scores
        share = (time.perf_counter() - start) / len(group)
        for call in group:
            call.watch.add("score", share)


def score_as_far_as_it_pays(
    call: Call, scorer: Scorer, use: Settings, generator: Generator, encoder: Any = None
) -> None:
    """Read a long pool in the order of retrieval until further documents stop being kept.

    The first ``max_candidates`` documents are always read. After that, blocks of a quarter of that
    number are read as long as the block before held a document that would be kept: one in the first
    ``top_n`` with at least ``min_score``, or, where neither is set, one with a positive utility.

    What this guarantees: a document is left unread only when every one of the documents of the block
    before it (in fused retrieval order, at least ``max_candidates // 4``) was read, was compared with
    all others that were read, and would not be kept. What it does not: a relevant document that
    retrieval put behind such a block of useless ones is missed.

    Args:
        call: The call; its candidates are cut to those that were read, the others are in ``unread``.
        scorer: The scorer.
        use: The settings; ``max_candidates`` is set.
        generator: The model.
        encoder: The sentence encoder, for scorers that ask for one.
    """
    total, limit = len(call.documents), use.max_candidates or len(call.documents)
    block, read = max(1, limit // 4), min(limit, total)
    while True:
        call.scores = scores_of(scorer, [_job(call, read, use, generator, encoder)])[0]
        if read == total or not _pays(call.scores, read - block, use):
            break
        read = min(read + block, total)
    call.unread = tuple(
        DroppedDocument(c.document, c.provenance, "max_candidates") for c in call.pool.candidates[read:]
    )
    call.pool = replace(call.pool, candidates=call.pool.candidates[:read])
    call.documents = call.documents[:read]


def _pays(scores: Scores, first_of_block: int, use: Settings) -> bool:
    """Whether the last block that was read holds a document that would be kept."""
    if use.top_n is None and use.min_score is None:
        return any(utility > 0 for utility in scores.utilities[max(first_of_block, 0) :])
    kept = rank_and_cut(scores.utilities, top_n=use.top_n, min_score=use.least_score(scores.utilities)).kept
    return any(index >= first_of_block for index in kept)


def _job(call: Call, n: int, use: Settings, generator: Generator, encoder: Any) -> ScoringJob:
    return ScoringJob(
        call.query,
        call.documents[:n],
        call.goal.continuation,
        generator,
        top_n=use.top_n,
        tokens=call.tokens,
        encoder=encoder,
        cosines=_cosines(call, n) if use.fusion == "auto" else None,
        cosine_weight=use.fusion_weight,
        name=call.name,
    )


def _cosines(call: Call, n: int) -> list[float] | None:
    """Those of the first n candidates, where the choice among sources embedded them."""
    if call.chosen is None:
        return None
    return [call.chosen.cosines[same_text(candidate.document)] for candidate in call.pool.candidates[:n]]


def scores_of(scorer: Scorer, jobs: Sequence[ScoringJob]) -> list[Scores]:
    """Scores of jobs over the same documents, together where the scorer can, and checked."""
    from gradrerank.lm.retrying import naming_lack_of_memory

    n = len(jobs[0].documents)
    with naming_lack_of_memory(f"scorer {scorer.name!r} with {n} documents"):
        return score_jobs(scorer, jobs)


def _same_documents(calls: Iterable[Call]) -> list[list[Call]]:
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        groups.setdefault(tuple((d.ids, d.called, d.own) for d in call.documents), []).append(call)
    return list(groups.values())
