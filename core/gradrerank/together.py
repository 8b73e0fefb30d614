"""Ranking jobs that came together: those with the same settings go through the model together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradrerank.documents import Document, RerankResult
    from gradrerank.reranker import GradReranker


@dataclass(frozen=True, slots=True)
class RankJob:
    """One call of :meth:`GradReranker.rerank`.

    Args:
        query: The query.
        sources: Documents by source name.
        settings: Settings for this call.
    """

    query: str
    sources: Mapping[str, Sequence[Document]]
    settings: Mapping[str, Any] = field(default_factory=dict)


def rank_together(reranker: GradReranker, jobs: Sequence[RankJob]) -> list[RerankResult | Exception]:
    """Do several jobs, those with equal settings by :meth:`GradReranker.rerank_batch`.

    Args:
        reranker: The reranker.
        jobs: The jobs.

    Returns:
        For each job its result, or the exception that it alone would have raised.
    """
    results: dict[int, RerankResult | Exception] = {}
    for group in _equal_settings(jobs):
        results.update(zip(group, _batch(reranker, [jobs[i] for i in group]), strict=True))
    return [results[i] for i in range(len(jobs))]


def _equal_settings(jobs: Sequence[RankJob]) -> list[list[int]]:
    groups: list[list[int]] = []
    for i, job in enumerate(jobs):
        like = next((group for group in groups if jobs[group[0]].settings == job.settings), None)
        if like is None:
            groups.append([i])
        else:
            like.append(i)
    return groups


def _batch(reranker: GradReranker, jobs: Sequence[RankJob]) -> Sequence[RerankResult | Exception]:
    if len(jobs) > 1:
        try:
            return reranker.rerank_batch([j.query for j in jobs], [j.sources for j in jobs], **jobs[0].settings)
        except Exception:  # noqa: BLE001, S110 # nosec B110 # one job's error is not that of all, and is found below
            pass
    return [_alone(reranker, job) for job in jobs]


def _alone(reranker: GradReranker, job: RankJob) -> RerankResult | Exception:
    try:
        return reranker.rerank(job.query, job.sources, **job.settings)
    except Exception as error:  # noqa: BLE001 - handed to the caller whose job it is
        return error
