"""Exact leave-one-out on the same caches: the ground truth of every estimate.

    phi_i = L(z without i) - L(z),    z = 1 for all documents

Every row of the batch attends to the same caches and differs only in the gate that is closed, so
documents are read once; the question passes through the model n + 1 times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.validation import check_count


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
        import torch

        n = len(job.documents)
        memory = job.generator.reader.assemble(job.caches())
        gates = torch.cat([torch.ones(1, n), 1 - torch.eye(n)])
        batches = [job.generator.losses(memory, job.continuation, rows) for rows in gates.split(self.batch_size)]
        losses = torch.cat(batches).mean(-1)
        job.tokens["question"] += (n + 1) * len(job.continuation)
        return Scores((losses[1:] - losses[0]).tolist(), details={"loss": float(losses[0]), "rows": n + 1})
