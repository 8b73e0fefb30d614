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

With ``windows``, a long document is read at several scales: as a whole, and cut into windows of each length, every one
behind the title. What matters in a long text is one passage, and all the rest of it takes its share of the attention;
but how long the passage is, nobody knows. So at each scale that window counts behind which the target is likeliest,
and the document's losses are the mean of those at all scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.validation import check_count, check_number

if TYPE_CHECKING:
    from torch import Tensor

    from gradrerank.lm.apart import Excerpt
    from gradrerank.lm.kv_store import DocumentCache
    from gradrerank.lm.prompt import DocumentTokens


@dataclass(frozen=True, slots=True)
class LikelihoodScorer:
    """Score each document by the likelihood of the target behind it alone.

    Args:
        shares: Whether the utility is the share of the target's tokens that the document explains among
            the candidates, about an equal share, instead of the mean gain in nats.
        temperature: How far shares are levelled, above 0; at 1 they are the probabilities of the model, and far
            above it shares order as the mean does.
        windows: Lengths in tokens of the windows in which longer documents are read beside the whole.

    Raises:
        InvalidArgumentError: When temperature is not above 0, or windows hold no whole numbers from 1.

    Example:
        >>> LikelihoodScorer().name
        'likelihood'
    """

    shares: bool = False
    temperature: float = 2.0
    windows: Sequence[int] = ()
    name: ClassVar[str] = "likelihood"

    def __post_init__(self) -> None:
        """Check temperature and windows."""
        sizes: object = self.windows
        if not isinstance(sizes, Sequence):
            raise InvalidArgumentError(f"windows must be a sequence of whole numbers >= 1, got {sizes!r}")
        for size in sizes:
            check_count("windows", size)
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

        read = [self._scales(d, cache) for d, cache in zip(jobs[0].documents, jobs[0].caches(), strict=True)]
        rows = [None, *(excerpt for scales in read for windows in scales for excerpt in windows)]
        found = losses_apart(jobs[0].generator, rows * len(jobs), [job.continuation for job in jobs for _ in rows])
        results = []
        for i, job in enumerate(jobs):
            alone, *behind = found[i * len(rows) : (i + 1) * len(rows)]
            following = iter(torch.stack(behind).split([len(windows) for scales in read for windows in scales]))
            losses = [_over_scales(list(islice(following, len(scales))), 1 + len(self.windows)) for scales in read]
            job.tokens["documents"] += 0
            job.tokens["question"] += len(rows) * len(job.continuation)
            details = {"loss": float(alone.mean()), "rows": len(rows)}
            results.append(Scores(self._utilities(alone, torch.stack(losses)), details=details))
        return results

    def _scales(self, document: DocumentTokens, cache: DocumentCache) -> list[list[Excerpt]]:
        """The document as a whole, and its windows at each scale where there are several."""
        from gradrerank.lm.apart import Excerpt

        first, end = document.body_start, len(document)
        title = ((0, first),) if first else ()
        scales = [[Excerpt(cache, ((0, end),))]]
        for size in self.windows:
            starts = range(first, end, size)
            if len(starts) > 1:
                scales.append([Excerpt(cache, (*title, (start, min(start + size, end)))) for start in starts])
        return scales

    def _utilities(self, alone: Tensor, behind: Tensor) -> list[float]:
        """[T] and [n, T] losses of each token as n utilities."""
        if self.shares:
            utilities = (-behind.double() / self.temperature).softmax(0).mean(1) - 1 / len(behind)
        else:
            utilities = alone.mean() - behind.mean(1)
        plain: list[float] = utilities.tolist()
        return plain


def _over_scales(scales: Sequence[Tensor], count: int) -> Tensor:
    """[T] losses: the mean over the scales of those of the best window; a scale that is not there is the whole."""
    import torch

    best = [losses[losses.mean(1).argmin()] for losses in scales]
    return torch.stack([*best, *best[:1] * (count - len(best))]).mean(0)
