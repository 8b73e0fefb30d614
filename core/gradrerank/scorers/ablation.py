"""Exact leave-one-out on the same caches: the ground truth of every estimate.

    phi_i = L(z without i) - L(z),    z = 1 for all documents

Every row of the batch attends to the same caches and differs only in the gate that is closed, so
documents are read once; the question passes through the model n + 1 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.validation import check_count

if TYPE_CHECKING:
    from gradrerank.lm.memory import Memory


@dataclass(frozen=True, slots=True)
class AblationScorer:
    """Leave each document out in turn and see how much the loss rises.

    Args:
        batch_size: Settings of the gates that pass through the model together.

    Raises:
        InvalidArgumentError: When batch_size is not a whole number from 1.
    """

    batch_size: int = 16
    name: ClassVar[str] = "ablation"

    def __post_init__(self) -> None:
        """Check the batch size."""
        check_count("batch_size", self.batch_size)

    def score(self, job: ScoringJob) -> Scores:
        """Score by leave-one-out.

        Returns:
            Utilities in nats of the target's mean loss; ``details["loss"]`` is the loss with all
            documents.
        """
        memory = job.generator.reader.assemble(job.caches())
        n = len(job.documents)
        loss, rises = leave_out(job, memory, range(n), self.batch_size)
        return Scores(rises, details={"loss": loss, "rows": n + 1})


def leave_out(
    job: ScoringJob, memory: Memory, chosen: Sequence[int], batch_size: int = 16
) -> tuple[float, list[float]]:
    """Leave some documents out, one at a time, from all of them.

    Args:
        job: n documents, question and target; its count of tokens is increased.
        memory: The documents as the generator remembers them, one span each.
        chosen: Places of the k documents that are left out.
        batch_size: Settings of the gates that pass through the model together.

    Returns:
        The loss with all documents, and by how much it rises without each of the k, in nats of the target's
        mean loss; it takes k + 1 rows of the question.
    """
    import torch

    n = len(job.documents)
    gates = torch.cat([torch.ones(1, n), 1 - torch.eye(n)[list(chosen)]])
    batches = [job.generator.losses(memory, job.continuation, rows) for rows in gates.split(batch_size)]
    losses = torch.cat(batches).mean(-1)
    job.tokens["question"] += len(gates) * len(job.continuation)
    return float(losses[0]), (losses[1:] - losses[0]).tolist()
