"""What can be asked of a reranker besides a ranking: citations, words, and the path of the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gradrerank.citing import Citing, check_answer, cite_answer, citing_scorer
from gradrerank.gate_path import gate_path
from gradrerank.settings import UNSET
from gradrerank.shortage import told_once
from gradrerank.token_map import token_map

if TYPE_CHECKING:
    from gradrerank.call import Call
    from gradrerank.citing import Citations
    from gradrerank.gate_path import GatePath
    from gradrerank.lm.generator import Generator
    from gradrerank.scorers import Scorer
    from gradrerank.settings import Settings
    from gradrerank.sources.pool import Sources
    from gradrerank.token_map import TokenMap


class Inspection(ABC):
    """The part of :class:`~gradrerank.reranker.GradReranker` that looks closer at one query."""

    generator: Generator

    @abstractmethod
    def _use(self, **given: Any) -> Settings:
        """The object's settings with those of a call."""

    @abstractmethod
    def _prepared(self, query: str, sources: Sources, reference: str | None, use: Settings) -> Call:
        """One call up to where its documents are scored."""

    @told_once()
    def cite(
        self,
        query: str,
        sources: Sources,
        answer: str,
        *,
        per_sentence: bool = True,
        max_citations: int | None = 3,
        min_share: float = 0.25,
        min_utility: float = 0.0,
        question_weight: float = 1.0,
        scorer: Scorer | None = None,
        select_sources: bool = False,
        **settings: Any,
    ) -> Citations:
        """Attribute an answer that was already given: which sentences of which source support it.

        All documents of all sources are read, whatever ``top_n`` and ``max_candidates`` say. Each
        sentence of the answer passes through the model once; see :mod:`gradrerank.citing`.

        Args:
            query: The query that was answered.
            sources: As for :meth:`rerank`.
            answer: The answer.
            per_sentence: Whether each sentence of the answer has citations of its own.
            max_citations: Most citations of a sentence of the answer; None for no limit.
            min_share: Least worth of a citation as a share of that sentence's best one.
            min_utility: Utility that a citation must exceed, in nats of the mean loss of that sentence. With 0 few
                sentences of an answer come out as unsupported; see :mod:`gradrerank.citing`.
            question_weight: How much it counts in the choice that a sentence helps the question too; 0 cites
                for the answer alone.
            scorer: A ``GatesScorer`` or another scorer that looks inside documents; None takes the
                object's own if it does, else ``GatesScorer()``.
            select_sources: Whether to choose among the sources first.
            **settings: Any other field of :class:`~gradrerank.settings.Settings`.

        Returns:
            The answer with numbered citations.

        Raises:
            InvalidArgumentError: When an argument cannot be used; the message names it.
            InvalidTypeError: When an argument has the wrong type.
            ContextOverflowError: When a document, or query and answer, do not fit the model.
            ScoringError: When the scorer does not look inside documents.
        """
        citing = Citing(
            per_sentence=per_sentence,
            max_citations=max_citations,
            min_share=min_share,
            min_utility=min_utility,
            question_weight=question_weight,
        )
        use = self._use(select_sources=select_sources, target="reference", **settings)
        call = self._prepared(query, sources, check_answer(answer), use)
        return cite_answer(call, answer, self.generator, citing_scorer(scorer, use.scorer), citing)

    @told_once()
    def explain_tokens(
        self, query: str, sources: Sources, *, target: str = UNSET, reference: str | None = None, **settings: Any
    ) -> TokenMap:
        """Which document explains which word of the target; see :mod:`gradrerank.token_map`.

        It costs a forward and a backward row for every token of the target. The arguments are those of
        :meth:`rerank`; every document is read, none is cut.

        Returns:
            The utility of each document for each token, with a plot.
        """
        use = self._use(target=target, **settings)
        return token_map(self._prepared(query, sources, reference, use), self.generator)

    @told_once()
    def gate_path(
        self,
        query: str,
        sources: Sources,
        *,
        points: int = 11,
        target: str = UNSET,
        reference: str | None = None,
        **settings: Any,
    ) -> GatePath:
        """The loss while all documents are faded in; see :mod:`gradrerank.gate_path`.

        Args:
            query: The query.
            sources: As for :meth:`rerank`; every document is read, none is cut.
            points: Number of points between z = 0 and z = 1, both included; each costs a forward row.
            target: Overrides the object's own.
            reference: As for :meth:`rerank`.
            **settings: Any other field of :class:`~gradrerank.settings.Settings`.

        Returns:
            The losses, with a plot.
        """
        use = self._use(target=target, **settings)
        return gate_path(self._prepared(query, sources, reference, use), self.generator, points)
