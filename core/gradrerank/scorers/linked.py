r"""Utility passed on from a document to those it names: the second step of a question of two steps.

A question says what its first document is about; what the second one is about, only the first one says. So
the model finds the second no better than any other document, whichever way its loss is read, until it
is told what the first one leads to. The names in the texts tell it: with the utilities u of any scorer, and N(i)
the documents that document i names,

    phi_j = u_j + weight * max over i with j in N(i) of  max(u_i, 0) / |N(i)|

The largest counts, not the sum, so that what is named all over the pool does not win by that alone. A
document without a title is named by none, and keeps its utility; so does every one where no text names
another. No document loses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.base import Scorer, Scores, ScoringJob
from gradrerank.scorers.checking import score_jobs
from gradrerank.scorers.mentions import mentions
from gradrerank.validation import check_number

if TYPE_CHECKING:
    from gradrerank.lm.prompt import DocumentTokens

LINKS = "links"
"""What links are called in the name of a scorer and in the stages of a score."""

PASSED_ON = 0.75
"""The part of its utility that a document passes on, unless another is named."""


@dataclass(frozen=True, slots=True)
class LinkedScorer:
    """Score documents by another scorer, and let those with positive utility pass a part of it to those they name.

    Args:
        scorer: Gives the utilities that are passed on, and their unit.
        weight: How much of its positive utility a document passes on, from 0, split evenly among those it
            names; three quarters was best on training questions, and a half and the whole were nearly as good
            (benchmarks/RESULTS.md).

    Raises:
        InvalidArgumentError: When scorer is none or has links already, or weight is negative.

    Example:
        >>> from gradrerank.scorers import GatesScorer
        >>> LinkedScorer(GatesScorer()).name
        'gates+links'
    """

    scorer: Scorer
    weight: float = PASSED_ON

    def __post_init__(self) -> None:
        """Check scorer and weight."""
        if isinstance(self.scorer, type) or not isinstance(self.scorer, Scorer):
            raise InvalidArgumentError(f"scorer must be an object with name and score, got {self.scorer!r}")
        if isinstance(self.scorer, LinkedScorer):
            raise InvalidArgumentError(f"scorer must be one without links, got {self.scorer.name!r}")
        check_number("weight", self.weight, minimum=0.0)

    @property
    def name(self) -> str:
        """The name of the scorer, and that links were added."""
        return f"{self.scorer.name}+{LINKS}"

    def score(self, job: ScoringJob) -> Scores:
        """Score one query.

        Returns:
            Utilities in the unit of the scorer; in ``stages`` what it gave and what links added, in
            ``details["links"]`` which document named which, as pairs of places among the candidates.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents, together where the scorer can."""
        documents = jobs[0].documents
        named = mentions([d.called or d.title for d in documents], [_naming_part(d) for d in documents])
        return [self._linked(scores, named) for scores in score_jobs(self.scorer, jobs)]

    def _linked(self, scores: Scores, named: Sequence[Sequence[int]]) -> Scores:
        added = passed_on(scores.utilities, named, self.weight)
        before = scores.stages or [{self.scorer.name: utility} for utility in scores.utilities]
        return replace(
            scores,
            utilities=[utility + more for utility, more in zip(scores.utilities, added, strict=True)],
            details={**scores.details, LINKS: [[i, j] for i, others in enumerate(named) for j in others]},
            stages=[{**stage, LINKS: more} for stage, more in zip(before, added, strict=True)],
        )


def _naming_part(document: DocumentTokens) -> str:
    """What names others in a text: what its author wrote and the model reads, without a word that is cut in two."""
    text, (start, end), limit = document.text, document.own or (0, len(document.text)), document.kept[1]
    if end <= limit:
        return text[start:end]
    part = text[start:limit]
    return re.sub(r"\w+$", "", part) if text[limit : limit + 1].isalnum() else part


def passed_on(utilities: Sequence[float], named: Sequence[Sequence[int]], weight: float) -> list[float]:
    """What each document gets from that one of those that name it which passes on most.

    Args:
        utilities: n signed utilities.
        named: For each document the indices of those it names.
        weight: The part of its positive utility that a document passes on.

    Returns:
        n numbers, none negative, in the unit of the utilities; none is larger than ``weight`` times the
        largest utility.

    Example:
        >>> passed_on([0.4, 0.1, -0.2], [[1, 2], [], [0]], 0.5)
        [0.0, 0.1, 0.1]
    """
    added = [0.0] * len(utilities)
    for utility, others in zip(utilities, named, strict=True):
        for other in others:
            added[other] = max(added[other], weight * utility / len(others))
    return added
