"""Complementary documents: two that help different words of the target are worth more than two that help the same.

    F(S) = sum over tokens t of  m_t (1 - prod over i in S of (1 - q_ti)),
    q_ti = max(U[t, i], 0) / m_t * CERTAINTY,    m_t = the largest U[t, i] of the token

U[t, i] is the utility of document i for token t of the target
(:mod:`gradrerank.scorers.token_utilities`). Read q_ti as the chance that document i explains token t: F is
how much of the target is expected to be explained, each token weighed by what the best document does for
it (probabilistic coverage; El-Arini et al., "Turning down the noise in the blogosphere", 2009). What a
document adds to a token that others explain already counts less. F is monotone and submodular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradrerank.context.choosing import ChoiceJob

Matrix = NDArray[np.float64]

# The chance that the best document of a token explains it: below 1, so that a second one still counts.
CERTAINTY = 0.8


@dataclass(frozen=True, slots=True)
class Coverage:
    """Choose documents greedily by what they add to the coverage F of the target's tokens.

    With ``top_n`` alone, F is at least 1 - 1/e of its largest possible value (Nemhauser, Wolsey and
    Fisher, 1978). With a token budget alone, the better of two greedy choices is taken, by gain and by
    gain per token: at least half of that share (Leskovec et al., "Cost-effective outbreak detection in
    networks", 2007), as far as tokens add up. With limits of ``per_source`` alone, on sources that share
    no document: at least half of the largest value (Fisher, Nemhauser and Wolsey, 1978). For several
    bounds at once no share is known.

    Documents that add nothing come last, in the order of the ranking: ``min_score`` is there to leave
    them out.
    """

    name: str = "coverage"

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        """The documents in the order of their gains, then the others in the order of the ranking."""
        tokens = settled(job.token_utilities())
        choices = [greedy(job, tokens, per_token=False)]
        if job.limits.token_budget is not None:
            choices.append(greedy(job, tokens, per_token=True))
        chosen = max(choices, key=lambda kept: coverage(tokens, kept))
        return [*chosen, *(i for i in range(len(job)) if i not in chosen)]


def settled(utilities: Matrix) -> Matrix:
    """The positive parts of utilities, rounded so far that noise of the arithmetic decides nothing.

    Args:
        utilities: [T, n].
    """
    largest = float(np.abs(utilities).max(initial=0.0))
    positive = np.maximum(utilities, 0.0)
    return positive if largest == 0.0 else np.round(positive / largest, 6) * largest


def coverage(utilities: Matrix, kept: Sequence[int]) -> float:
    """F of some documents.

    Args:
        utilities: [T, n], none negative.
        kept: The documents.

    Example:
        >>> helps = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> round(coverage(helps, [0, 1]), 2), round(coverage(helps, [0, 2]), 2)
        (0.96, 1.6)
    """
    largest, missed = _chances(utilities)
    return float(largest @ (1.0 - missed[:, list(kept)].prod(axis=1)))


def greedy(job: ChoiceJob, utilities: Matrix, *, per_token: bool) -> list[int]:
    """Add the document of the largest gain, again and again, as long as there is a gain.

    Equal gains are decided by the ranking. A document that does not fit is passed over.

    Args:
        job: The ranking; what it requires comes first.
        utilities: [T, n], none negative.
        per_token: Whether the gain is divided by the tokens of the document.

    Returns:
        Places in the ranking, in the order in which they were taken.
    """
    costs = np.maximum(np.asarray(job.costs, dtype=float), 1.0) if per_token else np.ones(len(job))
    largest, missed = _chances(utilities)
    kept, left = list(job.required), job.free()
    # What of each token is not explained yet.
    open_part = largest * missed[:, kept].prod(axis=1)
    least = 1e-9 * float(largest.sum())
    while left:
        gains = open_part @ (1.0 - missed[:, left])
        # Rounded to the step of least, so that noise of the arithmetic decides nothing.
        rates = np.round(gains / costs[left] / (least or 1.0))
        at = int(np.argmax(rates))  # the first of the largest: the best ranked
        if gains[at] <= least:
            break
        best = left.pop(at)
        if job.fits(kept, best):
            kept.append(best)
            open_part = open_part * missed[:, best]
    return kept


def _chances(utilities: Matrix) -> tuple[Matrix, Matrix]:
    """The m_t, shape [T], and the chances [T, n] that a document does not explain a token."""
    largest = utilities.max(axis=1, initial=0.0)
    share = utilities / np.where(largest > 0, largest, 1.0)[:, None]
    return largest, 1.0 - CERTAINTY * share
