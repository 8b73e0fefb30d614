"""Greedy coverage against every subset, and what makes it a coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from choices import allowed, best_value, choice_job
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker
from gradrerank.context.choosing import choose
from gradrerank.context.coverage import Coverage, coverage, greedy, settled

N = 6
MATRICES = st.lists(
    st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 1.0, 3.0]), min_size=N, max_size=N), min_size=1, max_size=5
).map(np.array)
COSTS = st.lists(st.integers(1, 9), min_size=N, max_size=N)
SUBSET = st.sets(st.integers(0, N - 1)).map(sorted)
SCORES = [0.0] * N


@given(MATRICES, SUBSET, SUBSET, st.integers(0, N - 1))
def test_coverage_is_monotone_and_submodular(matrix: Any, one: list[int], more: list[int], new: int) -> None:
    helps = settled(matrix)
    larger = sorted({*one, *more} - {new})
    smaller = [i for i in one if i != new]
    gain = coverage(helps, [*smaller, new]) - coverage(helps, smaller)
    later = coverage(helps, [*larger, new]) - coverage(helps, larger)
    assert gain >= later - 1e-9
    assert later >= -1e-9
    assert coverage(helps, []) == 0


@given(MATRICES, st.integers(1, N))
def test_greedy_is_within_its_guarantee_for_a_number_of_documents(matrix: Any, top_n: int) -> None:
    job, helps = choice_job(SCORES, top_n=top_n, utilities=matrix), settled(matrix)
    kept = choose(Coverage(), job).kept
    assert allowed(job, kept)
    assert coverage(helps, kept) >= (1 - 1 / math.e) * best_value(job, lambda s: coverage(helps, s)) - 1e-9


@given(MATRICES, COSTS, st.integers(1, 25))
def test_greedy_is_within_its_guarantee_for_a_budget(matrix: Any, costs: list[int], budget: int) -> None:
    job, helps = choice_job(SCORES, costs, budget=budget, utilities=matrix), settled(matrix)
    kept = choose(Coverage(), job).kept
    assert allowed(job, kept)
    assert coverage(helps, kept) >= (1 - 1 / math.e) / 2 * best_value(job, lambda s: coverage(helps, s)) - 1e-9


@given(MATRICES, st.lists(st.sampled_from("ab"), min_size=N, max_size=N), st.integers(0, 2), st.integers(0, 2))
def test_greedy_is_within_its_guarantee_for_limits_of_sources(matrix: Any, found: list[str], a: int, b: int) -> None:
    bounds: dict[str, Any] = {"a": (0, a), "b": (0, b)}
    job, helps = choice_job(SCORES, sources=found, per_source=bounds, utilities=matrix), settled(matrix)
    kept = choose(Coverage(), job).kept
    assert allowed(job, kept)
    assert coverage(helps, kept) >= best_value(job, lambda s: coverage(helps, s)) / 2 - 1e-9


def test_documents_that_help_different_words_go_together() -> None:
    """Documents 0 and 1 say the same and are the two best by themselves; 2 helps another word."""
    utilities = [[1.0, 0.9, 0.0], [0.0, 0.0, 0.6]]
    assert choose(Coverage(), choice_job([0.5, 0.45, 0.3], top_n=2, utilities=utilities)).kept == (0, 2)


def test_what_adds_nothing_comes_last_in_the_order_of_the_ranking() -> None:
    job = choice_job([0.5, 0.4, 0.3, -0.2], utilities=[[-1.0, 0.0, 2.0, -1.0]])
    assert list(Coverage().choose(job)) == [2, 0, 1, 3]
    assert greedy(job, settled(job.token_utilities()), per_token=False) == [2]


@given(MATRICES, st.permutations(range(N)), st.integers(1, N))
def test_C32_the_choice_does_not_depend_on_the_order_of_equal_columns_in_memory(
    matrix: Any, order: list[int], top_n: int
) -> None:
    """Noise far below the resolution of the scores decides nothing."""
    noise = np.linspace(-1, 1, matrix.size).reshape(matrix.shape) * 1e-9
    plain = choose(Coverage(), choice_job(SCORES, top_n=top_n, utilities=matrix)).kept
    assert choose(Coverage(), choice_job(SCORES, top_n=top_n, utilities=matrix + noise)).kept == plain


def test_all_zero_utilities_leave_the_ranking() -> None:
    job = choice_job([0.2, 0.1], top_n=1, utilities=np.zeros((3, 2)))
    assert choose(Coverage(), job).kept == (0,)


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny())


def test_end_to_end_it_costs_one_row_a_token_and_only_when_asked_for(reranker: GradReranker) -> None:
    plain = reranker.rerank(QUERY, DOCUMENTS, top_n=2)
    covered = reranker.rerank(QUERY, DOCUMENTS, top_n=2, selection="coverage")
    assert {d.text: d.score for d in reranker.rerank(QUERY, DOCUMENTS)}.items() >= {
        d.text: d.score for d in covered
    }.items()
    assert covered.tokens["question"] > plain.tokens["question"] + len(QUERY.split())
    assert [d.rank for d in covered] == [1, 2] and covered[0].score >= covered[1].score
    assert len(covered.dropped) == 3 and {d.reason for d in covered.dropped} == {"top_n"}


@pytest.mark.parametrize("selection", ["coverage", "mmr", "knapsack"])
def test_the_choice_is_the_same_in_whatever_order_sources_and_documents_come(
    reranker: GradReranker, selection: str
) -> None:
    options: dict[str, Any] = {"selection": selection, "token_budget": 60, "select_sources": False}
    sources = {"a": DOCUMENTS[:3], "b": DOCUMENTS[2:], "c": [DOCUMENTS[0]]}
    turned = {name: sources[name][::-1] for name in ("c", "b", "a")}
    encoder = lambda texts: np.array([[t.count(c) + 0.1 for c in "aehort"] for t in texts])  # noqa: E731
    own = GradReranker(reranker.generator, encoder=encoder)
    one, other = own.rerank(QUERY, sources, **options), own.rerank(QUERY, turned, **options)
    assert len(one) > 0
    assert [d.text for d in one] == [d.text for d in other]
    assert {(d.document.text, d.reason) for d in one.dropped} == {(d.document.text, d.reason) for d in other.dropped}


@pytest.mark.parametrize("options", [{"target": "reference"}, {"max_candidates": 3}, {"source_choice": "gradient"}])
def test_coverage_and_compression_go_with_the_other_settings(reranker: GradReranker, options: dict[str, Any]) -> None:
    sources, queries = {"a": DOCUMENTS[:3], "b": DOCUMENTS[3:]}, [QUERY, "Who wrote the book?"]
    settings: dict[str, Any] = {"selection": "coverage", "compress": True, "top_n": 2, "token_budget": 50, **options}
    answers = ["At nine.", "Nobody."] if options.get("target") else [None, None]
    own = GradReranker(reranker.generator, encoder=lambda texts: np.ones((len(texts), 2)))
    alone = [own.rerank(q, sources, reference=a, **settings) for q, a in zip(queries, answers, strict=True)]
    together = own.rerank_batch(queries, sources, references=answers, **settings)
    for one, other in zip(alone, together, strict=True):
        assert 0 < len(one) <= 2 and 0 < one.context_tokens <= 50
        assert [(d.text, d.excerpts) for d in one] == [(d.text, d.excerpts) for d in other]
        assert len(one) + len(one.dropped) == len(DOCUMENTS)
