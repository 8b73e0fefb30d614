"""One query on its way through the pipeline: what is known of it so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.stopwatch import Stopwatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gradrerank.context.limits import Bounds
    from gradrerank.documents import Document, DroppedDocument
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.prompt import DocumentTokens
    from gradrerank.sources.combination import ChosenSources
    from gradrerank.sources.contribution import Agreement, Contribution
    from gradrerank.sources.pool import Pool
    from gradrerank.targets import Target


@dataclass(slots=True)
class Call:
    """The state of one query; each stage of the pipeline fills in its part.

    Args:
        query: The query.
        sources: Documents by source name, checked.
        reference: The answer given by the caller, or None.
        name: What to call the query in messages, where there are several.
        weights: Weights of the sources between 0 and 1, or None.
        per_source: Least and most documents that are kept of a source, by its name.
        pool: Candidates and what was dropped so far.
        selected: Names of the sources that are read, in the order of choice.
        chosen: The choice among the sources, or None where none was made.
        documents: The candidates as the model reads them.
        goal: The text whose loss is read.
        scores: Utilities of the candidates that were read.
        contributions: What each source contributed, by name.
        agreement: How far the sources agree, or None where that was not asked for.
        by_token: What :meth:`token_utilities` found for these documents, once it was asked.
        unread: Candidates that were cut before the model read them.
        watch: Seconds by stage.
        tokens: Tokens through the model by stage.
    """

    query: str
    sources: Mapping[str, Sequence[Document]]
    reference: str | None
    name: str = ""
    weights: Mapping[str, float] | None = None
    per_source: Mapping[str, Bounds] = field(default_factory=dict)
    pool: Pool = field(init=False)
    selected: Sequence[str] = ()
    chosen: ChosenSources | None = None
    documents: Sequence[DocumentTokens] = ()
    goal: Target = field(init=False)
    scores: Scores = field(default_factory=lambda: Scores(()))
    contributions: Mapping[str, Contribution] = field(default_factory=dict)
    agreement: Agreement | None = None
    by_token: NDArray[np.float64] | None = None
    unread: tuple[DroppedDocument, ...] = ()
    watch: Stopwatch = field(default_factory=Stopwatch)
    tokens: Counter[str] = field(default_factory=Counter)

    def job(self, generator: Generator) -> ScoringJob:
        """A job over all documents of the call and its target, for what is asked besides the score.

        Args:
            generator: The model.
        """
        return ScoringJob(
            self.query, self.documents, self.goal.continuation, generator, tokens=self.tokens, name=self.name
        )

    def token_utilities(self, generator: Generator) -> NDArray[np.float64]:
        """[T, n] the utility of every document for every token of the target, computed once for all who ask.

        Args:
            generator: The model.
        """
        if self.by_token is None:
            from gradrerank.scorers.token_utilities import token_utilities

            self.by_token = token_utilities(self.job(generator))
        return self.by_token
