"""The loss while documents are faded in: every gate at the same z, from 0 (all gone) to 1 (all there).

    L(z) for z in [0, 1],    L(0) - L(1) = the integral of -dL/dz: what the documents do together

The scorer ``gates`` reads the slope at z = 1. Where the curve is flat there although it fell before, the
documents say the same thing: leaving any one of them out would hardly be noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.checking import check_finite
from gradrerank.validation import check_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradrerank.call import Call
    from gradrerank.lm.generator import Generator

_ROWS = 16


@dataclass(frozen=True, slots=True)
class GatePath:
    """Losses along the path.

    Args:
        query: The query.
        target: Kind of target whose loss was read.
        points: m points z from 0 to 1, closer together near 0, where the loss changes most.
        losses: m mean losses of the target's tokens, in nats.
        utilities: For each of the n documents -dL/dz_i at z = 1, in retrieval order.
    """

    query: str
    target: str
    points: Sequence[float]
    losses: Sequence[float]
    utilities: Sequence[float]

    @property
    def together(self) -> float:
        """What all documents do together, L(0) - L(1), in nats; 0 without documents."""
        return self.losses[0] - self.losses[-1] if self.losses else 0.0

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw loss against z, with the slope at z = 1 (needs matplotlib, the extra ``plot``)."""
        from gradrerank.plots import plot_path

        return plot_path(self, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Plain strings, numbers and lists, by the names of the fields."""
        return {
            "query": self.query,
            "target": self.target,
            "points": list(self.points),
            "losses": list(self.losses),
            "utilities": list(self.utilities),
        }


def gate_path(call: Call, generator: Generator, points: int = 11) -> GatePath:
    """Read the loss at points of the path.

    Args:
        call: A call with its documents and its target.
        generator: The model.
        points: Number of points, at least 2.

    Returns:
        The path; without documents, one without points.

    Raises:
        InvalidArgumentError: When points is not a whole number from 2.
        ScoringError: When a loss or a gradient is not finite.
    """
    import torch

    count = check_count("points", points)
    if count < 2:
        raise InvalidArgumentError(f"points must be at least 2, both ends of the path, got {count}")
    if not call.documents:
        return GatePath(call.query, "", (), (), ())
    memory = generator.remember(call.documents, tokens=call.tokens)
    z = [(k / (count - 1)) ** 2 for k in range(count)]
    rows = torch.tensor(z)[:, None].expand(-1, memory.n_spans)
    continuation = call.goal.continuation
    losses = torch.cat([generator.losses(memory, continuation, part).mean(-1) for part in rows.split(_ROWS)])
    slopes = generator.gate_gradients(memory, continuation, torch.ones(1, memory.n_spans)).gradients
    call.tokens["question"] += (count + 1) * len(continuation)
    read = check_finite(losses.cpu().double().numpy(), "the loss at point")
    utilities = check_finite(-slopes.sum((1, 2))[0].cpu().double().numpy(), "the gradient for document")
    return GatePath(call.query, call.goal.kind, tuple(z), tuple(read.tolist()), tuple(utilities.tolist()))
