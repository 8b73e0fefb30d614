"""Which document helps which word: the gradient of every target token's loss in the gates.

    U[t, i] = - dL_t/dz_i    at z = 1,    L_t = - log p(target token t given documents, question, tokens before t)

The loss of a job is the mean of the L_t, so the mean of U over tokens is the utility that the scorer
``gates`` gives. Two documents may be of the same utility and help different words; that is read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradrerank.lm.prompt import Continuation
from gradrerank.scorers.checking import check_finite
from gradrerank.validation import check_count

if TYPE_CHECKING:
    from gradrerank.lm.memory import Memory
    from gradrerank.scorers.base import ScoringJob


class TokenSlopes(NamedTuple):
    """What the gradients of T target tokens say of n documents.

    Args:
        utilities: [T, n], nats per unit of z; positive helps.
        losses: [T], negative log-likelihoods in nats at the same point.
    """

    utilities: NDArray[np.float64]
    losses: NDArray[np.float64]


def token_utilities(job: ScoringJob, memory: Memory | None = None, batch_size: int = 8) -> NDArray[np.float64]:
    """The utility of every document for every token of the target.

    It costs one row of a batch, forward and backward, for each of the T tokens.

    Args:
        job: n documents, question and target; its count of tokens is increased.
        memory: The documents as the generator remembers them, one span each; None reads them.
        batch_size: Tokens whose gradients are computed together.

    Returns:
        An array of shape [T, n], in nats per unit of z; positive helps.

    Raises:
        InvalidArgumentError: When batch_size is not a whole number from 1.
        ScoringError: When a gradient is not finite.

    Example:
        >>> from gradrerank import load_generator, ScoringJob                             # doctest: +SKIP
        >>> generator = load_generator()                                                  # doctest: +SKIP
        >>> documents = generator.layout.documents([(None, "The ferry leaves at 8:40.")])  # doctest: +SKIP
        >>> asked = generator.layout.query_continuation("When does it leave?")            # doctest: +SKIP
        >>> token_utilities(ScoringJob("When ...?", documents, asked, generator)).shape   # doctest: +SKIP
        (6, 1)
    """
    memory = job.generator.reader.assemble(job.caches()) if memory is None else memory
    found = token_slopes(job, memory, check_count("batch_size", batch_size))
    return check_finite(found.utilities, "the gradient of a word of the target for document")


def token_slopes(
    job: ScoringJob, memory: Memory, batch_size: int, *, z: float = 1.0, removal: float = 0.0
) -> TokenSlopes:
    """The utility of every document for every token of the target, and the loss of the token.

    Args:
        job: n documents, question and target; its count of tokens is increased.
        memory: The documents as the generator remembers them, one span each.
        batch_size: Tokens whose gradients are computed together.
        z: The point at which they are taken, the same for all documents.
        removal: Between slopes (0) and removing a document from every head (1); see
            :mod:`gradrerank.lm.gated_attention`.

    Returns:
        Slopes and losses as the model gives them; what is not finite is for the caller to refuse.
    """
    import torch

    question, target = job.continuation.question, job.continuation.target
    rows = [Continuation(question + target[:t], (target[t],)) for t in range(len(target))]
    utilities, losses = np.empty((len(rows), memory.n_spans)), np.empty(len(rows))
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        gates = torch.full((len(batch), memory.n_spans), z)
        found = job.generator.gate_gradients(memory, batch, gates, removal=removal)
        utilities[start : start + len(batch)] = -found.gradients.sum((1, 2)).cpu().double().numpy()
        losses[start : start + len(batch)] = found.loss.cpu().double().numpy()
        job.tokens["question"] += sum(map(len, batch))
    return TokenSlopes(utilities, losses)
