"""Which documents of a ranking are kept: a preference, and bounds that nobody can overrule.

A *chooser* says in which order it would take the documents. They are then taken one by one as long as
``top_n``, ``per_source`` and ``token_budget`` allow, so whatever a chooser says, no bound is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gradrerank.documents import DropReason
from gradrerank.errors import ScoringError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from gradrerank.context.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJob:
    """A ranking from which documents are chosen; they are named by their place in it, from 0.

    Args:
        query: The query.
        texts: n documents as they stand in the prompt, best first; equal scores in retrieval order.
        scores: Their scores, descending; positive helps.
        sources: For each the names of the sources that found it, best rank first.
        costs: For each the tokens that it takes on its own, with a separator; 0 where there is no token
            budget.
        slack: By how many tokens the sum of the costs counts too many: the separator of the last one.
        limits: The bounds.
        required: What the floors of ``per_source`` ask for: kept whatever the chooser says.
        token_utilities: Computes the utility of every document for every token of the target, an array
            of shape [T, n], in nats; positive helps. One row of a batch through the model for each token.
        vectors: Computes sentence embeddings of the documents, an array of shape [n, d] with rows of
            length 1.
    """

    query: str
    texts: Sequence[str]
    scores: Sequence[float]
    sources: Sequence[Sequence[str]]
    costs: Sequence[int]
    limits: Limits
    slack: int = 0
    required: Sequence[int] = ()
    token_utilities: Callable[[], NDArray[np.float64]]
    vectors: Callable[[], NDArray[np.float64]]

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.scores)

    def fits(self, kept: Sequence[int], index: int) -> bool:
        """Whether a document can join those that are kept, which include ``required``."""
        return self.limits.obstacle(kept, index) is None

    def free(self) -> list[int]:
        """The documents that are not required, best first."""
        taken = set(self.required)
        return [i for i in range(len(self)) if i not in taken]


@runtime_checkable
class Chooser(Protocol):
    """Anything with a name and a ``choose`` method.

    Example:
        >>> class ShortestFirst:
        ...     name = "shortest"
        ...     def choose(self, job: ChoiceJob) -> list[int]:
        ...         return sorted(range(len(job)), key=lambda i: len(job.texts[i]))
        >>> isinstance(ShortestFirst(), Chooser)
        True
    """

    @property
    def name(self) -> str:
        """Short name, for messages."""
        ...

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        """The documents in the order in which they should be taken; what is left out is not wanted."""
        ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """Take the documents in the order of the ranking; one that does not fit is passed over."""

    name: str = "order"

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        """All of them, best first."""
        return range(len(job))


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen.

    Args:
        kept: Places in the ranking, ascending.
        reasons: For each of the others why it is not kept.
    """

    kept: tuple[int, ...]
    reasons: dict[int, DropReason] = field(default_factory=dict)


def choose(chooser: Chooser, job: ChoiceJob) -> Choice:
    """Let a chooser choose, within the bounds.

    Args:
        chooser: The chooser.
        job: The ranking.

    Returns:
        What is kept, and for each of the others the bound that stood in the way when it was its turn, or
        ``"selection"`` where the chooser did not want it although there was room.

    Raises:
        ScoringError: When the chooser answers with something other than places of the ranking.
    """
    kept, reasons = list(job.required), dict[int, DropReason]()
    wanted = _checked(chooser.choose(job), len(job), chooser.name)
    for index in wanted:
        if index in kept:
            continue
        obstacle = job.limits.obstacle(kept, index)
        if obstacle is None:
            kept.append(index)
        else:
            reasons[index] = obstacle
    for index in range(len(job)):
        if index not in kept and index not in reasons:
            reasons[index] = job.limits.obstacle(kept, index) or "selection"
    return Choice(tuple(sorted(kept)), reasons)


def _checked(answer: Any, n: int, name: str) -> list[int]:
    """Places of the ranking as plain numbers, each once."""
    try:
        places = [place.__index__() for place in answer]
    except (TypeError, AttributeError) as error:
        raise ScoringError(f"selection {name!r} must choose places of the ranking, got {answer!r}") from error
    wrong = [place for place in places if not 0 <= place < n]
    if wrong or len(set(places)) < len(places):
        raise ScoringError(f"selection {name!r} must choose each of {n} places at most once, got {places}")
    return places
