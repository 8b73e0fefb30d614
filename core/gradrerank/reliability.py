"""Can predicted probabilities be believed? The reliability curve and the expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gradrerank.errors import InvalidArgumentError
from gradrerank.validation import check_count


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Documents of similar probability.

    Args:
        low: Lower edge of the bin.
        high: Upper edge.
        n: Documents in it.
        predicted: Mean of their probabilities.
        observed: Share of them that are worth reading.
    """

    low: float
    high: float
    n: int
    predicted: float
    observed: float


def reliability_curve(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 10) -> list[ReliabilityBin]:
    """How often what was predicted came true, in bins of equal width; empty ones are left out.

    Use documents that the calibration was not fitted on.

    Args:
        probabilities: n probabilities.
        labels: For each whether it was worth reading.
        bins: Number of bins.

    Raises:
        InvalidArgumentError: When the numbers differ, or a probability is not between 0 and 1.

    Example:
        >>> [(b.n, b.predicted, b.observed) for b in reliability_curve([0.1, 0.9, 0.9], [0, 1, 0], bins=2)]
        [(1, 0.1, 0.0), (2, 0.9, 0.5)]
    """
    n = check_count("bins", bins)
    predicted, observed = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if predicted.shape != observed.shape or predicted.ndim != 1:
        raise InvalidArgumentError(
            f"probabilities and labels must be vectors of one length, got shapes {predicted.shape} and {observed.shape}"
        )
    if not ((predicted >= 0) & (predicted <= 1)).all():
        raise InvalidArgumentError("probabilities must be between 0 and 1")
    places = np.minimum((predicted * n).astype(int), n - 1)
    return [
        ReliabilityBin(
            int(b) / n,
            (int(b) + 1) / n,
            int((places == b).sum()),
            float(predicted[places == b].mean()),
            float(observed[places == b].mean()),
        )
        for b in np.unique(places)
    ]


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 10) -> float:
    """Mean distance between predicted and observed, over bins weighted by their documents; 0 is perfect.

    Args:
        probabilities: n probabilities, of documents that the calibration was not fitted on.
        labels: For each whether it was worth reading.
        bins: Number of bins.

    Raises:
        InvalidArgumentError: As in :func:`reliability_curve`, or when there are none.

    Example:
        >>> round(expected_calibration_error([0.1, 0.9, 0.9], [0, 1, 0], bins=2), 3)
        0.3
    """
    curve = reliability_curve(probabilities, labels, bins=bins)
    if not curve:
        raise InvalidArgumentError("probabilities must hold at least one, got none")
    return sum(b.n * abs(b.predicted - b.observed) for b in curve) / sum(b.n for b in curve)
