"""What sensitivity is measured with beside the scorers and encoders of the package.

An estimate of leave-one-out that becomes exact with the number of passes, and two encoders without a model of
their own, to see how far a choice of sources hangs on the encoder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradrerank.evaluation.ledger import key_of
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.validation import check_count

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator

_PLACES = 4096
_ROWS = 8


@dataclass(frozen=True, slots=True)
class OwnPathScorer:
    """Leave-one-out as an integral: midpoints of the path of one gate from 0 to 1, all others open.

    L(z without i) - L(z) is the integral of -dL/dz_i along that path. The scorer ``gates`` reads its end alone,
    one pass for all documents; this one takes a pass for every document and point.

    Args:
        steps: Points of the path.

    Raises:
        InvalidArgumentError: When steps is not a whole number from 1.
    """

    steps: int
    name: ClassVar[str] = "own path"

    def __post_init__(self) -> None:
        """Check the number of points."""
        check_count("steps", self.steps)

    def score(self, job: ScoringJob) -> Scores:
        """Utilities in nats of the target's mean loss."""
        import torch

        memory, n = job.generator.reader.assemble(job.caches()), len(job.documents)
        total = torch.zeros(n, dtype=torch.float64)
        for k in range(self.steps):
            gates = torch.ones(n, n) + torch.eye(n) * ((k + 0.5) / self.steps - 1)
            found = [job.generator.gate_gradients(memory, job.continuation, rows) for rows in gates.split(_ROWS)]
            total -= torch.cat([each.gradients.sum((1, 2)) for each in found]).diagonal().cpu().double()
        job.tokens["question"] += n * self.steps * len(job.continuation)
        return Scores((total / self.steps).tolist())


def hashed_words(texts: Sequence[str]) -> NDArray[np.float64]:
    """Vectors of words without a model: each by a hash at one of 4,096 places, rare ones weighing more.

    Args:
        texts: n texts; a word weighs more the fewer of them hold it.

    Returns:
        [n, 4096] numbers from 0.
    """
    bags = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    held = Counter(word for bag in bags for word in bag)
    rows = np.zeros((len(texts), _PLACES))
    for row, bag in zip(rows, bags, strict=True):
        for word, n in bag.items():
            row[int(key_of(word), 16) % _PLACES] += (1 + np.log(n)) * np.log((1 + len(texts)) / held[word])
    return rows


def input_embeddings(generator: Generator, texts: Sequence[str]) -> NDArray[np.float64]:
    """The mean of the model's own input embeddings over the tokens of each text; no pass.

    Args:
        generator: The model.
        texts: n texts; one without a token gets zeros.

    Returns:
        [n, d] numbers.
    """
    weight = generator.engine.embedding.detach()
    found = [weight[list(encoding.ids)].cpu().double() for encoding in generator.tokenizer.content(list(texts))]
    return np.stack([(rows.sum(0) / max(len(rows), 1)).numpy() for rows in found])


def error_in_spreads(estimate: Mapping[str, float], truth: Mapping[str, float]) -> float | None:
    """Mean distance of an estimate from the truth, in standard deviations of the truth.

    Args:
        estimate: A number by document.
        truth: The true one.

    Returns:
        The error; None where the truth is the same for every document.

    Example:
        >>> error_in_spreads({"a": 1.0, "b": 3.5}, {"a": 1.0, "b": 3.0})
        0.25
    """
    spread = float(np.std(list(truth.values())))
    return float(np.mean([abs(estimate[name] - truth[name]) for name in truth])) / spread if spread else None
