"""Ranking and cutting by top_n and min_score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradrerank.context.selection import Selection, rank_and_cut
from gradrerank.errors import InvalidArgumentError, ScoringError

scores_strategy = st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.25, 0.5, 1.0, 3.5]), max_size=8)
limits = st.sampled_from([None, 1, 2, 50])
bounds = st.sampled_from([None, -2, 0, 0.5, 4.0])


@pytest.mark.parametrize(("top_n", "kept"), [(50, (1, 0)), (None, (1, 0)), (2, (1, 0)), (1, (1,)), (np.int64(1), (1,))])
def test_C04_top_n_is_a_limit(top_n: Any, kept: tuple[int, ...]) -> None:
    assert rank_and_cut([0.1, 0.2], top_n=top_n, min_score=None).kept == kept


@pytest.mark.parametrize("top_n", [0, -1, True, 2.0, "2"])
def test_C04_a_bad_top_n_is_refused(top_n: Any) -> None:
    with pytest.raises(ValueError, match="top_n") as caught:
        rank_and_cut([0.1, 0.2], top_n=top_n, min_score=None)
    assert repr(top_n) in str(caught.value)


def test_C16_min_score_is_inclusive_and_on_the_signed_scale() -> None:
    selection = rank_and_cut([0.5, np.nextafter(0.5, 0), -2.0, 0.6], top_n=None, min_score=0.5)
    assert selection == Selection((3, 0), ((1, "min_score"), (2, "min_score")))
    assert rank_and_cut([-2.0, -0.5], top_n=None, min_score=-1).kept == (1,)
    assert rank_and_cut([-0.0], top_n=None, min_score=0.0).kept == (0,)


def test_C16_nothing_passes_is_empty_and_not_an_error() -> None:
    assert rank_and_cut([0.1, 0.2], top_n=1, min_score=9) == Selection((), ((1, "min_score"), (0, "min_score")))


@pytest.mark.parametrize("bound", ["0.5", True, float("nan"), float("inf"), [0.5]])
def test_C16_a_bad_min_score_is_refused(bound: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="min_score must be a finite number"):
        rank_and_cut([0.1], top_n=None, min_score=bound)


def test_min_score_is_the_reason_before_top_n() -> None:
    selection = rank_and_cut([0.9, 0.8, -0.1], top_n=1, min_score=0.0)
    assert selection == Selection((0,), ((1, "top_n"), (2, "min_score")))


def test_C32_equal_scores_keep_retrieval_order() -> None:
    assert rank_and_cut([0.0, 1.0, -0.0, 1.0, 0.0], top_n=None, min_score=None).kept == (1, 3, 0, 2, 4)


def test_C01_no_scores_no_selection() -> None:
    assert rank_and_cut([], top_n=3, min_score=0.0) == Selection((), ())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -np.inf, None, "x", [1.0, 2.0], np.float32("nan")])
def test_C05_a_score_that_is_no_finite_number_is_named_by_position(bad: Any) -> None:
    with pytest.raises(ScoringError, match=r"scores\[2\] is"):
        rank_and_cut([0.1, 0.2, bad], top_n=None, min_score=None)


@given(scores_strategy, limits, bounds)
def test_C03_every_position_is_in_exactly_one_place_and_the_cut_is_right(
    scores: list[float], top_n: int | None, min_score: float | None
) -> None:
    selection = rank_and_cut(scores, top_n=top_n, min_score=min_score)
    everything = [*selection.kept, *(i for i, _ in selection.dropped)]
    assert everything == sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    reaching = [i for i in range(len(scores)) if min_score is None or scores[i] >= min_score]
    assert len(selection.kept) == min(len(reaching), top_n or len(scores))
    assert set(selection.kept) <= set(reaching)
    for i, reason in selection.dropped:
        assert reason == ("top_n" if i in reaching else "min_score")


@given(scores_strategy, limits)
def test_C12_numpy_scores_give_the_same_plain_positions(scores: list[float], top_n: int | None) -> None:
    selection = rank_and_cut(np.array(scores), top_n=top_n, min_score=None)  # type: ignore[arg-type]
    assert selection == rank_and_cut(scores, top_n=top_n, min_score=None)
    assert all(type(i) is int for i in selection.kept)
