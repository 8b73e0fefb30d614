"""Measures against values computed by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradrerank.evaluation import agreement, answer_f1, exact_match, ranking_measures
from gradrerank.evaluation.extras import need
from gradrerank.evaluation.measures import normalise


def test_measures_of_a_ranking_by_hand() -> None:
    # Gold at places 1 and 3: DCG = 1 + 1/log2(4), ideal 1 + 1/log2(3).
    found = ranking_measures(["a", "x", "b", "y"], {"a": 1, "b": 1}, k=2)
    assert found["nDCG@10"] == pytest.approx((1 + 1 / 2) / (1 + 1 / math.log2(3)))
    assert (found["R@2"], found["RR"], found["all-gold@2"]) == (0.5, 1.0, 0.0)
    assert ranking_measures(["a", "x", "b", "y"], {"a": 1, "b": 1}, k=3)["all-gold@3"] == 1.0


def test_grades_weigh_and_gold_that_was_not_found_counts() -> None:
    # "c" is relevant and no candidate: the ideal ranking has it, recall misses it.
    found = ranking_measures(["b", "a"], {"a": 2, "b": 1, "c": 1}, k=5)
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert found["nDCG@10"] == pytest.approx((1 + 2 / math.log2(3)) / ideal)
    assert found["R@5"] == pytest.approx(2 / 3) and found["all-gold@5"] == 0.0


def test_nothing_found_is_zero_and_nothing_gold_is_no_value() -> None:
    assert set(ranking_measures([], {"a": 1}).values()) == {0.0}
    assert set(ranking_measures(["x"], {"a": 1}).values()) == {0.0}
    assert ranking_measures(["x"], {}) == {}


@given(st.permutations([f"{i:02d}" for i in range(14)]), st.sets(st.integers(0, 13), min_size=1))
def test_measures_depend_on_the_order_alone(order: list[str], gold: set[int]) -> None:
    # Ids would decide ties; there are none, so the brute force over places agrees.
    relevant = {f"{i:02d}": 1 for i in gold}
    found = ranking_measures(order, relevant, k=5)
    places = [place for place, name in enumerate(order, start=1) if name in relevant]
    dcg = sum(1 / math.log2(p + 1) for p in places if p <= 10)
    ideal = sum(1 / math.log2(p + 1) for p in range(1, min(len(gold), 10) + 1))
    assert found["nDCG@10"] == pytest.approx(dcg / ideal)
    assert found["RR"] == pytest.approx(1 / places[0])
    assert found["R@5"] == pytest.approx(sum(p <= 5 for p in places) / len(gold))
    assert found["all-gold@5"] == float(max(places) <= 5)


def test_agreement_shares_ranks_between_equal_scores() -> None:
    # Ranks of the estimate 1, 2.5, 2.5 and of the truth 1, 2, 3, by hand.
    x, y = np.array([1, 2.5, 2.5]), np.array([1, 2, 3])
    expected = np.corrcoef(x, y)[0, 1]
    found = agreement({"a": 0.0, "b": 1.0, "c": 1.0}, {"a": 0.1, "b": 0.2, "c": 0.3})
    assert found["spearman"] == pytest.approx(expected)


def test_agreement_with_what_has_no_order() -> None:
    truth = {"a": 0.1, "b": 0.2}
    assert agreement({"a": 1.0, "b": 1.0}, truth) == {"spearman": 0.0}
    assert agreement({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 1.0}) == {}
    assert agreement({}, truth) == {"spearman": 0.0}


def test_a_document_without_a_score_stands_last() -> None:
    truth = {"a": 3.0, "b": 2.0, "c": 1.0}
    assert agreement({"a": 5.0, "b": -4.0}, truth)["spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("answer", "plain"),
    [("The cat.", "cat"), ("a  AN the", ""), ("U.S.A.", "usa"), ("theatre", "theatre"), ("x\ny", "x y")],
)
def test_normalisation(answer: str, plain: str) -> None:
    assert normalise(answer) == plain


def test_answers_by_hand() -> None:
    assert exact_match("The Eiffel Tower!", ["eiffel tower"]) == 1.0
    assert exact_match("Tower", ["Eiffel Tower", "tower."]) == 1.0
    assert exact_match("Eiffel", ["Eiffel Tower"]) == 0.0
    # Precision 2/4, recall 2/3.
    assert answer_f1("red house by sea", ["old red house"]) == pytest.approx(4 / 7)
    # A word counts as often as both have it.
    assert answer_f1("no no no", ["no"]) == pytest.approx(2 * (1 / 3) / (1 + 1 / 3))
    assert answer_f1("nine", ["at nine", "ten"]) == pytest.approx(2 / 3)
    assert answer_f1("", ["red"]) == 0.0 and answer_f1("the", ["a"]) == 1.0


def test_a_missing_library_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"no_such_library.*pip install 'gradrerank\[evaluation\]'"):
        need("no_such_library.part")
