"""What a user tunes, in one place: the reranker and both framework packages read it from here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradrerank.calibration import ScoreCalibration
from gradrerank.context.choosers import as_chooser
from gradrerank.context.choosing import Chooser
from gradrerank.context.limits import PerSource, check_per_source
from gradrerank.context.ordering import ORDERS
from gradrerank.context.prompt_tokens import TokenCounter
from gradrerank.context.retrieval import FUSIONS
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.scorers import DEFAULT_SCORER, Scorer, as_scorer
from gradrerank.source_choice import SOURCE_CHOICES
from gradrerank.sources.weights import Weights, check_weights
from gradrerank.targets import TARGETS, Drafting, DraftWriter
from gradrerank.validation import check_choice, check_count, check_number, check_optional_count, check_optional_number


class _Unset:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "<the object's own>"


UNSET: Any = _Unset()

# With the least that each may be; of fewer than 8 tokens, title and separator leave no text to read.
_OPTIONAL_COUNTS = {
    "max_sources": 1,
    "docs_per_source": 1,
    "max_candidates": 1,
    "top_n": 1,
    "token_budget": 1,  # nosec B105 # a number of tokens, no password
    "max_document_tokens": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How documents are chosen, scored and cut.

    Args:
        scorer: Name of a scorer or a scorer.
        target: ``"query"``, ``"draft"`` or ``"reference"``.
        select_sources: Whether to choose which sources to combine; False keeps all.
        source_choice: What the choice is made by: ``"embedding"`` (f(A), before anything is read),
            ``"gradient"`` (the utility of each source, after all are read) or ``"both"``; see
            :mod:`gradrerank.source_choice`.
        source_agreement: Whether to compare what sources say of each word of the target, at one row of a
            batch for each token; see :mod:`gradrerank.sources.contribution`.
        source_lambda: Weight of the redundancy between sources in f(A).
        max_sources: Most sources that are combined, None for no limit.
        docs_per_source: Documents that each source hands over at most, None for all.
        weights: Trust in each source, by name or in the order of the sources; see
            :mod:`gradrerank.sources.weights`. None trusts all alike.
        fusion: What is added to the score besides the utility: ``"auto"`` (with the default scorer, what the
            sentence encoder says of the documents, where it embedded them for the choice among several
            sources), ``"off"``, ``"rrf"`` (retrieval, by the ranks in each source) or ``"score"``
            (by their scores, those of a source that disagrees with the model fading; where no source gives
            any, nothing is added, with a warning); see :mod:`gradrerank.context.retrieval`.
        fusion_weight: Weight of what is added beside the utility, from 0; 1 counts both alike.
        max_candidates: Candidates that the model reads at first, best by fused retrieval order, and more
            as long as it pays; see :func:`gradrerank.scoring.score_as_far_as_it_pays`. None reads all.
        top_n: Most documents in the ranking, None for all.
        min_score: Least utility of a ranked document, itself included; None for no bound. With
            ``calibration`` it is the least probability, between 0 and 1.
        calibration: Turns scores into probabilities of being worth reading, as
            :meth:`~gradrerank.reranker.GradReranker.calibrate_scores` gives it; None for none. Documents then
            have ``scores["probability"]``; they are still ranked by their score.
        token_budget: Most tokens that the kept documents take in the prompt, as
            :meth:`~gradrerank.documents.RerankResult.context` joins them; a document that is longer than what
            is left is passed over, never cut. None for no limit. How all these rules work together is told in
            :mod:`gradrerank.selecting`.
        token_counter: Number of tokens of a text by the tokenizer of the caller's own LLM, a callable
            ``(text) -> int``, asked once or twice for every document; None takes the scoring model's tokenizer.
        selection: Which documents are kept where not all can be: ``"order"`` (best first),
            ``"knapsack"`` (most utility for the tokens), ``"coverage"`` (documents that help different words
            of the target), ``"mmr"`` (documents that do not resemble each other), or an object with ``name``
            and ``choose``; see :class:`gradrerank.context.choosing.Chooser`.
        mmr_lambda: Weight of the score in ``"mmr"``, between 0 and 1; the rest is that of diversity.
        per_source: For a source the most documents that are kept of it, or a pair of the least and the most
            (None: no limit). A document that several sources found counts for each of them. A floor is
            filled as far as other bounds allow, and a source with a floor is read whatever the choice of
            sources says. None for no limits.
        order: How the kept documents are arranged: ``"score"``, ``"ascending"`` (best last), ``"edges"`` (the
            best at both ends, the worst in the middle) or ``"source"`` (grouped by source, the source of the
            best document first).
        compress: Whether to keep only those sentences of the kept documents that help.
        max_document_tokens: Tokens of a document that are read at most, 8 or more; None reads all of it.
        draft_writer: The caller's own LLM for ``target="draft"``: a callable
            ``(query, texts) -> str``; None lets the scoring model write.
        draft_documents: Documents in the prompt of a draft.
        draft_tokens: Most tokens of a draft of the scoring model.

    Raises:
        InvalidArgumentError: When a value cannot be used; the message names the argument.
        InvalidTypeError: When select_sources or compress is not a bool, or draft_writer or token_counter is
            not callable.

    Example:
        >>> Settings(top_n=5).override(top_n=None).top_n is None
        True
    """

    scorer: str | Scorer = DEFAULT_SCORER
    target: str = "query"
    select_sources: bool = True
    source_choice: str = "embedding"
    source_agreement: bool = False
    source_lambda: float = 0.1
    max_sources: int | None = None
    docs_per_source: int | None = None
    weights: Weights | None = None
    fusion: str = "auto"
    fusion_weight: float = 1.0
    max_candidates: int | None = None
    top_n: int | None = None
    min_score: float | None = None
    calibration: ScoreCalibration | None = None
    token_budget: int | None = None
    token_counter: TokenCounter | None = None
    selection: str | Chooser = "order"
    mmr_lambda: float = 0.7
    per_source: PerSource | None = None
    order: str = "score"
    compress: bool = False
    max_document_tokens: int | None = None
    draft_writer: DraftWriter | None = None
    draft_documents: int = 5
    draft_tokens: int = 32

    def __post_init__(self) -> None:
        """Check every value, and turn numpy numbers into plain ones."""
        as_scorer(self.scorer)
        check_choice("target", self.target, TARGETS)
        as_chooser(self.selection)
        check_choice("order", self.order, ORDERS)
        check_choice("fusion", self.fusion, FUSIONS)
        check_choice("source_choice", self.source_choice, SOURCE_CHOICES)
        for name in ("select_sources", "source_agreement", "compress"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidTypeError(f"{name} must be a bool, got {getattr(self, name)!r}")
        for name in ("draft_writer", "token_counter"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidTypeError(f"{name} must be callable, got {type(getattr(self, name)).__name__}")
        check_weights(self.weights)
        checked = {
            "source_lambda": check_number("source_lambda", self.source_lambda, minimum=0.0),
            "fusion_weight": check_number("fusion_weight", self.fusion_weight, minimum=0.0),
            "min_score": check_optional_number("min_score", self.min_score),
            "mmr_lambda": check_number("mmr_lambda", self.mmr_lambda, minimum=0.0, maximum=1.0),
            "per_source": check_per_source(self.per_source),
        }
        for name, least in _OPTIONAL_COUNTS.items():
            checked[name] = check_optional_count(name, getattr(self, name), minimum=least)
        for name in ("draft_documents", "draft_tokens"):
            checked[name] = check_count(name, getattr(self, name))
        self._check_calibration(checked["min_score"])
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _check_calibration(self, min_score: Any) -> None:
        if self.calibration is None:
            return
        if not isinstance(self.calibration, ScoreCalibration):
            raise InvalidTypeError(f"calibration must be a ScoreCalibration or None, got {self.calibration!r}")
        if min_score is not None and not 0 <= min_score <= 1:
            raise InvalidArgumentError(
                f"min_score must be a probability between 0 and 1 where calibration is given, got {min_score}"
            )

    def least_score(self, scores: Sequence[float]) -> float | None:
        """The least score that is kept: ``min_score`` itself, or that of this probability.

        Args:
            scores: Scores of all documents of one query.
        """
        if self.calibration is None or self.min_score is None:
            return self.min_score
        return self.calibration.least_score(scores, self.min_score)

    def override(self, **given: Any) -> Settings:
        """These settings with other values for some of them.

        Args:
            **given: New values by name.

        Returns:
            New settings, checked like the first ones.

        Raises:
            InvalidTypeError: When there is no setting of that name.
        """
        unknown = sorted(set(given) - set(self.names()))
        if unknown:
            raise InvalidTypeError(f"there is no setting {unknown[0]!r}; settings are {', '.join(self.names())}")
        return dataclasses.replace(self, **given)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(f.name for f in dataclasses.fields(cls))

    def as_dict(self) -> Mapping[str, Any]:
        """All settings by name."""
        return {name: getattr(self, name) for name in self.names()}

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens of the kept documents are counted."""
        return self.token_budget is not None or self.token_counter is not None

    @property
    def drafting(self) -> Drafting:
        """How drafts are written."""
        return Drafting(self.draft_writer, self.draft_documents, self.draft_tokens)
