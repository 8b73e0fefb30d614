"""Maximal marginal relevance: a document that resembles one that is kept is worth less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradrerank.context.choosing import ChoiceJob


@dataclass(frozen=True, slots=True)
class MaximalMarginalRelevance:
    """Take the documents by ``balance * score - (1 - balance) * (largest cosine with one that is kept)``.

    Carbonell and Goldstein, "The use of MMR, diversity-based reranking", 1998, with the score of the
    ranking as relevance, scaled to 0 ... 1 over the documents, and the cosine of sentence embeddings as
    similarity. Equal values are decided by the ranking.

    Args:
        balance: 1 is the order of the ranking; the smaller, the more diverse (setting ``mmr_lambda``).
    """

    balance: float = 0.7
    name: str = "mmr"

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        """All that fit, one by one; a document that does not fit makes no other one redundant."""
        if not len(job):
            return []
        vectors = job.vectors()
        cosines = vectors @ vectors.T
        scores = np.asarray(job.scores)
        spread = scores.max() - scores.min()
        relevance = (scores - scores.min()) / (spread or 1.0)
        kept, left = list(job.required), job.free()
        while left:
            nearest = cosines[:, kept].max(axis=1) if kept else np.zeros(len(job))
            # Rounded, so that noise of the arithmetic decides nothing.
            values = np.round(self.balance * relevance - (1 - self.balance) * nearest, 6)
            best = max(left, key=lambda i: (values[i], -i))
            left.remove(best)
            if job.fits(kept, best):
                kept.append(best)
        return kept
