"""Scorers by name. Another one is one file here, or any object with the same protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.scorers.ablation import AblationScorer
from gradrerank.scorers.attention import AttentionScorer
from gradrerank.scorers.base import BatchScorer, Scorer, Scores, ScoringJob
from gradrerank.scorers.combined import CombinedScorer
from gradrerank.scorers.encoded import EncodedScorer
from gradrerank.scorers.gates import GatesScorer
from gradrerank.scorers.iterated import IteratedGatesScorer
from gradrerank.scorers.likelihood import LikelihoodScorer
from gradrerank.scorers.linked import LINKS, LinkedScorer
from gradrerank.scorers.mixture import MixtureScorer
from gradrerank.scorers.removal import RemovalScorer
from gradrerank.scorers.similarity import SimilarityScorer
from gradrerank.scorers.surrogate import SurrogateScorer
from gradrerank.validation import check_choice

SCORERS: dict[str, Callable[[], Scorer]] = {
    "gates": GatesScorer,
    "iterated": IteratedGatesScorer,
    "mixture": MixtureScorer,
    "ablation": AblationScorer,
    "removal": RemovalScorer,
    "likelihood": LikelihoodScorer,
    "attention": AttentionScorer,
    "surrogate": SurrogateScorer,
    "similarity": SimilarityScorer,
}

DEFAULT_SCORER = "gates+likelihood+links"
"""What is best on training questions of its own cost; see benchmarks/RESULTS.md."""

__all__ = [
    "DEFAULT_SCORER",
    "LINKS",
    "SCORERS",
    "AblationScorer",
    "AttentionScorer",
    "BatchScorer",
    "CombinedScorer",
    "EncodedScorer",
    "GatesScorer",
    "IteratedGatesScorer",
    "LikelihoodScorer",
    "LinkedScorer",
    "MixtureScorer",
    "RemovalScorer",
    "Scorer",
    "Scores",
    "ScoringJob",
    "SimilarityScorer",
    "SurrogateScorer",
    "as_scorer",
]


def as_scorer(scorer: str | Scorer) -> Scorer:
    """Find a scorer by its name, or take one as it is.

    Args:
        scorer: A name in :data:`SCORERS`, several joined by ``+`` (see
            :class:`~gradrerank.scorers.combined.CombinedScorer`), also with ``links`` (see
            :class:`~gradrerank.scorers.linked.LinkedScorer`), or an object with ``name`` and ``score``.

    Returns:
        The scorer, with its default settings when it was named. Where several are joined, ``"gates"`` is
        the sum of a document's two best sentences, and ``"likelihood"`` the share of the words that a
        document explains, which weighs three times as much as gates, and ``"similarity"`` three quarters:
        what was best on training questions (benchmarks/RESULTS.md). Links are added last, wherever they stand.

    Raises:
        InvalidArgumentError: When no scorer has this name, one is joined with itself, or links with none.
        InvalidTypeError: When it is neither a name nor a scorer.

    Example:
        >>> as_scorer("gates").name, as_scorer("gates+likelihood+links").name
        ('gates', 'gates+likelihood+links')
    """
    if isinstance(scorer, str):
        return _named(scorer)
    if isinstance(scorer, type) or not isinstance(scorer, Scorer):
        raise InvalidTypeError(
            f"scorer must be one of {sorted(SCORERS)} or an object with name and score, got {scorer!r}"
        )
    return scorer


def _named(text: str) -> Scorer:
    """The scorer of a name, or of several joined by ``+``."""
    names = [name.strip() for name in text.split("+")]
    for name in names:
        check_choice("scorer", name if len(names) > 1 else text, (*SCORERS, LINKS))
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"scorer joins a scorer with itself: {text!r}")
    if names == [LINKS]:
        raise InvalidArgumentError("scorer 'links' passes on what another one finds: join it, as in 'gates+links'")
    if LINKS in names:
        others = _named("+".join(name for name in names if name != LINKS))
        # The default alone lets the encoder speak: whoever names another scorer gets that and nothing else.
        return LinkedScorer(EncodedScorer(others) if f"{others.name}+{LINKS}" == DEFAULT_SCORER else others)
    if len(names) == 1:
        return SCORERS[text]()
    joined = [_JOINED.get(name, SCORERS[name])() for name in names]
    return CombinedScorer(joined, [_WEIGHTS.get(name, 1.0) / _WEIGHTS.get(names[0], 1.0) for name in names[1:]])


# What is best beside another scorer is not what peers are measured by.
_JOINED: dict[str, Callable[[], Scorer]] = {
    "gates": partial(GatesScorer, best=2),
    "likelihood": partial(LikelihoodScorer, shares=True),
}
_WEIGHTS = {"likelihood": 3.0, "similarity": 0.75}
