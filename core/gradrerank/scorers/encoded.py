r"""What the sentence encoder says beside another scorer, where it has read the documents anyway.

Where several sources are combined, all documents were embedded for the choice among them, so that their cosines
with the query are there for nothing. With the utilities u of another scorer and the cosines c,

    phi_i = u_i + weight * sd(u) * (c_i - mean(c)) / sd(c)

A job without cosines is scored as the other scorer scores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradrerank.scorers.base import Scorer, Scores, ScoringJob
from gradrerank.scorers.checking import score_jobs

ENCODER = "encoder"
"""What the encoder's part of a score is called in its stages."""


@dataclass(frozen=True, slots=True)
class EncodedScorer:
    """Score documents by another scorer, and let the encoder have a say where the job holds its cosines.

    Args:
        scorer: The other scorer, whose name and unit this one keeps.
        weight: What the encoder weighs beside it: 1 gives both the same spread. Three quarters is the default of
            the package (benchmarks/RESULTS.md).

    Example:
        >>> from gradrerank.scorers import GatesScorer
        >>> EncodedScorer(GatesScorer()).name
        'gates'
    """

    scorer: Scorer
    weight: float = 0.75

    @property
    def name(self) -> str:
        """The name of the other scorer."""
        return self.scorer.name

    def score(self, job: ScoringJob) -> Scores:
        """Score one query.

        Returns:
            Utilities in the unit of the other scorer; ``stages`` hold the encoder's part where it had a say.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents, together where the scorer can."""
        return [self._told(job, each) for job, each in zip(jobs, score_jobs(self.scorer, jobs), strict=True)]

    def _told(self, job: ScoringJob, scores: Scores) -> Scores:
        if job.cosines is None:
            return scores
        added = spread_like(job.cosines, scores.utilities, self.weight * job.cosine_weight)
        before = scores.stages or [{self.scorer.name: utility} for utility in scores.utilities]
        return replace(
            scores,
            utilities=[utility + more for utility, more in zip(scores.utilities, added, strict=True)],
            stages=[{**stage, ENCODER: more} for stage, more in zip(before, added, strict=True)],
        )


def spread_like(values: Sequence[float], others: Sequence[float], weight: float) -> list[float]:
    """Values about their mean, with a spread of ``weight`` times that of others; zeros where they have none.

    Args:
        values: n finite numbers, at least one.
        others: n finite numbers.
        weight: The spread in units of that of the others.

    Example:
        >>> spread_like([1.0, 3.0], [0.0, 8.0], 0.5), spread_like([0.3, 0.3], [0.0, 8.0], 0.5)
        ([-2.0, 2.0], [0.0, 0.0])
    """
    import numpy as np

    own = np.asarray(values, dtype=float)
    spread = float(own.std())
    if spread <= 1e-9 * max(1.0, float(np.abs(own).max())):
        return [0.0] * len(own)
    scaled: list[float] = (weight * float(np.std(others)) * (own - own.mean()) / spread).tolist()
    return scaled
