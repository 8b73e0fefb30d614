r"""Several scorers on the same caches as one: each errs on other questions.

The gates say what a document adds to all others; the likelihood says what it is worth alone. What is
worth nothing beside the others may be the answer said twice, and what is worth much alone may be
the same answer for every document of its subject, so neither decides by itself. With the utilities
g of the first scorer and l of each further one,

    phi_i = (g_i + sum over l of  w_l  sd(g) / sd(l)  (l_i - mean(l)))  /  (1 + sum of w_l)

the weighted mean of all scorers, each with the spread of the first one. So a combination keeps the
unit of its first scorer, a document that is average to all others keeps the sign that the first one
gave it, and no scorer counts more because its numbers are larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.base import Scorer, Scores, ScoringJob
from gradrerank.scorers.checking import score_jobs
from gradrerank.validation import check_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class CombinedScorer:
    """Score documents by several scorers together.

    Args:
        scorers: At least two scorers. The first gives the unit of the utilities, and the utilities of pieces
            inside documents.
        weights: The weight of each further scorer, from 0; None weighs all like the first.

    Raises:
        InvalidArgumentError: When there are fewer than two scorers, or weights do not fit them.

    Example:
        >>> from gradrerank.scorers import GatesScorer, LikelihoodScorer
        >>> CombinedScorer((GatesScorer(), LikelihoodScorer())).name
        'gates+likelihood'
    """

    scorers: Sequence[Scorer]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check scorers and weights."""
        if len(self.scorers) < 2:
            raise InvalidArgumentError(f"scorers must be at least two, got {len(self.scorers)}")
        for scorer in self.scorers:
            if isinstance(scorer, type) or not isinstance(scorer, Scorer):
                raise InvalidArgumentError(f"scorers must be objects with name and score, got {scorer!r}")
        if self.weights is not None and len(self.weights) != len(self.scorers) - 1:
            raise InvalidArgumentError(
                f"weights must hold one number for each of the {len(self.scorers) - 1} scorers after the first, got "
                f"{len(self.weights)}"
            )
        for weight in self.weights or ():
            check_number("weights", weight, minimum=0.0)

    @property
    def name(self) -> str:
        """The names of the scorers, joined by a plus sign."""
        return "+".join(scorer.name for scorer in self.scorers)

    def score(self, job: ScoringJob) -> Scores:
        """Score one query.

        Returns:
            Utilities in the unit of the first scorer, what each scorer gave in ``stages``, and the details
            of all, those of the further ones under their names.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents, together where the scorers can."""
        columns = [score_jobs(scorer, jobs) for scorer in self.scorers]
        return [self._combined(parts) for parts in zip(*columns, strict=True)]

    def _combined(self, parts: Sequence[Scores]) -> Scores:
        import numpy as np

        first, *further = (np.asarray(part.utilities, dtype=float) for part in parts)
        total = first.copy()
        weights = self.weights or [1.0] * len(further)
        for weight, utilities in zip(weights, further, strict=True):
            total += weight * _in_units_of(first, utilities)
        total /= 1 + sum(weights)
        details = dict(parts[0].details)
        details |= {s.name: dict(part.details) for s, part in zip(self.scorers[1:], parts[1:], strict=True)}
        stages = [
            {s.name: float(part.utilities[i]) for s, part in zip(self.scorers, parts, strict=True)}
            for i in range(len(total))
        ]
        return Scores(total.tolist(), parts[0].spans, details, stages)


def _in_units_of(first: NDArray[np.float64], utilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Utilities about their mean, with the spread of the first scorer's where both have one."""
    centred: NDArray[np.float64] = utilities - utilities.mean()
    spread, own = float(first.std()), float(utilities.std())
    # Differences of rounding are no spread: they would be blown up to look like preference.
    if own <= 1e-9 * max(1.0, float(abs(utilities).max())):
        return centred * 0.0
    # A first scorer without preference lends no unit: one standard deviation is 1 then.
    return centred * ((spread or 1.0) / own)
