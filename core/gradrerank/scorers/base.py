"""The protocol of a scorer: one job in, one signed utility for each document out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gradrerank.documents import SpanUtility

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.kv_store import DocumentCache
    from gradrerank.lm.prompt import Continuation, DocumentTokens


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """Everything that a scorer may look at.

    Args:
        query: The query.
        documents: n candidates in retrieval order, at least one; ``document.text`` is the whole text.
        continuation: Question and target as tokens.
        generator: The frozen language model.
        top_n: How many documents the caller will keep, or None.
        tokens: To be increased by the tokens that the scorer sends through the model, by stage.
        encoder: The reranker's sentence encoder, or None where there is none.
        cosines: For each document that of its embedding with the query's, where they were embedded for the choice
            among several sources; else None.
        cosine_weight: What the caller makes them weigh, 1 as usual.
        name: What to call the query in messages, where there are several.
        held: Caches of the documents once :meth:`caches` has read them.
    """

    query: str
    documents: Sequence[DocumentTokens]
    continuation: Continuation
    generator: Generator
    top_n: int | None = None
    tokens: Counter[str] = field(default_factory=Counter)
    encoder: Any = None
    cosines: Sequence[float] | None = None
    cosine_weight: float = 1.0
    name: str = ""
    held: list[DocumentCache] = field(default_factory=list, init=False, repr=False, compare=False)

    def caches(self) -> Sequence[DocumentCache]:
        """The n documents as the model keeps them, read once for all scorers that look at this job."""
        if not self.held:
            self.held.extend(self.generator.reader.read([d.ids for d in self.documents], self.tokens))
        return self.held


@dataclass(frozen=True, slots=True)
class Scores:
    """What a scorer returns.

    Args:
        utilities: n finite floats in the order of the job's documents; positive helps.
        spans: For each document the utility of its pieces, or nothing at all.
        details: What else there is to say, plain numbers, strings and lists only.
        stages: For each document what its utility was made from, by name; nothing where it is of one piece.
    """

    utilities: Sequence[float]
    spans: Sequence[Sequence[SpanUtility]] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, float]] = ()


@runtime_checkable
class Scorer(Protocol):
    """Anything with a name and a ``score`` method.

    Example:
        >>> class LongestFirst:
        ...     name = "longest"
        ...     def score(self, job: ScoringJob) -> Scores:
        ...         return Scores([float(len(d.text)) for d in job.documents])
        >>> isinstance(LongestFirst(), Scorer)
        True
    """

    @property
    def name(self) -> str:
        """Short name, shown in results."""
        ...

    def score(self, job: ScoringJob) -> Scores:
        """Give every document of the job a signed utility."""
        ...


@runtime_checkable
class BatchScorer(Scorer, Protocol):
    """A scorer that can do the jobs of several queries over the same documents together."""

    def score_batch(self, jobs: Sequence[ScoringJob]) -> Sequence[Scores]:
        """Score jobs whose documents are the same, in the same order.

        Args:
            jobs: At least one job.

        Returns:
            What :meth:`score` returns for each, up to rounding.
        """
        ...
