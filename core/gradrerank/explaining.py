"""What helps inside a document: the sentences that a scorer gated, with their place in the caller's own text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from gradrerank.documents import RankedDocument, RerankResult
from gradrerank.errors import ScoringError
from gradrerank.validation import check_choice

if TYPE_CHECKING:
    import pandas

Order = Literal["utility", "document"]
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class SentenceUtility:
    """A sentence of a ranked document, or whatever piece the scorer was told to gate.

    Args:
        text: The sentence, without the white space around it.
        start: Its first character in the document's own text, as the caller passed it.
        end: One past its last character, so ``document.text[start:end]`` is ``text``.
        utility: Signed utility in nats of the target's mean loss; positive helps, negative hurts, near
            zero is ignored. The title of a document counts with its first sentence.
        rank: Rank of the document in the result, from 1.
        id: The document's id, or None.
        title: The document's title, or None.
        sources: Names of the sources that found the document, best rank first.
    """

    text: str
    start: int
    end: int
    utility: float
    rank: int
    id: str | None
    title: str | None
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Sentences with their utilities: a read-only sequence that can be filtered.

    Args:
        query: The query.
        target: Kind of target whose loss was read.
        sentences: The sentences, in the order that was asked for.
        documents: The ranked documents that they are from.

    Example:
        >>> explanation = reranker.rerank(query, sources).explain()    # doctest: +SKIP
        >>> explanation.helping[0].text                                # doctest: +SKIP
        'The ferry leaves at 8:40.'
    """

    query: str
    target: str
    sentences: tuple[SentenceUtility, ...]
    documents: tuple[RankedDocument, ...]

    @property
    def helping(self) -> Explanation:
        """The sentences with a positive utility, in the same order."""
        return replace(self, sentences=tuple(s for s in self.sentences if s.utility > 0))

    @property
    def hurting(self) -> Explanation:
        """The sentences with a negative utility, in the same order."""
        return replace(self, sentences=tuple(s for s in self.sentences if s.utility < 0))

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.sentences)

    def __iter__(self) -> Iterator[SentenceUtility]:
        """The sentences in their order."""
        return iter(self.sentences)

    @overload
    def __getitem__(self, index: int) -> SentenceUtility: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SentenceUtility, ...]: ...
    def __getitem__(self, index: int | slice) -> SentenceUtility | tuple[SentenceUtility, ...]:
        """The sentence at an index, or several by a slice."""
        return self.sentences[index]

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain dicts, lists, strings and numbers.

        Returns:
            A dict with the keys query, target and sentences.
        """
        return {"query": self.query, "target": self.target, "sentences": [as_dict(s) for s in self.sentences]}

    def to_pandas(self) -> pandas.DataFrame:
        """The sentences as a table, one row each (needs pandas).

        Raises:
            ImportError: When pandas is not installed.
        """
        import pandas

        columns = list(SentenceUtility.__dataclass_fields__)
        return pandas.DataFrame([as_dict(s) for s in self.sentences], columns=columns)

    def __repr__(self) -> str:
        """How many help and hurt, and the first sentences, one line each."""
        from gradrerank.display import one_line, signed

        n_help, n_hurt = len(self.helping), len(self.hurting)
        largest = largest_magnitude(self.sentences)
        lines = [
            f"Explanation: {len(self)} sentences, {n_help} help and {n_hurt} hurt (nats of the {self.target}'s loss)"
        ]
        for s in self.sentences[:_SHOWN]:
            lines.append(f"  {signed(s.utility, largest):>8}  #{s.rank} {one_line(s.text)[:90]}")
        if len(self) > _SHOWN:
            lines.append(f"  ... and {len(self) - _SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The documents with their sentences shaded, for a notebook."""
        from gradrerank.notebook import explanation_html

        return explanation_html(self)


def explain(result: RerankResult, order: Order = "utility") -> Explanation:
    """Which sentences of the ranked documents help, and which hurt.

    Args:
        result: A ranking by a scorer that looks inside documents, such as ``gates``.
        order: ``"utility"`` sorts by utility, most helpful first; ``"document"`` keeps the order of the
            ranking and of each text.

    Returns:
        The sentences; none for a result without documents.

    Raises:
        InvalidArgumentError: When order is neither.
        ScoringError: When the scorer scored whole documents only, so there is nothing to explain.
    """
    check_choice("order", order, ("utility", "document"))
    if result.documents and not any(d.spans for d in result.documents):
        raise ScoringError(
            f"there is nothing to explain: scorer {result.scorer!r} scored whole documents and did not look inside "
            "them; rank with scorer='gates', or with GatesScorer(pieces=...) for other pieces than sentences"
        )
    sentences = [sentence for document in result.documents for sentence in sentences_of(document)]
    if order == "utility":
        sentences.sort(key=lambda s: -s.utility)
    return Explanation(result.query, result.target, tuple(sentences), result.documents)


def sentences_of(document: RankedDocument) -> list[SentenceUtility]:
    """The pieces of one document in the order of its text, without the white space around them."""
    where = (document.rank, document.id, document.title, tuple(document.sources))
    found = []
    for span in document.spans:
        start, end = stripped(document.text, span.start, span.end)
        if start < end:
            found.append(SentenceUtility(document.text[start:end], start, end, span.score, *where))
    return found


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """A range of characters without the white space at its edges.

    Example:
        >>> stripped("One. Two. ", 5, 10)
        (5, 9)
    """
    piece = text[start:end]
    left = start + len(piece) - len(piece.lstrip())
    return left, max(left, start + len(piece.rstrip()))


def largest_magnitude(sentences: Sequence[SentenceUtility]) -> float:
    """The largest utility in either direction, 0 for none."""
    return max((abs(s.utility) for s in sentences), default=0.0)


def as_dict(item: Any) -> dict[str, Any]:
    """A flat dataclass as a dict whose tuples are lists."""
    values = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
