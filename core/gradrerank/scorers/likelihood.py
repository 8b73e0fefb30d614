"""How likely the target is behind one document alone (UPR, Sachan et al. 2022).

    phi_i = L(no document) - L(document i alone)

The order is that of log p(target given document i), as in UPR; the loss without any document is the
same for all, and taking it away gives the score a sign: positive where the document alone lowers the
loss. A row reads the prefix, its own document's cache and the question, so the cost grows with the
number of documents times the length of the question, and not with the length of the documents.

With ``shares``, a document's utility is the share of the target's words that it explains, if each word
was written by one of the n candidates. With the loss l_ik of token k of T behind document i,

    r_ik = exp(-l_ik / temperature) / sum over j of exp(-l_jk / temperature)
    phi_i = 1/T  sum over k of r_ik  -  1/n

r is the responsibility of document i for token k in a mixture of all documents. A document that holds
one part of a question made of two is not set back by the other part, as it is in the mean, and words
that all documents explain alike count for none of them.

With ``window``, a long document is read in parts of about that many tokens, each behind its title, and the part
behind which the target is likeliest stands for the document: what matters in a long text is one passage, and all the
rest of it takes its share of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.validation import check_number, check_optional_count

if TYPE_CHECKING:
    from torch import Tensor

    from gradrerank.lm.apart import Excerpt


@dataclass(frozen=True, slots=True)
class LikelihoodScorer:
    """Score each document by the likelihood of the target behind it alone.

    Args:
        shares: Whether the utility is the share of the target's tokens that the document explains among
            the candidates, about an equal share, instead of the mean gain in nats.
        temperature: How far shares are levelled, above 0; at 1 they are the probabilities of the model, and far
            above it shares order as the mean does.
        window: About how many tokens the parts have in which a long document is read, all of equal length, so that
            one of up to half as many again is read as a whole; None reads every document as a whole.

    Raises:
        InvalidArgumentError: When temperature is not above 0, or window not a whole number from 1.

    Example:
        >>> LikelihoodScorer().name
        'likelihood'
    """

    shares: bool = False
    temperature: float = 3.0
    window: int | None = None
    name: ClassVar[str] = "likelihood"

    def __post_init__(self) -> None:
        """Check temperature and window."""
        check_optional_count("window", self.window)
        if check_number("temperature", self.temperature, minimum=0.0) == 0:
            raise InvalidArgumentError("temperature must be above 0, got 0")

    def score(self, job: ScoringJob) -> Scores:
        """Score every document on its own.

        Returns:
            Utilities in nats of the target's mean loss, or in shares of its tokens; ``details["loss"]`` is
            the loss without a document and ``details["rows"]`` the number of times that the question was read.
        """
        return self.score_batch([job])[0]

    def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
        """Score several queries over the same documents; their rows pass through the model together."""
        import torch

        from gradrerank.lm.apart import losses_apart

        readings = self._readings(jobs[0])
        rows = [None, *chain.from_iterable(readings)]
        found = losses_apart(jobs[0].generator, rows * len(jobs), [job.continuation for job in jobs for _ in rows])
        results = []
        for i, job in enumerate(jobs):
            alone, *behind = found[i * len(rows) : (i + 1) * len(rows)]
            of_each = torch.stack(behind).split([len(excerpts) for excerpts in readings])
            best = torch.stack([losses[losses.mean(1).argmin()] for losses in of_each])
            job.tokens["documents"] += 0
            job.tokens["question"] += len(rows) * len(job.continuation)
            details = {"loss": float(alone.mean()), "rows": len(rows)}
            results.append(Scores(self._utilities(alone, best), details=details))
        return results

    def _readings(self, job: ScoringJob) -> list[list[Excerpt]]:
        """For each document its parts, or the whole where it is about as long as a window."""
        from gradrerank.lm.apart import Excerpt

        readings = []
        for document, cache in zip(job.documents, job.caches(), strict=True):
            title = [(0, document.body_start)] if document.body_start else []
            parts = equal_parts(document.body_start, len(document), self.window)
            readings.append([Excerpt(cache, (*title, part)) for part in parts])
        return readings

    def _utilities(self, alone: Tensor, behind: Tensor) -> list[float]:
        """[T] and [n, T] losses of each token as n utilities."""
        if self.shares:
            utilities = (-behind.double() / self.temperature).softmax(0).mean(1) - 1 / len(behind)
        else:
            utilities = alone.mean() - behind.mean(1)
        plain: list[float] = utilities.tolist()
        return plain


def equal_parts(start: int, end: int, size: int | None) -> list[tuple[int, int]]:
    """Cut a range into parts of equal length, as many as bring them nearest to a size.

    Args:
        start: First place.
        end: The place after the last one.
        size: The length that is wanted; None cuts nothing.

    Returns:
        Ranges ``(start, end)``, at least one; their lengths differ by one at most.

    Example:
        >>> equal_parts(0, 70, 48), equal_parts(10, 90, 40)
        ([(0, 70)], [(10, 50), (50, 90)])
    """
    length = end - start
    count = 1 if size is None else max(1, (2 * length + size) // (2 * size))
    edges = [start + length * k // count for k in range(count + 1)]
    return list(zip(edges, edges[1:], strict=False))
