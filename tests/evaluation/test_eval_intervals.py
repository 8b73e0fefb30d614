"""Bootstrap intervals against exact enumeration and known limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradrerank.errors import InvalidArgumentError
from gradrerank.evaluation import bootstrap_difference, bootstrap_mean


def test_interval_of_three_values_by_enumeration() -> None:
    values = [0.0, 0.3, 1.0]
    means = [np.mean(draw) for draw in itertools.product(values, repeat=3)]
    low, high = np.quantile(means, [0.1, 0.9])
    found = bootstrap_mean(values, draws=200_000, level=0.8)
    assert found.mean == pytest.approx(np.mean(values)) and found.n == 3
    assert found.low == pytest.approx(low, abs=1e-9) and found.high == pytest.approx(high, abs=1e-9)


def test_interval_of_many_values_is_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(2.0, 1.0, 2000)
    found = bootstrap_mean(values.tolist())
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_equal_seeds_give_equal_intervals() -> None:
    values = np.random.default_rng(2).random(30).tolist()
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_memory_is_bounded_and_draws_are_all_made() -> None:
    # More questions than are drawn at a time.
    found = bootstrap_mean([0.0, 1.0] * 600_000, draws=3)
    assert 0.49 < found.low <= found.high < 0.51


def test_a_group_is_drawn_as_one() -> None:
    # Two groups: each draw is all 0, all 1 or half; questions on their own would be close to 1/2.
    values, groups = [0.0] * 50 + [1.0] * 50, ["a"] * 50 + ["b"] * 50
    found = bootstrap_mean(values, groups)
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 100)


def test_groups_of_unequal_size_keep_the_weight_of_their_questions() -> None:
    values, groups = [1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]
    means = [1.0, 0.75, 0.75, 0.0]  # aa, ab, ba, bb
    found = bootstrap_mean(values, groups, draws=100_000, level=0.4)
    assert found.low == pytest.approx(np.quantile(means, 0.3, method="nearest"), abs=1e-9)
    assert found.mean == 0.75


def test_differences_are_paired() -> None:
    # Values differ wildly between questions and by exactly 0.1 within each: no uncertainty is left.
    base = {f"q{i}": float(i) for i in range(20)}
    found = bootstrap_difference({name: value + 0.1 for name, value in base.items()}, base)
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1)


def test_only_questions_that_both_have_are_compared() -> None:
    found = bootstrap_difference({"a": 1.0, "b": 5.0}, {"a": 0.5, "c": 9.0})
    assert (found.mean, found.n) == (0.5, 1)
    with pytest.raises(InvalidArgumentError, match="no question in common"):
        bootstrap_difference({"a": 1.0}, {"b": 1.0})


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one"):
        bootstrap_mean([])
    with pytest.raises(InvalidArgumentError, match="groups has 1 items for 2"):
        bootstrap_mean([1.0, 2.0], ["a"])
