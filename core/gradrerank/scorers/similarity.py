"""Cosine of the sentence embeddings of query and document: the familiar bi-encoder.

A baseline by itself, and beside scorers that read the language model a cheap further opinion: the
vectors of documents are kept by the encoder, so a call encodes the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradrerank.errors import ScoringError
from gradrerank.scorers.base import Scores, ScoringJob


@dataclass(frozen=True, slots=True)
class SimilarityScorer:
    """Score each document by the cosine of its embedding with that of the query.

    The encoder is that of the reranker. The target is not looked at, and the unit is that of a cosine,
    not nats.

    Example:
        >>> SimilarityScorer().name
        'similarity'
    """

    name: ClassVar[str] = "similarity"

    def score(self, job: ScoringJob) -> Scores:
        """Score by cosine.

        Returns:
            Cosines between -1 and 1.

        Raises:
            ScoringError: When the job has no encoder, or the encoder returns something unusable.
        """
        from gradrerank.sources.embedding import embed

        if job.encoder is None:
            raise ScoringError("scorer 'similarity' needs a sentence encoder, and this job has none")
        texts = [f"{d.title}\n{d.text}" if d.title else d.text for d in job.documents]
        rows = embed(job.encoder, [*texts, job.query])
        job.tokens["documents"] += 0
        return Scores((rows[:-1] @ rows[-1]).tolist())
