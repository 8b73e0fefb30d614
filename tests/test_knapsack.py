"""The knapsack against every subset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from choices import allowed, best_value, choice_job
from hypothesis import given
from hypothesis import strategies as st

from gradrerank.context.choosing import choose
from gradrerank.context.knapsack import Knapsack, best_subset

SCORES = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 4.0]), max_size=8).map(
    lambda scores: sorted(scores, reverse=True)
)
COSTS = st.lists(st.integers(0, 9), min_size=8, max_size=8)
FOUND_BY = st.lists(st.sampled_from([("a",), ("b",), ("a", "b"), ("c",)]), min_size=8, max_size=8)
BUDGET = st.one_of(st.none(), st.integers(1, 30))
TOP_N = st.sampled_from([None, 1, 2, 4])
PER_SOURCE = st.sampled_from([{}, {"a": (0, 1)}, {"a": (0, 2), "b": (0, 1)}, {"c": (0, 0)}])


def job_of(scores: Sequence[float], costs: Sequence[int], found: Sequence[tuple[str, ...]], **bounds: Any) -> Any:
    n = len(scores)
    return choice_job(scores, costs[:n], sources=found[:n], **bounds)


@given(SCORES, COSTS, FOUND_BY, BUDGET, TOP_N, PER_SOURCE)
def test_the_exact_choice_is_that_of_trying_every_subset(
    scores: list[float], costs: list[int], found: list[Any], budget: int | None, top_n: int | None, per_source: Any
) -> None:
    job = job_of(scores, costs, found, budget=budget, top_n=top_n, per_source=per_source)
    kept = choose(Knapsack(), job).kept
    assert allowed(job, kept)
    assert sum(scores[i] for i in kept) == best_value(job, lambda chosen: sum(scores[i] for i in chosen))
    assert all(scores[i] > 0 for i in kept)


@given(SCORES, COSTS, FOUND_BY, st.integers(1, 30))
def test_the_greedy_choice_is_at_least_half_of_the_best(
    scores: list[float], costs: list[int], found: list[Any], budget: int
) -> None:
    job = job_of(scores, costs, found, budget=budget)
    kept = choose(Knapsack(max_states=0), job).kept
    best = best_value(job, lambda chosen: sum(scores[i] for i in chosen))
    assert allowed(job, kept)
    assert sum(scores[i] for i in kept) >= best / 2


@given(SCORES, COSTS, FOUND_BY, BUDGET, TOP_N, PER_SOURCE, st.integers(0, 2))
def test_what_is_required_is_kept_and_the_rest_is_the_best_beside_it(
    scores: list[float],
    costs: list[int],
    found: list[Any],
    budget: int | None,
    top_n: int | None,
    per_source: Any,
    floor: int,
) -> None:
    bounds = {"c": (floor, None), **{n: b for n, b in per_source.items() if n != "c"}}
    job = job_of(scores, costs, found, budget=budget, top_n=top_n, per_source=bounds)
    kept = choose(Knapsack(), job).kept
    assert allowed(job, kept) and set(job.required) <= set(kept)
    assert sum(scores[i] for i in kept) == best_value(job, lambda chosen: sum(scores[i] for i in chosen))


def test_of_equal_sums_the_cheaper_then_the_better_ranked_one() -> None:
    assert best_subset(choice_job([2, 1, 1], [5, 2, 2], budget=5), [0, 1, 2], 5, 1000) == [1, 2]
    assert best_subset(choice_job([1, 1, 1], [2, 2, 2], budget=2), [0, 1, 2], 2, 1000) == [0]


def test_a_long_document_gives_way_to_two_short_ones() -> None:
    choice = choose(Knapsack(), choice_job([1.0, 0.8, 0.7, -0.1], [10, 5, 5, 1], budget=11))
    assert choice.kept == (1, 2)
    assert choice.reasons == {0: "token_budget", 3: "selection"}


def test_many_documents_take_no_time() -> None:
    scores = [1 / (i + 1) + 0.01 for i in range(300)]
    costs = [(i * 37) % 113 + 20 for i in range(300)]
    kept = choose(Knapsack(), choice_job(scores, costs, budget=2000)).kept
    assert sum(costs[i] for i in kept) <= 2000


@pytest.mark.parametrize("surcharge", [1, 3, 7])
def test_tokens_that_do_not_add_up_are_never_overshot(surcharge: int) -> None:
    """Joining costs more than the sum says: the problem is solved again for less."""
    costs = [4, 4, 3, 3, 2, 2]
    job = choice_job([6, 5, 4, 3, 2, 1], costs, budget=14)
    joined = lambda kept, limit: sum(costs[i] for i in kept) + surcharge * max(len(kept) - 1, 0)  # noqa: E731
    object.__setattr__(job.limits, "tokens", joined)
    kept = choose(Knapsack(), job).kept
    assert kept and joined(kept, 0) <= 14
