"""Scorers by name. Another one is one file here, or any object with the same protocol."""

from __future__ import annotations

from collections.abc import Callable

from gradrerank.errors import InvalidTypeError
from gradrerank.scorers.ablation import AblationScorer
from gradrerank.scorers.attention import AttentionScorer
from gradrerank.scorers.base import BatchScorer, Scorer, Scores, ScoringJob
from gradrerank.scorers.gates import GatesScorer
from gradrerank.scorers.iterated import IteratedGatesScorer
from gradrerank.scorers.likelihood import LikelihoodScorer
from gradrerank.scorers.mixture import MixtureScorer
from gradrerank.scorers.surrogate import SurrogateScorer
from gradrerank.validation import check_choice

SCORERS: dict[str, Callable[[], Scorer]] = {
    "gates": GatesScorer,
    "iterated": IteratedGatesScorer,
    "mixture": MixtureScorer,
    "ablation": AblationScorer,
    "likelihood": LikelihoodScorer,
    "attention": AttentionScorer,
    "surrogate": SurrogateScorer,
}

__all__ = [
    "SCORERS",
    "AblationScorer",
    "AttentionScorer",
    "BatchScorer",
    "GatesScorer",
    "IteratedGatesScorer",
    "LikelihoodScorer",
    "MixtureScorer",
    "Scorer",
    "Scores",
    "ScoringJob",
    "SurrogateScorer",
    "as_scorer",
]


def as_scorer(scorer: str | Scorer) -> Scorer:
    """Find a scorer by its name, or take one as it is.

    Args:
        scorer: A name in :data:`SCORERS`, or an object with ``name`` and ``score``.

    Returns:
        The scorer, with its default settings when it was named.

    Raises:
        InvalidArgumentError: When no scorer has this name.
        InvalidTypeError: When it is neither a name nor a scorer.

    Example:
        >>> as_scorer("gates").name
        'gates'
    """
    if isinstance(scorer, str):
        return SCORERS[check_choice("scorer", scorer, tuple(SCORERS))]()
    if isinstance(scorer, type) or not isinstance(scorer, Scorer):
        raise InvalidTypeError(
            f"scorer must be one of {sorted(SCORERS)} or an object with name and score, got {scorer!r}"
        )
    return scorer
