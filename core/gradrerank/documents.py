"""What goes in and what comes out: plain frozen dataclasses, without torch.

A *document* is what a source returned. A *candidate* (see :mod:`gradrerank.sources.pool`) is a
document after duplicates were merged; what is left after ranking is a *ranked document*.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from gradrerank.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from gradrerank.explaining import Explanation

DropReason = Literal[
    "blank",
    "docs_per_source",
    "source_not_selected",
    "max_candidates",
    "min_score",
    "top_n",
    "per_source",
    "token_budget",
    "selection",
]

# Stands between two documents in a prompt.
DOCUMENT_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Document:
    """One passage as a source returned it.

    Args:
        text: The passage. May be blank; blank documents are set aside, not ranked.
        id: The caller's own identifier; never changed and never used to merge documents.
        title: Shown to the model as ``Title: ...`` above the text.
        metadata: Anything the caller wants back; neither read nor changed.
        score: The score that the source gave, higher is better; None when it gave none.

    Raises:
        InvalidTypeError: When text, id, title, metadata or score has the wrong type.
        InvalidArgumentError: When score is not a finite number.

    Example:
        >>> Document("Kettles boil at 100 C.", id="k1", score=0.8).title is None
        True
    """

    text: str
    id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None

    def __post_init__(self) -> None:
        """Check the types, and turn a numpy score into a plain float."""
        if not isinstance(self.text, str):
            raise InvalidTypeError(f"Document.text must be a str, got {type(self.text).__name__}")
        for name in ("id", "title"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidTypeError(f"Document.{name} must be a str or None, got {type(value).__name__} {value!r}")
        if not isinstance(self.metadata, Mapping):
            raise InvalidTypeError(f"Document.metadata must be a mapping, got {type(self.metadata).__name__}")
        object.__setattr__(self, "score", _plain_score(self.score))


def _plain_score(score: Any) -> float | None:
    if score is None:
        return None
    if isinstance(score, (bool, str, bytes)) or not hasattr(score, "__float__"):
        raise InvalidTypeError(f"Document.score must be a number or None, got {type(score).__name__} {score!r}")
    try:
        plain = float(score)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"Document.score must be a number or None, got {score!r}: {error}") from error
    if not math.isfinite(plain):
        raise InvalidArgumentError(f"Document.score must be finite, got {plain}; pass None for 'no score'")
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedDocument(Document):
    """A document whose text a framework rendered around the caller's own, for instance behind metadata.

    Args:
        own: The characters ``(start, end)`` of the text that are the caller's own; only these are cut by
            ``compress``.
        render: The caller's own text, or an excerpt of it, as it will stand in the prompt.
        called: What other documents call it, where the framework keeps a title that is not shown as one; None
            where there is none.
    """

    own: tuple[int, int]
    render: Callable[[str], str]
    called: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """One occurrence of a document: where it was found, and as what.

    Args:
        source: Name of the source.
        rank: Place in that source's own list, from 1.
        score: The score that the source gave, or None.
        id: The id under which this source knows the document.
        metadata: The metadata that came with this occurrence.
    """

    source: str
    rank: int
    score: float | None = None
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanUtility:
    """The signed utility of a piece of a document, without the white space around it.

    Args:
        start: First character of the piece in the document's own text.
        end: One past its last character, so ``text[start:end]`` is the piece.
        score: Signed utility in nats; positive helps.
    """

    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document with its signed utility.

    Args:
        text: The whole text, also where the model read only part of it.
        id: The id of the occurrence with the best rank.
        title: The title, or None.
        metadata: A copy of the metadata of the occurrence with the best rank.
        score: Signed utility: positive helps, negative hurts, near zero is ignored. For the
            scorers of this package its unit is nats of the target's loss.
        rank: Place by score among the documents of the result, from 1.
        provenance: Every occurrence, best rank first.
        truncated: Whether the model read only part of the text.
        kept: The characters ``(start, end)`` of the text that the model read.
        spans: Utility of the pieces of the text, where the scorer looked inside the document.
        scores: The score of every stage by name, for instance ``{"gates": 0.31}``.
        excerpts: With ``compress``, the characters ``(start, end)`` of the text that are kept, in order;
            empty where all of it is.
    """

    text: str
    id: str | None
    title: str | None
    metadata: dict[str, Any]
    score: float
    rank: int
    provenance: tuple[Provenance, ...]
    truncated: bool = False
    kept: tuple[int, int] = (0, 0)
    spans: tuple[SpanUtility, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    excerpts: tuple[tuple[int, int], ...] = ()

    @property
    def excerpt(self) -> str:
        """The text to put into the prompt: the kept sentences, with a space between them, or all of it.

        Example:
            >>> RankedDocument("One. Two! Six!", None, None, {}, 0.1, 1, (), excerpts=((0, 4), (10, 14))).excerpt
            'One. Six!'
        """
        return cut_out(self.text, self.excerpts)

    @property
    def sources(self) -> dict[str, Provenance]:
        """The best occurrence in each source that found the document, by source name.

        Example:
            >>> d = RankedDocument("x", None, None, {}, 0.1, 1, (Provenance("web", 3, 0.7),))
            >>> list(d.sources), d.sources["web"].rank
            (['web'], 3)
        """
        best: dict[str, Provenance] = {}
        for occurrence in self.provenance:
            best.setdefault(occurrence.source, occurrence)
        return best


@dataclass(frozen=True, slots=True)
class DroppedDocument:
    """A document that is not in the ranking, and why.

    Args:
        document: The document as the caller passed it (its first occurrence).
        provenance: Every occurrence, best rank first.
        reason: ``"blank"`` (nothing to read), ``"docs_per_source"`` (beyond the top m of its
            source), ``"source_not_selected"``, ``"max_candidates"`` (never read), ``"min_score"``,
            ``"top_n"``, ``"per_source"`` (a source that found it is at its limit), ``"token_budget"`` (longer
            than what was left) or ``"selection"`` (there was room, and the selection did not want it).
        score: Its signed utility, where it was scored.
    """

    document: Document
    provenance: tuple[Provenance, ...]
    reason: DropReason
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What became of one source.

    Args:
        name: Name of the source.
        selected: Whether its documents were read by the model.
        gain: What adding it to the sources chosen before it added to f(A); for a source that was
            left out, what it would have added to the final choice. None when no choice was made.
        relevance: cos(query, source), or None when no choice was made.
        n_documents: How many documents it handed over, blank ones included.
        n_kept: How many documents of the final ranking it found.
        utility: The utility of all its documents that were scored, kept or not; a document that several
            sources found is shared equally, so the sources add up to all documents. None where none was scored.
        share: Its share of all positive utility, between 0 and 1; None where no document of it was scored.
        agreement: With ``source_agreement``, by name of another source the cosine of what both say of the
            target's words: 1 where they help and hurt the same ones, -1 where one hurts what the other helps.
    """

    name: str
    selected: bool
    gain: float | None
    relevance: float | None
    n_documents: int
    n_kept: int
    utility: float | None = None
    share: float | None = None
    agreement: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RerankResult:
    """A ranking, and everything that was decided on the way to it.

    It is also a read-only sequence of its documents: ``len(result)``, ``result[0]``, iteration. They stand
    in the order of the setting ``order``, which is best first unless another was asked for; their ``rank``
    is always the place by score.

    Args:
        query: The query.
        documents: The ranked documents, in the order in which they belong into the prompt.
        sources: One report for each source: chosen ones in the order of choice, then the others.
        dropped: Documents that are not in the ranking, with the reason.
        timings: Seconds by stage; ``"total"`` covers them all.
        tokens: Tokens that passed through the language model, by stage.
        scorer: Name of the scorer.
        target: Kind of target: ``"query"``, ``"draft"`` or ``"reference"``.
        target_text: The text whose loss was read.
        details: What else the scorer has to say, for instance ``{"loss": 2.1}``.
        context_tokens: With ``token_budget`` or ``token_counter``, the tokens that the documents take in
            the prompt; else None.

    Example:
        >>> result = RerankResult("q", (), ())
        >>> len(result), result.to_dict()["documents"]
        (0, [])
    """

    query: str
    documents: tuple[RankedDocument, ...]
    sources: tuple[SourceReport, ...]
    dropped: tuple[DroppedDocument, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    scorer: str = ""
    target: str = ""
    target_text: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    context_tokens: int | None = None

    def __len__(self) -> int:
        """Number of ranked documents."""
        return len(self.documents)

    def __iter__(self) -> Iterator[RankedDocument]:
        """The ranked documents, in the order of the result."""
        return iter(self.documents)

    @overload
    def __getitem__(self, index: int) -> RankedDocument: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankedDocument, ...]: ...
    def __getitem__(self, index: int | slice) -> RankedDocument | tuple[RankedDocument, ...]:
        """The ranked document at an index, or several by a slice."""
        return self.documents[index]

    def __repr__(self) -> str:
        """One short line, whatever the documents hold."""
        query = self.query if len(self.query) <= 60 else self.query[:57] + "..."
        best = f", best={max(d.score for d in self.documents):+.4f}" if self.documents else ""
        chosen = [s.name for s in self.sources if s.selected]
        return (
            f"RerankResult({query!r}, {len(self.documents)} documents from {len(chosen)} of {len(self.sources)} "
            f"sources{best}, {len(self.dropped)} dropped)"
        )

    def context(self) -> str:
        r"""The documents as one text for a prompt, in their order, an empty line between two.

        A title stands above its text as ``Title: ...``; with ``compress`` only the kept sentences are there.
        It is this text whose tokens ``token_budget`` counts.

        Example:
            >>> trams = RankedDocument("Trams run hourly.", None, "Trams", {}, 0.1, 1, ())
            >>> RerankResult("q", (trams,), ()).context()
            'Title: Trams\nTrams run hourly.'
        """
        return DOCUMENT_SEPARATOR.join(placed(d.title, d.excerpt) for d in self.documents)

    def _repr_html_(self) -> str:
        """A table shaded by signed utility, for a notebook."""
        from gradrerank.notebook import result_html

        return result_html(self)

    def explain(self, order: Literal["utility", "document"] = "utility") -> Explanation:
        """Which sentences of the documents help and which hurt; see :func:`gradrerank.explaining.explain`.

        Args:
            order: ``"utility"`` sorts by utility, most helpful first; ``"document"`` keeps the order of the
                ranking and of each text.

        Raises:
            InvalidArgumentError: When order is neither.
            ScoringError: When the scorer did not look inside documents.
        """
        from gradrerank.explaining import explain

        return explain(self, order)

    def plot(self, kind: str = "documents", *, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the result (needs matplotlib, the extra ``plot``); see :mod:`gradrerank.plots`.

        Args:
            kind: ``"documents"`` (utility of each, by source), ``"sources"`` (gain and redundancy) or
                ``"agreement"`` (against ``other=``, for instance the result of scorer ``ablation``).
            ax: Where to draw; None makes a figure.
            **options: Other arguments of that plot.

        Returns:
            The axes.

        Raises:
            InvalidArgumentError: When there is no such plot, or nothing to draw.
            ImportError: When matplotlib is not installed.
        """
        from gradrerank.plots import plot_result

        return plot_result(self, kind, ax=ax, **options)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dicts, lists, strings and numbers (metadata stays as it came).

        Returns:
            A dict with the keys query, scorer, target, target_text, documents, sources, dropped,
            timings, tokens, details and context_tokens.
        """
        return {
            "query": self.query,
            "scorer": self.scorer,
            "target": self.target,
            "target_text": self.target_text,
            "documents": [_ranked_dict(d) for d in self.documents],
            "sources": [{**_fields(s), "agreement": dict(s.agreement)} for s in self.sources],
            "dropped": [
                {
                    "document": _fields(d.document),
                    "provenance": [_fields(p) for p in d.provenance],
                    "reason": d.reason,
                    "score": d.score,
                }
                for d in self.dropped
            ],
            "timings": dict(self.timings),
            "tokens": dict(self.tokens),
            "details": dict(self.details),
            "context_tokens": self.context_tokens,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """The ranked documents as a table, one row each (needs pandas).

        Returns:
            A DataFrame with the columns rank, score, id, title, text, sources and truncated;
            ``sources`` holds a dict from source name to the rank in that source.

        Raises:
            ImportError: When pandas is not installed.
        """
        import pandas

        columns = ["rank", "score", "id", "title", "text", "sources", "truncated"]
        rows = [
            [d.rank, d.score, d.id, d.title, d.text, {n: p.rank for n, p in d.sources.items()}, d.truncated]
            for d in self.documents
        ]
        return pandas.DataFrame(rows, columns=columns)


def placed(title: str | None, text: str) -> str:
    r"""A document as it stands in a prompt, without a separator.

    Args:
        title: The title, or None.
        text: Its text, or an excerpt.

    Example:
        >>> placed("Trams", "They run hourly."), placed(None, "They run hourly.")
        ('Title: Trams\nThey run hourly.', 'They run hourly.')
    """
    return f"Title: {title}\n{text}" if title else text


def cut_out(text: str, ranges: Sequence[tuple[int, int]]) -> str:
    """Some ranges of a text with a space between them.

    Args:
        text: The text.
        ranges: Characters ``(start, end)``, in order and apart; none stands for the whole text.
    """
    return " ".join(text[start:end] for start, end in ranges) if ranges else text


def copied(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of metadata, so that writing to a result never reaches the caller's document.

    Args:
        metadata: Anything that a caller attached to a document.

    Returns:
        The copy. A value that cannot be copied, such as an open file, is shared.
    """
    twin = {}
    for key, value in metadata.items():
        try:
            twin[key] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - deepcopy raises whatever the value's class raises
            twin[key] = value
    return twin


def _fields(item: Any) -> dict[str, Any]:
    """A flat dataclass as a dict; unlike dataclasses.asdict it leaves metadata values alone."""
    kind = Document if isinstance(item, Document) else type(item)  # without what a framework added
    plain = {name: getattr(item, name) for name in kind.__dataclass_fields__}
    if "metadata" in plain:
        plain["metadata"] = dict(plain["metadata"])
    return plain


def _ranked_dict(document: RankedDocument) -> dict[str, Any]:
    plain = _fields(document)
    plain["provenance"] = [_fields(p) for p in document.provenance]
    plain["spans"] = [_fields(s) for s in document.spans]
    plain["kept"] = list(document.kept)
    plain["excerpts"] = [list(each) for each in document.excerpts]
    plain["scores"] = dict(document.scores)
    return plain
