r"""Leave-one-out estimated from gradients: what the loss would gain if a document were removed.

The scorer ``gates`` reads a slope where every document is open. From there to a closed gate the loss bends, and
two of its bends are known without another pass:

- In a head that gives document i the share :math:`m` of its attention, the others take its place when it is
  removed, so that the head's output moves by 1 / (1 - m) times what the slope says
  (:mod:`gradrerank.lm.gated_attention`). Summed over layers, heads and new tokens this gives :math:`u_{ti}`, what
  the removal of document i adds to the loss :math:`L_t = -\log p_t` of target token t, to first order.
- The loss is curved in the log-odds of the token, whose slope is :math:`u_{ti} / (1 - p_t)`. Where they fall by
  as much,

    phi_i = mean over t of  log( p_t + (1 - p_t) exp( u_ti / (1 - p_t) ) )

What is not followed is how layers answer to each other. A point a little way along says more of that than the
start, so slopes and losses are read where every gate is at ``z``, slightly below 1. Where the loss bends most, the
estimate is least sure: the ``exact`` documents of the largest

    mean over t of  log( p_t + (1 - p_t) exp( u_ti / (1 - p_t) ) ) - u_ti

are left out in truth, one row of the question each. Each target token needs a gradient of its own, so short targets
(an answer) and many documents are where all this costs less than ``ablation``, which leaves out every one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradrerank.scorers.ablation import leave_out
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.scorers.checking import check_finite
from gradrerank.scorers.token_utilities import token_slopes
from gradrerank.validation import check_count, check_number


@dataclass(frozen=True, slots=True)
class RemovalScorer:
    """Estimate by how much the loss rises when a document is left out, and leave out only the most doubtful ones.

    Args:
        part: How far the others take a document's place: 0 is the slope, 1 as far as they do in each head by
            itself. Where a head looks at one document alone, that step is large, and what follows answers less
            than in proportion; nine tenths is ten times the slope at most.
        z: Where slopes and losses are read, from 0; 1 is every document as it is. Further down the other
            documents, which stay where one is left out, fade with it.
        exact: How many documents are left out in truth, those whose estimate is least sure; 0 estimates all.
        batch_size: Tokens of the target whose gradients are computed together.

    Raises:
        InvalidArgumentError: When part or z is out of range, exact not a whole number from 0, or batch_size from 1.

    Example:
        >>> RemovalScorer().name
        'removal'
    """

    part: float = 0.9
    z: float = 0.95
    exact: int = 2
    batch_size: int = field(default=8, kw_only=True)
    name: ClassVar[str] = "removal"

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_number("part", self.part, minimum=0.0, maximum=1.0)
        check_number("z", self.z, minimum=0.0)
        check_count("exact", self.exact, minimum=0)
        check_count("batch_size", self.batch_size)

    def score(self, job: ScoringJob) -> Scores:
        """Score by one row of a batch, forward and backward, for each token of the target, and a few rows forward.

        Returns:
            Utilities in nats of the target's mean loss; ``details["loss"]`` is the loss at z, ``details["exact"]``
            holds the places of the documents that were left out, and ``details["rows"]`` is the number of times
            that the question was read.

        Raises:
            ScoringError: When a gradient or a loss is not finite.
        """
        memory = job.generator.reader.assemble(job.caches())
        found = token_slopes(job, memory, self.batch_size, z=float(self.z), removal=self.part)
        # Here, since a token that cannot become more than certain would hide a slope without end.
        slopes = check_finite(found.utilities, f"the gradient that scorer {self.name!r} read for document")
        losses = check_finite(found.losses, f"the loss that scorer {self.name!r} read for token")
        rises = without_document(slopes, losses)
        utilities, doubtful = rises.mean(0), bent_most((rises - slopes).mean(0), self.exact)
        if doubtful:
            utilities[doubtful] = leave_out(job, memory, doubtful, self.batch_size)[1]
        rows = len(losses) + (len(doubtful) + 1 if doubtful else 0)
        return Scores(utilities.tolist(), details={"loss": float(losses.mean()), "exact": doubtful, "rows": rows})


def bent_most(bends: NDArray[np.float64], count: int) -> list[int]:
    """Places of the largest bends, in ascending order.

    Args:
        bends: n numbers, by how much the loss bends along each document's gate.
        count: How many are wanted; all where there are no more.

    Example:
        >>> bent_most(np.array([0.0, 0.3, 0.1, 0.2]), 2)
        [1, 3]
    """
    places: list[int] = sorted(np.argsort(-bends, kind="stable")[:count].tolist())
    return places


def without_document(slopes: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the loss of each token rises where its log-odds fall as its slope says.

    Args:
        slopes: [T, n], what the removal of each document adds to the loss of each token, to first order.
        losses: [T], negative log-likelihoods in nats.

    Returns:
        An array of shape [T, n], never below ``-losses``: no token can become more than certain.

    Example:
        >>> without_document(np.array([[0.0, 0.1, -9.0]]), np.log([[2.0]])[0]).round(3).tolist()
        [[0.0, 0.105, -0.693]]
    """
    doubt = -np.expm1(-losses)[:, None]  # 1 - p
    # A token that is certain has no slope either: what is then divided does not count.
    fall = np.divide(slopes, doubt, out=np.zeros_like(slopes), where=doubt > 0)
    with np.errstate(divide="ignore"):
        rises: NDArray[np.float64] = np.logaddexp(-losses[:, None], np.log(doubt) + fall)
    return rises
