"""Sparse linear regression: few columns explain much, or so it is assumed.

    minimise over w, b    1/(2N) |y - b - X w|^2 + alpha |w|_1        columns of X centred and of unit deviation

by coordinate descent on the columns that are needed (Friedman, Hastie and Tibshirani 2010): columns
outside take part only once their correlation with the residual is above alpha, the optimality
condition. So the cost grows with the columns that explain something, not with all there are. Between
sweeps the weights leap to the minimum of their signs (Lee, Battle, Raina and Ng 2007).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SWEEPS = 1_000
# Penalties on the way from the largest that leaves any weight to the one that is asked for.
_STEPS = 20
# Progress and violations below this share of the deviation of y are rounding.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class LinearFit:
    """A fitted linear function.

    Args:
        weights: [p], one for each column in the column's own unit; 0 for a column that never varies.
        intercept: The value where all columns are 0.
        r2: Share of the variance of y that is explained, 1 where y has none.
    """

    weights: NDArray[np.float64]
    intercept: float
    r2: float


def fit_lasso(columns: ArrayLike, y: ArrayLike, alpha: float) -> LinearFit:
    """Fit y by few columns.

    Args:
        columns: [N, p], left as it is.
        y: [N].
        alpha: Penalty of a standardised weight, in the unit of y; 0 is least squares, and of several
            solutions the one with the smallest standardised weights.

    Returns:
        The fit.

    Example:
        >>> fit = fit_lasso([[0, 0], [0, 1], [1, 0], [1, 1]], [1.0, 2.0, 3.0, 4.0], alpha=0.0)
        >>> fit.weights.round(6).tolist(), round(fit.intercept, 6)
        ([2.0, 1.0], 1.0)
    """
    x, target = np.asarray(columns, dtype=np.float64), np.asarray(y, dtype=np.float64)
    centre, deviation = x.mean(0), x.std(0)
    # A column that never varies says nothing, however often it is divided by the rounding of zero.
    varies = deviation > 1e-12 * np.maximum(1.0, np.abs(centre))
    standard = (x[:, varies] - centre[varies]) / deviation[varies]
    centred = target - target.mean()
    weights = np.zeros(x.shape[1])
    found = np.linalg.lstsq(standard, centred, rcond=None)[0] if alpha == 0 else _descend(standard, centred, alpha)
    weights[varies] = found / deviation[varies]
    total, rest = float(centred @ centred), float(np.sum((centred - standard @ found) ** 2))
    return LinearFit(weights, float(target.mean() - centre @ weights), max(0.0, 1 - rest / total) if total > 0 else 1.0)


def _descend(x: NDArray[np.float64], y: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Weights of standardised columns for a centred y, along a path of penalties that ends at alpha."""
    weights, residual = np.zeros(x.shape[1]), y.copy()
    strongest = float(np.abs(y @ x).max(initial=0.0)) / len(y)
    slack = _TOLERANCE * float(y.std())
    if strongest <= alpha:
        return weights
    for penalty in np.geomspace(strongest, alpha, _STEPS)[1:]:
        _settle(x, weights, residual, np.flatnonzero(weights), penalty, slack)
        for _ in range(_SWEEPS):
            pull = np.abs(residual @ x) / len(y)
            wanting = np.flatnonzero((weights == 0) & (pull > penalty + slack))
            if not len(wanting):
                break
            # More columns than samples are never needed at once; those that pull hardest come first.
            strong = wanting[np.argsort(-pull[wanting], kind="stable")[: len(y)]]
            _settle(x, weights, residual, np.sort(np.append(np.flatnonzero(weights), strong)), penalty, slack)
    return weights


def _settle(
    x: NDArray[np.float64],
    weights: NDArray[np.float64],
    residual: NDArray[np.float64],
    active: NDArray[np.intp],
    penalty: float,
    slack: float,
) -> None:
    """Move the active weights, and the residual with them, until none moves further."""
    columns, found = np.ascontiguousarray(x[:, active].T), weights[active]
    for _ in range(_SWEEPS):
        largest = 0.0
        for j, column in enumerate(columns):
            slope = float(found[j]) + float(column @ residual) / len(residual)
            change = math.copysign(max(abs(slope) - penalty, 0.0), slope) - float(found[j])
            if change:
                residual -= column * change
                largest = max(largest, abs(change))
                found[j] += change
        if largest <= slack:
            break
        while _leap(columns, found, residual, penalty):
            pass
    weights[active] = found


def _leap(
    columns: NDArray[np.float64], found: NDArray[np.float64], residual: NDArray[np.float64], penalty: float
) -> bool:
    """Go at once to the best weights of the present signs, or as far as the first that would change its sign.

    Where columns are alike, single steps come to this point very slowly.

    Returns:
        Whether a weight became 0, so that a further leap may follow.
    """
    at = np.flatnonzero(found)
    some, signs = columns[at], np.sign(found[at])
    # rcond: what NumPy 2 does by itself, with earlier ones too.
    step = np.linalg.lstsq(
        some @ some.T / len(residual), some @ residual / len(residual) - penalty * signs, rcond=None
    )[0]
    shrinking = signs * step < 0
    lengths = np.where(shrinking, -found[at] / np.where(shrinking, step, 1.0), np.inf)
    length = min(1.0, float(lengths.min(initial=np.inf)))
    after, left = found[at] + length * step, residual - length * (step @ some)
    if length < 1:
        after[lengths.argmin()] = 0.0
        left = residual - (after - found[at]) @ some

    def cost(rest: NDArray[np.float64], some_weights: NDArray[np.float64]) -> float:
        return float(rest @ rest) / (2 * len(rest)) + penalty * float(np.abs(some_weights).sum())

    if cost(left, after) >= cost(residual, found[at]):
        return False
    found[at], residual[:] = after, left
    return length < 1
