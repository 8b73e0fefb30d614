"""How likely the target is behind one document alone (UPR, Sachan et al. 2022).

    phi_i = L(no document) - L(document i alone)

The order is that of log p(target given document i), as in UPR; the loss without any document is the
same for all, and taking it away gives the score a sign: positive where the document alone lowers the
loss. A row reads the prefix, its own document's cache and the question, so the cost grows with the
number of documents times the length of the question, and not with the length of the documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradrerank.scorers.base import Scores, ScoringJob


@dataclass(frozen=True, slots=True)
class LikelihoodScorer:
    """Score each document by the likelihood of the target behind it alone.

    Example:
        >>> LikelihoodScorer().name
        'likelihood'
    """

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
        from gradrerank.lm.apart import losses_apart

        generator, documents = jobs[0].generator, jobs[0].documents
        caches = generator.reader.read([d.ids for d in documents], jobs[0].tokens)
        rows = [None, *caches]
        found = losses_apart(generator, rows * len(jobs), [job.continuation for job in jobs for _ in rows])
        means = [float(losses.mean()) for losses in found]
        results = []
        for i, job in enumerate(jobs):
            alone, *behind = means[i * len(rows) : (i + 1) * len(rows)]
            job.tokens["documents"] += 0
            job.tokens["question"] += len(rows) * len(job.continuation)
            results.append(Scores([alone - loss for loss in behind], details={"loss": alone, "rows": len(rows)}))
        return results
