"""The greedy combination of sources against the best one found by trying all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradrerank.documents import Document
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.sources.combination import choose_sources, combination_value, combine_greedily, source_vectors

Floats = NDArray[np.float64]
GUARANTEE = 1 - 1 / math.e


@st.composite
def problems(draw: st.DrawFn, low: float = -1.0) -> tuple[Floats, Floats, float]:
    """Relevance, similarity and lambda for up to six sources; similarities are at least ``low``."""
    n = draw(st.integers(1, 6))
    relevance = np.array(draw(st.lists(st.floats(-1, 1), min_size=n, max_size=n)))
    upper = np.triu(np.array(draw(st.lists(st.floats(low, 1), min_size=n * n, max_size=n * n))).reshape(n, n), 1)
    return relevance, upper + upper.T + np.eye(n), draw(st.floats(0, 2))


def best_value(relevance: Floats, similarity: Floats, weight: float, limit: int) -> float:
    subsets = (s for size in range(limit + 1) for s in combinations(range(len(relevance)), size))
    return max(combination_value(relevance, similarity, s, weight) for s in subsets)


def is_monotone_submodular(relevance: Floats, similarity: Floats, weight: float) -> bool:
    """The condition derived at the top of combination.py.

    The gain of s on A is r_s - lambda * sum over A of c_st. It shrinks as A grows if all c_st >= 0,
    and its least value, on A = all others, is >= 0 if r_s >= lambda * sum over all others of c_st.
    """
    others = similarity - np.diag(np.diag(similarity))
    return bool((others >= 0).all() and (relevance >= weight * others.sum(axis=1)).all())


# --- the value ---------------------------------------------------------------------------------------------------


@given(problems(), st.randoms())
def test_the_value_is_the_formula_written_out(problem: tuple[Floats, Floats, float], random: Any) -> None:
    relevance, similarity, weight = problem
    subset = random.sample(range(len(relevance)), random.randint(0, len(relevance)))
    expected = sum(relevance[s] for s in subset)
    expected -= weight * sum(similarity[s, t] for s, t in combinations(subset, 2))
    assert combination_value(relevance, similarity, subset, weight) == pytest.approx(expected, abs=1e-12)


@given(problems(low=0.0))
def test_f_is_submodular_where_similarities_are_not_negative(problem: tuple[Floats, Floats, float]) -> None:
    relevance, similarity, weight = problem
    n = len(relevance)
    for s in range(n):
        others = [t for t in range(n) if t != s]
        gains = [
            combination_value(relevance, similarity, [*others[:size], s], weight)
            - combination_value(relevance, similarity, others[:size], weight)
            for size in range(n)
        ]
        assert all(later <= earlier + 1e-9 for earlier, later in zip(gains, gains[1:], strict=False))


# --- the greedy choice -------------------------------------------------------------------------------------------


@given(problems(low=0.0), st.integers(1, 6), st.data())
def test_greedy_keeps_its_guarantee_where_f_is_monotone_submodular(
    problem: tuple[Floats, Floats, float], limit: int, data: st.DataObject
) -> None:
    relevance, similarity, weight = problem
    n = len(relevance)
    # Lift the relevance to what the condition asks for, by a drawn factor from 1, rather than wait for luck.
    relevance = weight * (similarity.sum(axis=1) - 1) * data.draw(st.floats(1, 3)) + np.maximum(relevance, 0)
    assume(is_monotone_submodular(relevance, similarity, weight))
    choice = combine_greedily(relevance, similarity, source_lambda=weight, max_sources=limit)
    value = combination_value(relevance, similarity, choice.chosen, weight)
    assert value >= GUARANTEE * best_value(relevance, similarity, weight, min(limit, n)) - 1e-9


@given(problems(low=0.0))
def test_without_a_limit_greedy_is_the_best_where_f_is_monotone(problem: tuple[Floats, Floats, float]) -> None:
    relevance, similarity, weight = problem
    relevance = weight * (similarity.sum(axis=1) - 1) + np.abs(relevance)
    assume(is_monotone_submodular(relevance, similarity, weight))
    choice = combine_greedily(relevance, similarity, source_lambda=weight)
    value = combination_value(relevance, similarity, choice.chosen, weight)
    assert value == pytest.approx(best_value(relevance, similarity, weight, len(relevance)), abs=1e-9)


def test_a_large_lambda_can_make_greedy_miss_the_best_choice() -> None:
    """Why a small lambda is needed: f is submodular here, and not monotone."""
    similarity = np.array([[1.0, 0.9, 0.9], [0.9, 1.0, 0.0], [0.9, 0.0, 1.0]])
    relevance = np.array([0.6, 0.55, 0.55])
    assert not is_monotone_submodular(relevance, similarity, 1.0)
    choice = combine_greedily(relevance, similarity, source_lambda=1.0)
    assert choice.chosen == (0,)
    value = combination_value(relevance, similarity, choice.chosen, 1.0)
    assert value < GUARANTEE * best_value(relevance, similarity, 1.0, 3)


@given(problems(), st.sampled_from([None, 1, 2, 50]))
def test_every_step_takes_the_largest_gain_and_stops_when_none_is_above_zero(
    problem: tuple[Floats, Floats, float], limit: int | None
) -> None:
    relevance, similarity, weight = problem
    n = len(relevance)
    choice = combine_greedily(relevance, similarity, source_lambda=weight, max_sources=limit)
    assert 1 <= len(choice.chosen) == len(set(choice.chosen)) <= min(n, limit or n)

    def gain(s: int, on: Sequence[int]) -> float:
        before = combination_value(relevance, similarity, on, weight)
        return combination_value(relevance, similarity, [*on, s], weight) - before

    for step, s in enumerate(choice.chosen):
        on = choice.chosen[:step]
        left = [t for t in range(n) if t not in on]
        assert choice.gains[s] == pytest.approx(gain(s, on), abs=1e-9)
        assert choice.gains[s] >= max(gain(t, on) for t in left) - 1e-9
        assert step == 0 or choice.gains[s] > 0
    for s in set(range(n)) - set(choice.chosen):
        assert choice.gains[s] == pytest.approx(gain(s, choice.chosen), abs=1e-9)
        assert choice.gains[s] <= 1e-9 or len(choice.chosen) == limit


def test_a_source_that_adds_exactly_nothing_is_left_out() -> None:
    similarity = np.array([[1.0, 0.3], [0.3, 1.0]])
    choice = combine_greedily(np.array([0.3, 0.3]), similarity, source_lambda=1.0)
    assert choice.chosen == (0,)
    assert choice.gains == (0.3, 0.0)


def test_the_first_source_is_taken_even_when_nothing_is_relevant() -> None:
    choice = combine_greedily(np.array([-0.4, -0.1, -0.1]), np.eye(3), source_lambda=0.5)
    assert choice.chosen == (1,)
    assert choice.gains == (-0.4, -0.1, -0.1)


def test_C32_equal_gains_are_not_decided_by_rounding() -> None:
    relevance = np.array([0.3, 0.1 + 0.2, 0.3])
    assert relevance[1] > relevance[0]
    assert combine_greedily(relevance, np.eye(3), source_lambda=0.1).chosen == (0, 1, 2)


def test_C01_no_sources_no_choice() -> None:
    assert combine_greedily(np.zeros(0), np.zeros((0, 0)), source_lambda=0.1).chosen == ()


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "2"])
def test_C04_a_bad_max_sources_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_sources"):
        combine_greedily(np.ones(1), np.eye(1), source_lambda=0.1, max_sources=limit)


@pytest.mark.parametrize("weight", [-0.1, math.nan, "0.1", None, True])
def test_a_bad_lambda_is_refused(weight: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="source_lambda must be a finite number >= 0"):
        combine_greedily(np.ones(1), np.eye(1), source_lambda=weight)


def test_arrays_that_do_not_fit_or_are_not_finite_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"got \(2,\) and \(3, 3\)"):
        combine_greedily(np.ones(2), np.eye(3), source_lambda=0.1)
    with pytest.raises(InvalidArgumentError, match="finite"):
        combine_greedily(np.array([0.1, np.nan]), np.eye(2), source_lambda=0.1)


def test_the_arrays_are_left_as_they_are() -> None:
    relevance, similarity = np.array([0.9, 0.8]), np.array([[1.0, 0.9], [0.9, 1.0]])
    combine_greedily(relevance, similarity, source_lambda=1.0)
    np.testing.assert_array_equal(relevance, [0.9, 0.8])
    np.testing.assert_array_equal(similarity, [[1.0, 0.9], [0.9, 1.0]])


# --- from documents ----------------------------------------------------------------------------------------------


class Letters:
    """Counts of a, b and c; keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> Floats:
        self.calls.append(list(texts))
        return np.array([[t.count(c) for c in "abc"] for t in texts], dtype=float)


def test_the_vector_of_a_source_is_the_mean_of_its_documents_normalised() -> None:
    vectors = source_vectors({"x": np.array([[1.0, 0.0], [0.0, 1.0]]), "y": np.array([[1.0, 0.0], [-1.0, 0.0]])})
    np.testing.assert_allclose(vectors, [[math.sqrt(0.5)] * 2, [0.0, 0.0]])


def test_relevance_and_similarity_are_cosines() -> None:
    sources = {"y": [Document("b"), Document("aa")], "x": [Document("aaa")]}
    choice = choose_sources("a", sources, Letters(), source_lambda=0.0, max_sources=None)
    assert choice.relevance == pytest.approx({"x": 1.0, "y": math.sqrt(0.5)})
    assert list(choice.relevance) == ["x", "y"]
    np.testing.assert_allclose(choice.similarity, [[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])
    assert choice.names == ("x", "y")


def test_a_source_that_repeats_another_is_left_out_and_its_gain_told() -> None:
    sources = {"one": [Document("aab")], "same": [Document("aab")], "other": [Document("c")]}
    choice = choose_sources("aabc", sources, Letters(), source_lambda=0.95, max_sources=None)
    assert choice.names == ("one", "other")
    assert choice.gains["same"] == pytest.approx(choice.relevance["same"] - 0.95)
    assert choice.gains["same"] < 0


def test_one_call_encodes_each_distinct_text_once_with_its_title() -> None:
    encoder = Letters()
    docs = [Document("ab", title="c"), Document("ab", title=""), Document("ab")]
    choose_sources("a", {"x": docs, "y": [Document("a"), Document("b")]}, encoder, source_lambda=0.1, max_sources=1)
    assert encoder.calls == [["a", "c\nab", "ab", "b"]]


def test_C01_sources_without_documents_are_skipped_and_nothing_is_encoded_without_any() -> None:
    encoder = Letters()
    choice = choose_sources("a", {"x": [], "y": [Document("a")]}, encoder, source_lambda=0.1, max_sources=None)
    assert (choice.names, list(choice.gains), choice.similarity.shape) == (("y",), ["y"], (1, 1))
    encoder.calls.clear()
    empty = choose_sources("a", {"x": []}, encoder, source_lambda=0.1, max_sources=None)
    assert (empty.names, empty.gains, empty.relevance, empty.similarity.shape) == ((), {}, {}, (0, 0))
    assert encoder.calls == []


def test_documents_without_direction_do_not_become_nan() -> None:
    sources = {"x": [Document("zzz")], "y": [Document("a")]}
    choice = choose_sources("a", sources, Letters(), source_lambda=0.5, max_sources=None)
    assert choice.names == ("y",)
    assert choice.gains == {"x": 0.0, "y": 1.0}


@given(
    st.dictionaries(st.sampled_from("pqrs"), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)),
    st.floats(0, 1),
    st.randoms(),
)
def test_C11_C32_the_order_of_the_sources_changes_nothing(
    sources: dict[str, list[str]], weight: float, random: Any
) -> None:
    documents = {name: [Document(t) for t in texts] for name, texts in sources.items()}
    shuffled = dict(random.sample(list(documents.items()), len(documents)))
    one = choose_sources("ab", documents, Letters(), source_lambda=weight, max_sources=2)
    two = choose_sources("ab", shuffled, Letters(), source_lambda=weight, max_sources=2)
    assert (one.names, one.gains, one.relevance) == (two.names, two.gains, two.relevance)
    np.testing.assert_array_equal(one.similarity, two.similarity)


def test_C06_choosing_for_a_blank_query_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="query"):
        choose_sources(" ", {"x": [Document("a")]}, Letters(), source_lambda=0.1, max_sources=None)
    with pytest.raises(InvalidTypeError, match="query"):
        choose_sources(None, {}, Letters(), source_lambda=0.1, max_sources=None)  # type: ignore[arg-type]


def test_C10_documents_are_equal_before_and_after_an_encoder_that_fails() -> None:
    documents = [Document("a", metadata={"n": {"t": [1]}})]
    sources = {"x": documents}
    with pytest.raises(ScoringError, match="NaN"):
        choose_sources("a", sources, lambda texts: [[math.nan]] * len(texts), source_lambda=0.1, max_sources=None)
    assert sources == {"x": [Document("a", metadata={"n": {"t": [1]}})]}
    assert sources["x"] is documents
