"""The final score of a document: what the model said of it, and what the caller knew before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradrerank.context.retrieval import retrieval_evidence
from gradrerank.scorers.checking import finite_score, settle_near_ties
from gradrerank.sources.weights import log_prior

if TYPE_CHECKING:
    from gradrerank.calibration import ScoreCalibration
    from gradrerank.call import Call
    from gradrerank.settings import Settings


@dataclass(frozen=True, slots=True)
class FinalScores:
    """Scores to rank by.

    Args:
        scores: n floats, rounded to a millionth of the largest so that arithmetic noise decides nothing.
        stages: For each of the n documents what each stage added, by name.
    """

    scores: Sequence[float]
    stages: Sequence[Mapping[str, float]]


def final_scores(call: Call, use: Settings, scorer: str) -> FinalScores:
    """Add what is known besides the utilities: the prior of the sources and what retrieval said.

    The prior is told in :mod:`gradrerank.sources.weights`, the evidence of retrieval in
    :mod:`gradrerank.context.retrieval`. The evidence e, which has no unit, is given that of the
    utilities u:

        score = u + log(w) / T + fusion_weight * sd(u) * e

    Args:
        call: The query with its candidates and their utilities in nats of the target's mean loss.
        use: The settings.
        scorer: Name of the scorer, for the stages.

    Returns:
        The final scores.

    Raises:
        ScoringError: When a sum is too large to be a number.
    """
    candidates, utilities = call.pool.candidates, call.scores.utilities
    stages: list[dict[str, float]] = [{scorer: utility} for utility in utilities]
    for stage, parts in zip(stages, call.scores.stages, strict=bool(call.scores.stages)):
        stage.update(parts)
    added = {}
    if call.weights is not None:
        n_target = len(call.goal.continuation.target)
        added["prior"] = [log_prior(candidate.sources, call.weights) / n_target for candidate in candidates]
    if use.fusion in ("rrf", "score"):
        evidence = retrieval_evidence(use.fusion, candidates, utilities, call.weights)
        added["retrieval"] = (use.fusion_weight * float(np.std(utilities)) * evidence).tolist()
    for name, values in added.items():
        for stage, value in zip(stages, values, strict=True):
            stage[name] = value
    totals = [
        finite_score(sum(parts), f"the score of document {index}, with {' and '.join(added)},")
        for index, parts in enumerate(zip(utilities, *added.values(), strict=True))
    ]
    return FinalScores(settle_near_ties(totals), stages)


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
