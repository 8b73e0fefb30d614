"""What every scorer must return, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradrerank.errors import ScoringError, naming
from gradrerank.scorers.base import BatchScorer, Scorer, Scores, ScoringJob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Differences below this share of the largest utility are rounding of float32, not preference.
_RESOLUTION = 1e-6


def checked_scores(scores: Any, n: int, name: str) -> Scores:
    """Refuse an answer that would silently be matched with the wrong documents.

    Args:
        scores: What the scorer returned.
        n: Number of documents.
        name: The scorer's name, for messages.

    Returns:
        The scores with plain floats.

    Raises:
        ScoringError: When it is not a ``Scores``, has another length, or holds a value that is not a
            finite number, in the pieces of a document too.
    """
    if not isinstance(scores, Scores):
        raise ScoringError(f"scorer {name!r} must return Scores, got {type(scores).__name__}")
    if len(scores.utilities) != n or len(scores.spans) not in (0, n) or len(scores.stages) not in (0, n):
        raise ScoringError(
            f"scorer {name!r} returned {len(scores.utilities)} utilities, {len(scores.spans)} lists of spans and "
            f"{len(scores.stages)} stages for {n} documents"
        )
    utilities = [
        finite_score(value, f"the score that scorer {name!r} gave document {index}")
        for index, value in enumerate(scores.utilities)
    ]
    for index, spans in enumerate(scores.spans):
        for span in spans:
            finite_score(span.score, f"the score that scorer {name!r} gave a piece of document {index}")
    return replace(scores, utilities=utilities)


def score_jobs(scorer: Scorer, jobs: Sequence[ScoringJob]) -> list[Scores]:
    """Scores of jobs over the same documents, together where the scorer can, each checked.

    Args:
        scorer: The scorer.
        jobs: At least one job.

    Raises:
        ScoringError: When there are more or fewer scores than jobs, or one is unusable; where the jobs have
            names, the message begins with that of the one at fault.
    """
    found: Any
    if len(jobs) > 1 and isinstance(scorer, BatchScorer):
        found = scorer.score_batch(jobs)
    else:
        found = []
        for job in jobs:
            with naming(job.name):
                found.append(scorer.score(job))
    if not isinstance(found, (list, tuple)) or len(found) != len(jobs):
        what = f"{len(found)} of them" if isinstance(found, (list, tuple)) else type(found).__name__
        raise ScoringError(f"scorer {scorer.name!r} must return one Scores for each of {len(jobs)} jobs, got {what}")
    checked = []
    for scores, job in zip(found, jobs, strict=True):
        with naming(job.name):
            checked.append(checked_scores(scores, len(job.documents), scorer.name))
    return checked


def settle_near_ties(utilities: Sequence[float]) -> list[float]:
    """Utilities rounded so far that noise of the arithmetic cannot decide an order.

    Args:
        utilities: n finite floats.

    Returns:
        n floats; those that differ by less than a millionth of the largest magnitude are mostly equal,
        and equal ones keep the retrieval order.

    Example:
        >>> settle_near_ties([1.0, 0.2, 0.2 + 1e-9])[1:] == [0.2, 0.2]
        True
    """
    least = max(map(abs, utilities), default=0.0) * _RESOLUTION
    if least == 0.0:  # all are zero, or too small to have a millionth part
        return list(utilities)
    digits = max(0, -math.floor(math.log10(least)))
    return [round(value, digits) for value in utilities]


def finite_score(value: Any, what: str) -> float:
    """A score as a plain finite float.

    Args:
        value: What stands where a score should.
        what: What it is, for the message.

    Raises:
        ScoringError: When it is not a finite number.
    """
    try:
        plain = float(value)
    except (TypeError, ValueError) as error:
        raise ScoringError(f"{what} is {type(value).__name__} {value!r}, expected a number") from error
    if not math.isfinite(plain):
        raise ScoringError(f"{what} is {plain}, expected a finite number")
    return plain


def check_finite(values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """Numbers that a score will be made from, before a comparison or a step can hide one that is none.

    Args:
        values: Any array; its last axis is counted by what stands before the position in the message.
        what: What one of them is, for the message, for instance ``"the gradient in the gate of document"``.

    Returns:
        The array.

    Raises:
        ScoringError: When one is not finite.
    """
    import numpy as np

    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        raise ScoringError(f"{what} {wrong[0][-1]} is {values[tuple(wrong[0])]}, expected a finite number")
    return values
