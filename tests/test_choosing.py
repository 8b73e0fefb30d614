"""Choosers: diversity, and those that a caller brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from choices import choice_job
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker
from gradrerank.context.choosers import as_chooser
from gradrerank.context.choosing import ChoiceJob, InOrder, choose
from gradrerank.context.mmr import MaximalMarginalRelevance
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.settings import Settings

AXES = np.eye(3)


class Saying:
    """Answers what it was told to answer."""

    name = "saying"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        return self.answer


def test_mmr_takes_another_subject_before_the_same_again() -> None:
    job = choice_job([1.0, 0.9, 0.5], top_n=2, vectors=AXES[[0, 0, 1]])
    assert choose(MaximalMarginalRelevance(0.5), job).kept == (0, 2)
    assert choose(MaximalMarginalRelevance(1.0), job).kept == (0, 1)


def test_mmr_a_document_that_does_not_fit_makes_none_redundant() -> None:
    job = choice_job([1.0, 0.9, 0.5], [9, 2, 2], budget=2, vectors=AXES[[0, 0, 1]])
    assert choose(MaximalMarginalRelevance(0.5), job).kept == (1,)


def test_mmr_with_equal_scores_and_one_direction_is_the_ranking() -> None:
    job = choice_job([0.5] * 4, top_n=2, vectors=AXES[[0, 0, 0, 0]])
    assert choose(MaximalMarginalRelevance(), job).kept == (0, 1)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.integers(1, 8), st.floats(0.01, 100), st.floats(-3, 3))
def test_C14_mmr_does_not_depend_on_the_scale_of_the_scores(
    scores: list[float], top_n: int, factor: float, shift: float
) -> None:
    ranked = sorted((round(s, 2) for s in scores), reverse=True)
    vectors = [AXES[i % 3] for i in range(len(ranked))]
    plain = choose(MaximalMarginalRelevance(), choice_job(ranked, top_n=top_n, vectors=vectors))
    scaled = [s * factor + shift for s in ranked]
    assert choose(MaximalMarginalRelevance(), choice_job(scaled, top_n=top_n, vectors=vectors)) == plain


@given(st.permutations(range(5)), st.integers(0, 5), st.integers(1, 12))
def test_whatever_a_chooser_says_the_bounds_hold_and_nothing_is_lost(said: list[int], n: int, budget: int) -> None:
    job = choice_job([0.5, 0.4, 0.3, 0.2, 0.1], [5, 4, 3, 2, 1], budget=budget, top_n=3)
    choice = choose(Saying(said[:n]), job)
    assert sum(job.costs[i] for i in choice.kept) <= budget and len(choice.kept) <= 3
    assert sorted([*choice.kept, *choice.reasons]) == [0, 1, 2, 3, 4]
    for index, reason in choice.reasons.items():
        assert reason != "selection" or index not in said[:n]


def test_what_a_chooser_does_not_want_is_dropped_for_that() -> None:
    choice = choose(Saying(np.array([2])), choice_job([0.5, 0.4, 0.3]))
    assert (choice.kept, choice.reasons) == ((2,), {0: "selection", 1: "selection"})


@pytest.mark.parametrize("answer", [None, 3, "01", [0.5], [0, 0], [3], [-1], [None]])
def test_C05_an_answer_that_names_no_places_is_an_error(answer: Any) -> None:
    with pytest.raises(ScoringError, match="selection 'saying' must choose"):
        choose(Saying(answer), choice_job([0.5, 0.4, 0.3]))


def test_a_chooser_of_ones_own_in_the_pipeline() -> None:
    class Shortest:
        name = "shortest"

        def choose(self, job: ChoiceJob) -> list[int]:
            assert job.query == QUERY and len(job.vectors()) == len(job.token_utilities()[0]) == len(job)
            return sorted(range(len(job)), key=lambda i: len(job.texts[i]))

    reranker = GradReranker(tiny(), encoder=lambda texts: np.ones((len(texts), 2)))
    result = reranker.rerank(QUERY, DOCUMENTS, selection=Shortest(), top_n=2)
    assert {d.text for d in result} == set(sorted(DOCUMENTS, key=len)[:2])
    assert result[0].score >= result[1].score


def test_as_chooser() -> None:
    assert as_chooser("order") == InOrder()
    assert as_chooser("mmr", 0.2) == MaximalMarginalRelevance(0.2)
    with pytest.raises(InvalidArgumentError, match="did you mean 'knapsack'"):
        as_chooser("knapsak")
    for wrong in (InOrder, 3, object()):
        with pytest.raises(InvalidTypeError, match="selection must be one of"):
            as_chooser(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "0.5", float("nan")])
def test_the_balance_of_mmr_is_between_0_and_1(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="mmr_lambda must be"):
        Settings(mmr_lambda=value)
