"""The iterated form on gates: which k documents, read together, lower the loss the most?

    z    = k pi                            pi on the k-sparse simplex; uniform over k documents means z = 1 for each
    phi  = - dL/dz                         at z, also for documents whose gate is closed
    pi  <- P_k(pi + eta (phi - mean phi))  P_k the projection on the k-sparse simplex, eta by backtracking

It starts where the scorer ``gates`` ends: the first pass takes the gradient with all documents open, and
pi begins uniform over the k best of them. A gradient with all documents open tells what each adds to
all others; the later ones tell what a document adds to the few that are kept, so a document that only
repeats a better one gives way to one that says something else.

Weights are a means: a generator reads whole documents. Every set of k that the iteration passes through
is therefore compared at z = 1, and the best is kept, so the result is never worse than its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradrerank.context.simplex import project_simplex
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.scorers.checking import check_finite, settle_near_ties
from gradrerank.validation import check_count, check_number, check_optional_count

if TYPE_CHECKING:
    from gradrerank.lm.memory import Memory

# Step lengths of a line search: each a half of the one before, all in one batch.
_TRIALS = 4
# Differences of gradients and losses below this share of the largest are rounding of float32; scaled up, a random step.
_RESOLUTION = 1e-6
# How far below the kept documents the best of the others stands, as a share of the largest utility: visible
# after scores that differ by rounding alone were made equal.
_MARGIN = 1e-3


@dataclass(frozen=True, slots=True)
class IteratedGatesScorer:
    """Score documents by the gradient in the gates at the best set of k that iteration finds.

    It stops when no step of the line search lowers the loss by more than ``tolerance``, when the gradient
    tells no document from another, or after ``steps`` steps. Where all documents may be kept, k >= n,
    there is nothing to choose: the score is that of ``gates``, after one pass.

    Args:
        k: Documents in the set; None takes the call's ``top_n``, or all.
        steps: Most steps on the simplex; each takes one forward and backward pass, and the four rows of
            its line search one forward pass.
        step_size: Length of the longest step that is tried: the weight with the steepest slope moves by
            this much before the projection. Half, a quarter and an eighth of it are tried too.
        tolerance: Least relative decrease of the loss that is worth another step.

    Raises:
        InvalidArgumentError: When an argument is out of range.

    Example:
        >>> IteratedGatesScorer(k=3).steps
        8
    """

    k: int | None = None
    steps: int = 8
    step_size: float = 2.0
    tolerance: float = 1e-4
    name: ClassVar[str] = "iterated"

    def __post_init__(self) -> None:
        """Check every argument that needs no model."""
        check_optional_count("k", self.k)
        check_count("steps", self.steps)
        for name in ("step_size", "tolerance"):
            check_number(name, getattr(self, name), minimum=0.0)

    def score(self, job: ScoringJob) -> Scores:
        """Score at the best set.

        Returns:
            Utilities in nats of the target's mean loss per unit of z, with the gates of the set open and
            the others closed: for a document of the set what it does in that context, for the others what
            they would add to it. The first k are the set: where one of the others has a larger gradient,
            all others are lowered by ``details["lowered_by"]``. ``details`` further holds ``"loss"`` and
            ``"start_loss"`` (the loss with the set, and with the k best by ``gates``), ``"losses"`` along
            the iteration, ``"weights"`` (the last pi), ``"stopped"`` (``"converged"``, ``"steps"``,
            ``"flat"`` or ``"nothing to choose"``), ``"passes"`` (forward and backward passes) and
            ``"rows"`` (further rows, forward only).
        """
        n = len(job.documents)
        k = min(self.k or job.top_n or n, n)
        at = _Passes(job)
        utilities, loss = at.gradient(np.ones(n))
        if k == n:
            details = {"loss": loss, "start_loss": loss, "losses": [loss], "weights": [1 / n] * n, "lowered_by": 0.0}
            return Scores(
                utilities.tolist(), details={**details, "stopped": "nothing to choose", "passes": 1, "rows": 0}
            )
        path = self._descend(at, _first(k, utilities), k)
        sets = list(dict.fromkeys(path.sets))
        set_losses = at.losses(np.stack([_indicator(each, n) for each in sets]))
        best = sets[_lowest(set_losses)]
        utilities, loss = at.gradient(_indicator(best, n))
        utilities, lowered_by = _set_first(utilities, best)
        details = {
            "loss": loss,
            "start_loss": float(set_losses[0]),
            "losses": path.losses,
            "weights": path.weights.tolist(),
            "stopped": path.stopped,
            "lowered_by": lowered_by,
            "passes": at.passes,
            "rows": at.rows,
        }
        return Scores(utilities.tolist(), details=details)

    def _descend(self, at: _Passes, start: tuple[int, ...], k: int) -> _Path:
        """Projected gradient from the uniform mixture of the start, with the sets that it passes through."""
        weights = _indicator(start, at.n) / k
        utilities, loss = at.gradient(k * weights)
        sets, losses, stopped = [start], [loss], "steps"
        for _ in range(self.steps):
            centred = utilities - utilities.mean()  # a common shift moves nothing on the simplex
            steepest = np.abs(centred).max()
            if steepest <= _RESOLUTION * np.abs(utilities).max():
                stopped = "flat"
                break
            lengths = self.step_size / steepest * 0.5 ** np.arange(_TRIALS)
            trials = np.stack([project_simplex(weights + eta * centred, k) for eta in lengths])
            found = at.losses(k * trials)
            lowest = int(np.argmin(found))
            if not found[lowest] < loss - self.tolerance * abs(loss):
                stopped = "converged"
                break
            weights = trials[lowest]
            utilities, loss = at.gradient(k * weights)
            sets.append(_first(k, weights, utilities))
            losses.append(loss)
        return _Path(weights, sets, losses, stopped)


@dataclass(frozen=True, slots=True)
class _Path:
    """Where an iteration ended, the sets and losses on its way, and why it stopped."""

    weights: NDArray[np.float64]
    sets: list[tuple[int, ...]]
    losses: list[float]
    stopped: str


class _Passes:
    """Loss and utilities of one job at any gates, counted."""

    def __init__(self, job: ScoringJob) -> None:
        self._job = job
        self._memory: Memory = job.generator.reader.assemble(job.caches())
        self.n, self.passes, self.rows = len(job.documents), 0, 0

    def gradient(self, gates: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """-dL/dz, shape [n], and the loss, at the gates [n]."""
        import torch

        found = self._job.generator.gate_gradients(self._memory, self._job.continuation, torch.tensor(gates)[None])
        self.passes += 1
        self._job.tokens["question"] += len(self._job.continuation)
        slopes = found.gradients.sum((1, 2))[0].cpu().double().numpy()
        return -check_finite(slopes, "the gradient that scorer 'iterated' took for document"), float(found.loss[0])

    def losses(self, gates: NDArray[np.float64]) -> NDArray[np.float64]:
        """The loss at each row of gates [rows, n], in batches of as many rows as a line search has."""
        import torch

        self.rows += len(gates)
        self._job.tokens["question"] += len(gates) * len(self._job.continuation)
        parts = torch.tensor(gates).split(_TRIALS)
        found = [self._job.generator.losses(self._memory, self._job.continuation, part).mean(-1) for part in parts]
        return check_finite(torch.cat(found).cpu().double().numpy(), "the loss that scorer 'iterated' read for set")


def _first(k: int, *keys: NDArray[np.float64]) -> tuple[int, ...]:
    """The k documents that lead by the first key, then by the next, then in retrieval order."""
    falling = [-np.array(settle_near_ties(key.tolist())) for key in keys]
    order = np.lexsort((np.arange(len(keys[0])), *reversed(falling)))
    return tuple(sorted(int(i) for i in order[:k]))


def _lowest(losses: NDArray[np.float64]) -> int:
    """The first of the lowest losses, up to rounding."""
    return int(np.argmax(losses <= losses.min() + _RESOLUTION * np.abs(losses.min())))


def _indicator(chosen: tuple[int, ...], n: int) -> NDArray[np.float64]:
    gates = np.zeros(n)
    gates[list(chosen)] = 1.0
    return gates


def _set_first(utilities: NDArray[np.float64], chosen: tuple[int, ...]) -> tuple[NDArray[np.float64], float]:
    """Lower all that is not chosen by as much as puts the best of it just below the chosen."""
    inside = _indicator(chosen, len(utilities)) > 0
    ceiling = utilities[inside].min() - _MARGIN * np.abs(utilities).max()
    lowered_by = max(0.0, float(utilities[~inside].max() - ceiling))
    return np.where(inside, utilities, utilities - lowered_by), lowered_by
