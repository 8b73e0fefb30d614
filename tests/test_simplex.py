"""The projection on the sparse simplex against brute force over all supports and a general solver."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from gradrerank.context.simplex import project_simplex
from gradrerank.errors import InvalidArgumentError

entries = st.floats(-5, 5).map(lambda x: round(x, 3))
vectors = st.lists(entries, min_size=1, max_size=6).map(np.array)
sizes = st.integers(1, 7)


def by_bisection(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Plain projection found without sorting: the sum of max(v - theta, 0) falls with theta."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(v - theta, 0).sum() > 1 else (low, theta)
    return np.maximum(v - low, 0)


def least_distance(v: NDArray[np.float64], k: int) -> float:
    """The distance to the sparse simplex, by trying every support."""
    best = np.inf
    for support in combinations(range(v.size), min(k, v.size)):
        w = np.zeros_like(v)
        w[list(support)] = by_bisection(v[list(support)])
        best = min(best, float(np.linalg.norm(v - w)))
    return best


@given(vectors, sizes)
def test_no_support_gives_a_nearer_point(v: NDArray[np.float64], k: int) -> None:
    w = project_simplex(v, k)
    assert np.linalg.norm(v - w) == pytest.approx(least_distance(v, k), abs=1e-9)


@given(vectors, sizes)
def test_the_result_is_on_the_sparse_simplex(v: NDArray[np.float64], k: int) -> None:
    before = v.copy()
    w = project_simplex(v, k)
    assert w.dtype == np.float64
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.count_nonzero(w) <= k
    np.testing.assert_array_equal(v, before)


@pytest.mark.parametrize("seed", range(5))
def test_the_plain_projection_agrees_with_a_quadratic_solver(seed: int) -> None:
    v = np.random.default_rng(seed).normal(size=8)
    solved = minimize(
        lambda w: ((w - v) ** 2).sum(),
        np.full(8, 1 / 8),
        jac=lambda w: 2 * (w - v),
        bounds=[(0, 1)] * 8,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(project_simplex(v), solved.x, atol=1e-6)


@given(vectors, sizes, st.floats(-100, 100).map(lambda x: round(x, 2)))
def test_adding_a_constant_changes_nothing(v: NDArray[np.float64], k: int, c: float) -> None:
    shifted = np.round(v + c, 3)  # rounding keeps ties ties
    np.testing.assert_allclose(project_simplex(shifted, k), project_simplex(v, k), atol=1e-9)


@given(vectors, sizes)
def test_projecting_twice_changes_nothing(v: NDArray[np.float64], k: int) -> None:
    once = project_simplex(v, k)
    np.testing.assert_allclose(project_simplex(once, k), once, atol=1e-12)


@given(st.lists(entries, min_size=1, max_size=6, unique=True).map(np.array), sizes, st.randoms())
def test_without_ties_the_order_of_the_entries_does_not_matter(v: NDArray[np.float64], k: int, random) -> None:
    order = list(range(v.size))
    random.shuffle(order)
    np.testing.assert_allclose(project_simplex(v[order], k), project_simplex(v, k)[order], atol=1e-12)


def test_of_equal_entries_the_first_are_kept() -> None:
    np.testing.assert_array_equal(project_simplex(np.zeros(4), k=2), [0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(project_simplex(np.zeros(4)), [0.25] * 4)
    many = np.tile([0.0, 1.0], 100)  # long enough for a sort that is not stable to show
    np.testing.assert_array_equal(np.flatnonzero(project_simplex(many, k=3)), [1, 3, 5])


def test_known_points() -> None:
    np.testing.assert_allclose(project_simplex([0.9, 0.5, -1.0]), [0.7, 0.3, 0.0])
    np.testing.assert_array_equal(project_simplex([-7.0]), [1.0])
    np.testing.assert_array_equal(project_simplex([3, 1], k=50), [1.0, 0.0])


@pytest.mark.parametrize("v", [[1e308, -1e308, 1e308], [1e16, 1e16 - 2, 0.0], [-1e308, -1e308, -1e308], [5e-324, 0, 0]])
def test_huge_and_tiny_numbers_stay_exact(v: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = project_simplex(v)
    near_top = np.array(v) >= max(v) - 0.5
    np.testing.assert_array_equal(w, near_top / near_top.sum())


@pytest.mark.parametrize("v", [[], [[0.1, 0.9]], 0.3, [0.1, np.nan], [np.inf, 0.0]])
def test_what_is_not_a_finite_vector_is_refused(v: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^v must be"):
        project_simplex(v)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "2"])
def test_C04_a_bad_k_is_refused(k: object) -> None:
    with pytest.raises(ValueError, match=r"^k must be a whole number"):
        project_simplex([0.5, 0.5], k)  # type: ignore[arg-type]
