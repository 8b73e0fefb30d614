"""The most utility for a number of tokens: a knapsack, solved exactly where that is quick.

    maximise  sum of score_i over the kept documents   subject to   sum of cost_i <= budget

with ``top_n`` and the limits of ``per_source`` as further bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradrerank.context.choosing import ChoiceJob

# How often the problem is solved again because the joined text takes more tokens than the sum says.
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Knapsack:
    """Keep the documents with the largest sum of scores that fit; only positive scores are taken.

    Exact (see :func:`best_subset`) while no more than ``max_states`` partial solutions are held at once.
    Beyond that: the better of two greedy choices, by score per token and by score. With a token budget
    alone that is at least half of the best sum, since the first of them falls short of it by less than
    one document (Dantzig, 1957). Together with ``top_n`` or ``per_source`` the greedy choice has no such
    bound.

    Tokens are added up document by document to solve the problem; the sum is then compared with the
    tokens of the joined text, and the problem solved again for less where that is larger.

    Args:
        max_states: Most partial solutions.
    """

    max_states: int = 4000
    name: str = "knapsack"

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        """The best subset, then whatever else helps and fits, by score per token."""
        helpful = [i for i in job.free() if job.scores[i] > 0]
        by_density = sorted(helpful, key=lambda i: (-job.scores[i] / max(job.costs[i], 1), i))
        chosen = self._exact(job, helpful)
        if chosen is None:
            chosen = _greedy(job, by_density)
        return [*chosen, *(i for i in by_density if i not in chosen)]

    def _exact(self, job: ChoiceJob, helpful: Sequence[int]) -> list[int] | None:
        budget = job.limits.token_budget
        if budget is None:
            return best_subset(job, helpful, None, self.max_states)
        required = list(job.required)
        capacity = budget - job.limits.tokens(required, budget) + job.slack
        for _ in range(_TRIES):
            chosen = best_subset(job, helpful, capacity, self.max_states)
            if not chosen:
                return chosen
            excess = job.limits.tokens([*required, *chosen], budget) - budget
            if excess <= 0:
                return chosen
            capacity -= excess
        return None


class _Partial(NamedTuple):
    """A partial solution: what it is worth, what it costs, and what it holds."""

    score: float
    cost: int
    held: tuple[int, ...]


def best_subset(job: ChoiceJob, items: Sequence[int], capacity: int | None, max_states: int) -> list[int] | None:
    """The subset of the largest score within a capacity, ``top_n`` and the limits of ``per_source``.

    Dynamic programming over the documents: of the partial solutions that use the bounds alike, only
    those are held that no other one beats in both score and tokens (Nemhauser and Ullmann, 1969). Of equal
    sums the cheaper one wins, then the one that holds the better ranked documents.

    Args:
        job: The ranking; what it requires has taken its share of ``top_n`` and ``per_source``.
        items: Documents with positive scores, best first.
        capacity: Most tokens; None for no limit.
        max_states: Most partial solutions that are held.

    Returns:
        Places in the ranking, ascending; None where more partial solutions would be needed.
    """
    limited = sorted(name for name, (_, most) in job.limits.per_source.items() if most is not None)
    most = [job.limits.per_source[name][1] for name in limited]
    counts_places = job.limits.top_n is not None
    room = [job.limits.top_n, *most] if counts_places else most
    uses = [([1] if counts_places else []) + [int(name in names) for name in limited] for names in job.sources]
    taken = tuple(sum(uses[i][k] for i in job.required) for k in range(len(room)))
    frontier = {taken: [_Partial(0.0, 0, ())]}
    for item in items:
        cost = 0 if capacity is None else job.costs[item]
        grown: dict[tuple[int, ...], list[_Partial]] = {use: list(held) for use, held in frontier.items()}
        for use, partials in frontier.items():
            after = tuple(u + one for u, one in zip(use, uses[item], strict=True))
            if any(u > r for u, r in zip(after, room, strict=True) if r is not None):
                continue
            grown.setdefault(after, []).extend(
                _Partial(p.score + job.scores[item], p.cost + cost, (*p.held, item))
                for p in partials
                if capacity is None or p.cost + cost <= capacity
            )
        frontier = {use: _undominated(partials) for use, partials in grown.items()}
        if sum(map(len, frontier.values())) > max_states:
            return None
    best = min((p for partials in frontier.values() for p in partials), key=lambda p: (-p.score, p.cost, p.held))
    return list(best.held)


def _undominated(partials: list[_Partial]) -> list[_Partial]:
    """Those that are cheaper than every one of at least their score."""
    held: list[_Partial] = []
    for partial in sorted(partials, key=lambda p: (-p.score, p.cost, p.held)):
        if not held or partial.cost < held[-1].cost:
            held.append(partial)
    return held


def _greedy(job: ChoiceJob, by_density: Sequence[int]) -> list[int]:
    walks = [_walk(job, by_density), _walk(job, sorted(by_density))]
    return max(walks, key=lambda chosen: sum(job.scores[i] for i in chosen))


def _walk(job: ChoiceJob, preference: Sequence[int]) -> list[int]:
    """Take what fits, in an order of preference."""
    kept = list(job.required)
    for index in preference:
        if job.fits(kept, index):
            kept.append(index)
    return kept[len(job.required) :]
