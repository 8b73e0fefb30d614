r"""A linear surrogate of the loss over random ablations, as in ContextCite (Cohen-Wang et al., NeurIPS 2024).

Each document is kept with probability 1/2, m_i in {0, 1}; the loss L(m) is read on the same caches,
and a sparse linear function is fitted to it:

    -L(m)  ~  b + sum_i phi_i (m_i - 1/2) [ + sum_{i<j} u_ij (m_i - 1/2)(m_j - 1/2) ]

phi_i is what document i does on average over contexts that hold half of the others, which is not
leave-one-out: a document that others repeat keeps part of its worth. With interactions u_ij the same
function reads b' + sum u_i m_i + sum u_ij m_i m_j, and phi_i = u_i + 1/2 sum_j u_ij: the main effect
and half of the interactions, the Shapley value where nothing acts in threes. Centred masks are not
correlated with their products, so that a sparse fit does not take one for the other.

Why the Lasso: documents are up to a thousand and samples some tens, so the fit is underdetermined, and
few documents matter for a question. Ridge would spread what one document does over all that happened
to be kept with it. ContextCite regresses the logit of the target's probability over its number of tokens;
that is -L but for targets that are almost certain, and -L is in nats like the utilities of other scorers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.scorers.checking import finite_score
from gradrerank.scorers.lasso import LinearFit, fit_lasso
from gradrerank.validation import check_count, check_number

# Documents whose pairs are looked at: the largest number that costs little beside one row of the model.
_PAIRED = 64


@dataclass(frozen=True, slots=True)
class SurrogateScorer:
    """Score documents by a sparse linear fit to the losses of random subsets of them.

    Args:
        samples: Random subsets, each one row through the model.
        alpha: Penalty of the fit in nats, as ContextCite has it; documents whose effect on the loss is
            below about twice alpha get exactly 0. 0 is least squares, for as many samples as documents.
        interactions: Whether to fit pairs of documents too; among more than 64 documents, pairs of the
            64 with the largest effect.
        seed: Chooses the subsets; equal seeds and numbers of documents give equal subsets.
        batch_size: Subsets that pass through the model together.

    Raises:
        InvalidArgumentError: When an argument is out of range.
        InvalidTypeError: When interactions is not a bool.

    Example:
        >>> SurrogateScorer(samples=64, interactions=True).seed
        0
    """

    samples: int = 32
    alpha: float = 0.01
    interactions: bool = False
    seed: int = 0
    batch_size: int = field(default=16, kw_only=True)
    name: ClassVar[str] = "surrogate"

    def __post_init__(self) -> None:
        """Check every argument."""
        for name in ("samples", "batch_size"):
            check_count(name, getattr(self, name))
        check_number("alpha", self.alpha, minimum=0.0)
        if not isinstance(self.interactions, bool):
            raise InvalidTypeError(f"interactions must be a bool, got {self.interactions!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidArgumentError(f"seed must be 0 or a positive int, got {self.seed!r}")

    def score(self, job: ScoringJob) -> Scores:
        """Score by ``samples`` forward passes over question and target.

        Returns:
            Utilities in nats of the target's mean loss: how much lower it is with the document than
            without, on average; positive helps. ``details`` holds ``"rows"``, ``"r2"`` of the fit and
            ``"fitted_loss"``, what the fit makes of all documents together. With interactions also ``"main_effects"``,
            ``"paired"``, the positions of the p documents whose pairs were fitted, and
            ``"interactions"``, p lists of p numbers, positive where two documents help more together.

        Raises:
            ScoringError: When a loss is not a finite number.
        """
        import torch

        memory = job.generator.reader.assemble(job.caches())
        masks = random_masks(self.samples, len(job.documents), self.seed)
        rows = torch.from_numpy(masks).float().split(self.batch_size)
        read = torch.cat([job.generator.losses(memory, job.continuation, batch).mean(-1) for batch in rows])
        job.tokens["question"] += self.samples * len(job.continuation)
        losses = [finite_score(loss, f"the loss of subset {row}") for row, loss in enumerate(read.tolist())]
        fit = fit_surrogate(masks, np.array(losses), self.alpha, interactions=self.interactions)
        return Scores(fit.utilities.tolist(), details={**fit.details(), "rows": self.samples})


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A function of the documents that are kept, fitted to losses.

    Args:
        utilities: [n], phi in the module's formula, in nats.
        loss: The fitted loss with all documents.
        r2: Share of the variance of the losses that is explained.
        paired: Positions of the p documents whose pairs were fitted; None where none were.
        pairs: [p, p], u in the module's formula, symmetric with a diagonal of 0.
    """

    utilities: NDArray[np.float64]
    loss: float
    r2: float
    paired: NDArray[np.intp] | None
    pairs: NDArray[np.float64]

    def details(self) -> dict[str, Any]:
        """What a result says beside the utilities, in plain numbers and lists."""
        found: dict[str, Any] = {"fitted_loss": self.loss, "r2": self.r2}
        if self.paired is not None:
            main = self.utilities.copy()
            main[self.paired] -= self.pairs.sum(1) / 2
            found |= {
                "main_effects": main.tolist(),
                "paired": self.paired.tolist(),
                "interactions": self.pairs.tolist(),
            }
        return found


def random_masks(samples: int, n: int, seed: int) -> NDArray[np.bool_]:
    """[samples, n], each true with probability 1/2; more samples of one seed begin with the fewer."""
    return np.random.default_rng(seed).random((samples, n)) < 0.5


def fit_surrogate(
    masks: NDArray[np.bool_], losses: NDArray[np.float64], alpha: float, *, interactions: bool = False
) -> Surrogate:
    """Fit the module's formula.

    Args:
        masks: [N, n], which documents each sample kept.
        losses: [N], in nats.
        alpha: Penalty; 0 is least squares.
        interactions: Whether to fit pairs too.

    Returns:
        The fit; exact where the losses are such a function, alpha is 0 and the samples suffice.
    """
    centred = masks.astype(np.float64) - 0.5
    n = centred.shape[1]
    fit = fit_lasso(centred, -losses, alpha)
    if not interactions:
        return Surrogate(fit.weights, _with_all(fit), fit.r2, None, np.zeros((0, 0)))
    paired = np.sort(np.argsort(-np.abs(fit.weights), kind="stable")[:_PAIRED])
    first, second = np.triu_indices(len(paired), 1)
    products = centred[:, paired[first]] * centred[:, paired[second]]
    fit = fit_lasso(np.hstack([centred, products]), -losses, alpha)
    pairs = np.zeros((len(paired), len(paired)))
    pairs[first, second] = pairs[second, first] = fit.weights[n:]
    return Surrogate(fit.weights[:n], _with_all(fit, n), fit.r2, paired, pairs)


def _with_all(fit: LinearFit, n: int | None = None) -> float:
    """The fitted loss where all documents are kept: masks are 1/2 and products of two 1/4."""
    singles, products = fit.weights[:n], fit.weights[len(fit.weights) if n is None else n :]
    return -(fit.intercept + float(singles.sum()) / 2 + float(products.sum()) / 4)
