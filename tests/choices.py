"""Rankings to choose from, made by hand, and the truth by trying every subset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from gradrerank.context.choosing import ChoiceJob
from gradrerank.context.limits import Limits


def never() -> Any:
    raise AssertionError("this costs time and was not asked for")


def choice_job(
    scores: Sequence[float],
    costs: Sequence[int] | None = None,
    *,
    sources: Sequence[Sequence[str]] | None = None,
    top_n: int | None = None,
    budget: int | None = None,
    per_source: dict[str, tuple[int, int | None]] | None = None,
    utilities: Any = None,
    vectors: Any = None,
) -> ChoiceJob:
    """A ranking with these scores, descending, whose tokens add up."""
    n = len(scores)
    costs = [1] * n if costs is None else list(costs)
    found = [("web",)] * n if sources is None else [tuple(names) for names in sources]
    limits = Limits(found, top_n, per_source or {}, budget, lambda kept, limit: sum(costs[i] for i in kept))
    return ChoiceJob(
        query="q",
        texts=[f"text {i}" for i in range(n)],
        scores=list(scores),
        sources=found,
        costs=costs if budget is not None else [0] * n,
        limits=limits,
        required=limits.floors(),
        token_utilities=never if utilities is None else lambda: np.asarray(utilities, dtype=float),
        vectors=never if vectors is None else lambda: np.asarray(vectors, dtype=float),
    )


def allowed(job: ChoiceJob, kept: Sequence[int]) -> bool:
    """Whether a set of documents keeps to every bound."""
    limits = job.limits
    counts = {name: sum(name in job.sources[i] for i in kept) for name in limits.per_source}
    return (
        (limits.top_n is None or len(kept) <= limits.top_n)
        and all(most is None or counts[name] <= most for name, (_, most) in limits.per_source.items())
        and (limits.token_budget is None or limits.tokens(kept, 0) <= limits.token_budget)
    )


def subsets(job: ChoiceJob) -> Iterator[tuple[int, ...]]:
    """Every set that keeps to the bounds and holds what is required."""
    for size in range(len(job) + 1):
        for kept in combinations(range(len(job)), size):
            if set(job.required) <= set(kept) and allowed(job, kept):
                yield kept


def best_value(job: ChoiceJob, value: Callable[[Sequence[int]], float]) -> float:
    return max(value(kept) for kept in subsets(job))
