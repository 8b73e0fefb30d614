"""What a user tunes, in one place: the reranker and both framework packages read it from here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.scorers import Scorer, as_scorer
from gradrerank.sources.weights import Weights, check_weights
from gradrerank.targets import TARGETS, Drafting, DraftWriter
from gradrerank.validation import check_choice, check_count, check_number, check_optional_count, check_optional_number


class _Unset:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "<the object's own>"


UNSET: Any = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How documents are chosen, scored and cut.

    Args:
        scorer: Name of a scorer or a scorer.
        target: ``"query"``, ``"draft"`` or ``"reference"``.
        select_sources: Whether to choose which sources to combine; False keeps all.
        source_lambda: Weight of the redundancy between sources in f(A).
        max_sources: Most sources that are combined, None for no limit.
        docs_per_source: Documents that each source hands over at most, None for all.
        weights: Trust in each source, by name or in the order of the sources; see
            :mod:`gradrerank.sources.weights`. None trusts all alike.
        max_candidates: Candidates that the model reads at first, best by fused retrieval order, and more
            as long as it pays; see :func:`gradrerank.scoring.score_as_far_as_it_pays`. None reads all.
        top_n: Most documents in the ranking, None for all.
        min_score: Least utility of a ranked document, itself included; None for no bound.
        max_document_tokens: Tokens of a document that are read at most; None reads all of it.
        draft_writer: The caller's own LLM for ``target="draft"``: a callable
            ``(query, texts) -> str``; None lets the scoring model write.
        draft_documents: Documents in the prompt of a draft.
        draft_tokens: Most tokens of a draft of the scoring model.

    Raises:
        InvalidArgumentError: When a value cannot be used; the message names the argument.
        InvalidTypeError: When select_sources is not a bool or draft_writer is not callable.

    Example:
        >>> Settings(top_n=5).override(top_n=None).top_n is None
        True
    """

    scorer: str | Scorer = "gates"
    target: str = "query"
    select_sources: bool = True
    source_lambda: float = 0.1
    max_sources: int | None = None
    docs_per_source: int | None = None
    weights: Weights | None = None
    max_candidates: int | None = None
    top_n: int | None = None
    min_score: float | None = None
    max_document_tokens: int | None = None
    draft_writer: DraftWriter | None = None
    draft_documents: int = 5
    draft_tokens: int = 32

    def __post_init__(self) -> None:
        """Check every value, and turn numpy numbers into plain ones."""
        as_scorer(self.scorer)
        check_choice("target", self.target, TARGETS)
        if not isinstance(self.select_sources, bool):
            raise InvalidTypeError(f"select_sources must be a bool, got {self.select_sources!r}")
        if self.draft_writer is not None and not callable(self.draft_writer):
            raise InvalidTypeError(f"draft_writer must be callable, got {type(self.draft_writer).__name__}")
        check_weights(self.weights)
        checked = {
            "source_lambda": check_number("source_lambda", self.source_lambda, minimum=0.0),
            "min_score": check_optional_number("min_score", self.min_score),
        }
        for name in ("max_sources", "docs_per_source", "max_candidates", "top_n", "max_document_tokens"):
            checked[name] = check_optional_count(name, getattr(self, name))
        for name in ("draft_documents", "draft_tokens"):
            checked[name] = check_count(name, getattr(self, name))
        if self.max_document_tokens is not None and self.max_document_tokens < 8:
            raise InvalidArgumentError(f"max_document_tokens must be at least 8, got {self.max_document_tokens}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

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
    def drafting(self) -> Drafting:
        """How drafts are written."""
        return Drafting(self.draft_writer, self.draft_documents, self.draft_tokens)
