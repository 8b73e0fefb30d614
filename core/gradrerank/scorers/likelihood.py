"""How likely the target is behind one document alone (UPR, Sachan et al. 2022).

    phi_i = L(no document) - L(document i alone)

The order is that of log p(target given document i), as in UPR; the loss without any document is the
same for all, and taking it away gives the score a sign: positive where the document alone lowers the
loss. A row reads the prefix, its own document's cache and the question, so the cost grows with the
number of documents times the length of the question, and not with the length of the documents.

With ``above_average``, only the words count that a document explains better than the candidates do on
average. With the gain g_ik of document i at token k of T,

    phi_i = 1/T  sum over k of  max(0, g_ik - mean over j of g_jk)

A document that holds one part of a question made of two is then not set back by the other part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradrerank.scorers.base import Scores, ScoringJob

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LikelihoodScorer:
    """Score each document by the likelihood of the target behind it alone.

    Args:
        above_average: Whether only those tokens of the target count that the document explains better than
            the candidates do on average.

    Example:
        >>> LikelihoodScorer().name
        'likelihood'
    """

    above_average: bool = False
    name: ClassVar[str] = "likelihood"

    def score(self, job: ScoringJob) -> Scores:
        """Score every document on its own.

        Returns:
            Utilities in nats of the target's mean loss; ``details["loss"]`` is the loss without a
            document and ``details["rows"]`` the number of times that the question was read.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents; their rows pass through the model together."""
        import torch

        from gradrerank.lm.apart import losses_apart

        rows = [None, *jobs[0].caches()]
        found = losses_apart(jobs[0].generator, rows * len(jobs), [job.continuation for job in jobs for _ in rows])
        results = []
        for i, job in enumerate(jobs):
            alone, *behind = found[i * len(rows) : (i + 1) * len(rows)]
            job.tokens["documents"] += 0
            job.tokens["question"] += len(rows) * len(job.continuation)
            details = {"loss": float(alone.mean()), "rows": len(rows)}
            results.append(Scores(self._utilities(alone - torch.stack(behind)), details=details))
        return results

    def _utilities(self, gains: Tensor) -> list[float]:
        """[n, T] gains of each token as n utilities."""
        if self.above_average and len(gains) > 1:
            gains = (gains - gains.mean(0)).clamp(min=0)
        utilities: list[float] = gains.mean(1).tolist()
        return utilities
