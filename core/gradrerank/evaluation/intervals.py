"""Confidence intervals by the bootstrap: of a mean, and of the mean of paired differences.

Questions are drawn with replacement, those of one group together (a cluster bootstrap), and the
interval lies between quantiles of the means (the percentile method; Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import InvalidArgumentError

# Numbers that are drawn at a time, so that memory stays small for any number of questions.
_AT_A_TIME = 1_000_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval.

    Args:
        mean: Mean over the questions.
        low: Lower end of the interval.
        high: Upper end.
        n: Number of questions that it is over.
    """

    mean: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float]:
        """Mean, low, high and n by name."""
        return asdict(self)


def bootstrap_mean(
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    draws: int = 10_000,
    level: float = 0.95,
) -> Estimate:
    """The mean of some values with a bootstrap interval.

    Args:
        values: One value for each of n questions.
        groups: The group of each question; None makes each its own.
        seed: Seed of the draws.
        draws: Number of draws.
        level: Share of the means between the ends.

    Returns:
        The estimate.

    Raises:
        InvalidArgumentError: When there is no value, or groups has another length.

    Example:
        >>> bootstrap_mean([0.5, 0.5, 0.5])
        Estimate(mean=0.5, low=0.5, high=0.5, n=3)
    """
    if not len(values):
        raise InvalidArgumentError("values must hold at least one value, got none")
    names = range(len(values)) if groups is None else groups
    if len(names) != len(values):
        raise InvalidArgumentError(f"groups has {len(names)} items for {len(values)} values")
    sums: dict[Hashable, float] = {}
    counts: dict[Hashable, int] = {}
    for name, value in zip(names, values, strict=True):
        sums[name] = sums.get(name, 0.0) + value
        counts[name] = counts.get(name, 0) + 1
    means = _drawn_means(np.array(list(sums.values())), np.array(list(counts.values())), seed, draws)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(np.mean(values)), float(low), float(high), len(values))


def bootstrap_difference(
    values: Mapping[str, float],
    base: Mapping[str, float],
    groups: Mapping[str, Hashable] | None = None,
    *,
    seed: int = 0,
    draws: int = 10_000,
    level: float = 0.95,
) -> Estimate:
    """The mean of ``values - base`` over the questions that both have, with a bootstrap interval.

    Args:
        values: Values by question.
        base: Values by question that they are compared with.
        groups: Group of each question; None makes each its own.
        seed: Seed of the draws.
        draws: Number of draws.
        level: Share of the differences between the ends.

    Raises:
        InvalidArgumentError: When they have no question in common.
    """
    shared = [name for name in values if name in base]
    if not shared:
        raise InvalidArgumentError("values and base have no question in common")
    differences = [values[name] - base[name] for name in shared]
    names = None if groups is None else [groups[name] for name in shared]
    return bootstrap_mean(differences, names, seed=seed, draws=draws, level=level)


def _drawn_means(sums: NDArray[np.float64], counts: NDArray[np.int64], seed: int, draws: int) -> NDArray[np.float64]:
    """[draws] means over groups drawn with replacement."""
    rng = np.random.default_rng(seed)
    n, means = len(sums), []
    while draws > 0:
        rows = min(draws, max(1, _AT_A_TIME // n))
        drawn = rng.integers(0, n, (rows, n))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
        draws -= rows
    return np.concatenate(means)
