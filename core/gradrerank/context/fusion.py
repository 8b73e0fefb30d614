"""The final score of a document: what the model said of it, and what the caller knew before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradrerank.scorers.checking import settle_near_ties
from gradrerank.sources.weights import log_prior

if TYPE_CHECKING:
    from gradrerank.calibration import ScoreCalibration
    from gradrerank.scorers.base import Scores
    from gradrerank.sources.pool import Candidate


@dataclass(frozen=True, slots=True)
class FinalScores:
    """Scores to rank by.

    Args:
        scores: n floats, rounded to a millionth of the largest so that arithmetic noise decides nothing.
        stages: For each of the n documents what each stage added, by name.
    """

    scores: Sequence[float]
    stages: Sequence[Mapping[str, float]]


def final_scores(
    scores: Scores,
    candidates: Sequence[Candidate],
    weights: Mapping[str, float] | None,
    n_target: int,
    scorer: str,
) -> FinalScores:
    """Add the prior of the sources to the utilities (see :mod:`gradrerank.sources.weights`).

    Args:
        scores: Utilities of n documents in nats of the target's mean loss.
        candidates: The n documents with the sources that found them.
        weights: Weights of the sources between 0 and 1, or None.
        n_target: Number of tokens T of the target.
        scorer: Name of the stage that gave the utilities.

    Returns:
        The final scores.
    """
    if weights is None:
        return FinalScores(settle_near_ties(scores.utilities), [{scorer: value} for value in scores.utilities])
    priors = [log_prior(candidate.sources, weights) / n_target for candidate in candidates]
    pairs = list(zip(scores.utilities, priors, strict=True))
    return FinalScores(
        settle_near_ties([utility + prior for utility, prior in pairs]),
        [{scorer: utility, "prior": prior} for utility, prior in pairs],
    )


def with_probabilities(final: FinalScores, calibration: ScoreCalibration | None) -> FinalScores:
    """Add to the stages the probability that a document is worth reading; scores stay as they are.

    Args:
        final: Final scores of all documents of a query.
        calibration: What turns scores into probabilities, or None.
    """
    if calibration is None:
        return final
    pairs = zip(final.stages, calibration.probabilities(final.scores), strict=True)
    return FinalScores(final.scores, [{**stage, "probability": probability} for stage, probability in pairs])
