"""Named sources become one pool of candidates, with duplicates merged and nothing lost.

**When two documents are the same.** Two documents are the same when their texts are equal after
``str.strip()`` and their titles are equal, no title and an empty title being equal. Nothing else
is looked at: not the id, not the metadata, not the score. So the same passage under two ids, or
from two sources, is one candidate that remembers every occurrence; and two different texts under
one id stay two candidates. Blank documents have no content to be equal in and are never merged.

Nothing here depends on the order in which the sources are named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from gradrerank.documents import Document, DroppedDocument, DropReason, Provenance, RenderedDocument
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.validation import check_optional_count, is_blank

# Name of the only source when the caller passes documents without naming a source.
DEFAULT_SOURCE = "documents"

# Damps the lead of the first ranks in reciprocal rank fusion: the value of Cormack, Clarke and
# Buettcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods", 2009.
RANK_OFFSET = 60


Sources = Mapping[str, Iterable[Document | str]] | Iterable[Document | str]
"""Documents by source name, or documents of one source."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document after duplicates were merged.

    Args:
        document: The occurrence with the best rank (of equal ranks, the first source by name),
            as the caller passed it.
        provenance: Every occurrence, by rank and then by source name.
    """

    document: Document
    provenance: tuple[Provenance, ...]

    @property
    def text(self) -> str:
        """The text of the document."""
        return self.document.text

    @property
    def title(self) -> str | None:
        """The title of the document, or None."""
        return self.document.title

    @property
    def called(self) -> str | None:
        """What other documents call it: its title, shown or not, or None."""
        return self.title or (self.document.called if isinstance(self.document, RenderedDocument) else None)

    @property
    def own(self) -> tuple[int, int] | None:
        """The characters of the text that its author wrote, where a framework set more around them."""
        return self.document.own if isinstance(self.document, RenderedDocument) else None

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that found it, best rank first, each once."""
        return tuple(dict.fromkeys(p.source for p in self.provenance))

    @property
    def name(self) -> str:
        """What to call it in a message: its id, or how it begins."""
        return self.document.id or self.text.strip()[:40]

    @property
    def label(self) -> str:
        """Its name and the source that gave it the best rank, as a message quotes them."""
        return f"{self.name!r} of source {self.sources[0]!r}"


@dataclass(frozen=True, slots=True)
class Pool:
    """What the sources handed over.

    Args:
        sources: For each source, by name, the documents that it handed over: not blank, within
            ``docs_per_source``, in its own order.
        candidates: The distinct documents of all sources, in fused retrieval order.
        dropped: What is not a candidate, with the reason.
        n_documents: For each source the number of documents that were passed, blank ones included.
    """

    sources: Mapping[str, tuple[Document, ...]]
    candidates: tuple[Candidate, ...]
    dropped: tuple[DroppedDocument, ...]
    n_documents: Mapping[str, int]


def read_sources(sources: Sources, where: str = "sources") -> dict[str, tuple[Document, ...]]:
    """Read every source once and check what is in it.

    Args:
        sources: Documents by source name, or documents alone, which become one source named
            ``"documents"``. Any iterable will do, generators included; a string among the
            documents stands for ``Document(text)``.
        where: What to call the sources in messages.

    Returns:
        For each source its documents, in the given order.

    Raises:
        InvalidTypeError: When a source is not an iterable of documents, has no order (a set), or
            holds something else; the message names the source and the position.
        InvalidArgumentError: When the name of a source is blank.

    Example:
        >>> {name: len(docs) for name, docs in read_sources({"wiki": ["a", "b"], "web": []}).items()}
        {'wiki': 2, 'web': 0}
        >>> list(read_sources(["a", "b"]))
        ['documents']
    """
    if not isinstance(sources, Mapping):
        return {DEFAULT_SOURCE: _read_documents(where, sources)}
    for name in sources:
        if not isinstance(name, str):
            raise InvalidTypeError(f"the name of a source must be a str, got {_type_name(name)} {name!r}")
        if is_blank(name):
            raise InvalidArgumentError(f"the name of a source must hold some text, got {name!r}")
    return {name: _read_documents(f"{where}[{name!r}]", documents) for name, documents in sources.items()}


def read_sources_of_each(sources: Sources | Sequence[Sources], n: int) -> list[dict[str, tuple[Document, ...]]]:
    """The sources of each of n queries; sources that all share are read once.

    Args:
        sources: One argument of :func:`read_sources` for all queries, or a list of n of them.
        n: Number of queries.

    Returns:
        n results of :func:`read_sources`.

    Raises:
        InvalidArgumentError: When a list has another length than n.
        InvalidTypeError: See :func:`read_sources`.
    """
    a_list = isinstance(sources, Sequence) and not isinstance(sources, (str, bytes))
    if not a_list or all(isinstance(item, (Document, str)) for item in sources):
        return [read_sources(cast("Sources", sources))] * n
    own = cast("Sequence[Sources]", sources)
    if len(own) != n:
        raise InvalidArgumentError(f"sources has {len(own)} items for {n} queries")
    return [read_sources(item, f"sources[{i}]") for i, item in enumerate(own)]


def _read_documents(where: str, documents: Any) -> tuple[Document, ...]:
    if isinstance(documents, (str, bytes, bytearray, Document)):
        kind = type(documents).__name__
        wrapped = "[document]" if isinstance(documents, Document) else "[text]"
        raise InvalidTypeError(f"{where} is a {kind}; pass an iterable of documents, for instance {wrapped}")
    if isinstance(documents, (set, frozenset)):
        raise InvalidTypeError(f"{where} is a {type(documents).__name__}, which has no order; pass a list, best first")
    if isinstance(documents, Mapping) or not isinstance(documents, Iterable):
        raise InvalidTypeError(f"{where} is {_type_name(documents)}, expected an iterable of Document or str")
    try:
        items = list(documents)
    except Exception as error:
        error.add_note(f"while the documents of {where} were read")
        raise
    return tuple(_read_document(f"{where}[{i}]", item) for i, item in enumerate(items))


def _read_document(where: str, item: Any) -> Document:
    if isinstance(item, Document):
        return item
    if isinstance(item, str):
        return Document(str(item))  # str() turns a subclass such as numpy.str_ into a plain str
    raise InvalidTypeError(f"{where} is {_type_name(item)}, expected Document or str")


def _type_name(value: Any) -> str:
    """The type's name, with its module where several libraries have a class of that name."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Found(NamedTuple):
    """One occurrence while the pool is being built."""

    document: Document
    provenance: Provenance
    blank: bool
    beyond: bool

    def candidate_order(self) -> tuple[int, str]:
        return self.provenance.rank, self.provenance.source


def build_pool(
    sources: Mapping[str, Sequence[Document]],
    *,
    docs_per_source: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Pool:
    """Merge the documents of all sources into candidates.

    The identity rule is stated at the top of this module. Every document that comes in is
    afterwards in exactly one place: in the provenance of one candidate, or in that of one dropped
    document. Ranks count from 1 in the caller's own list, blank documents included.

    Args:
        sources: Documents by source name, best first, as :func:`read_sources` gives them.
        docs_per_source: How many documents that are not blank each source may hand over; None for
            all. A document beyond that is dropped, unless it is the same as one that some source
            hands over: then it remains an occurrence of that candidate.
        weights: For each source the weight of its term in reciprocal rank fusion; None for equal ones.

    Returns:
        The pool, with candidates in the order of :func:`reciprocal_rank`; of equal ones the better
        best rank leads, then the source that comes first by name.

    Raises:
        InvalidArgumentError: When docs_per_source is not None and not a whole number from 1.

    Example:
        >>> pool = build_pool({"wiki": [Document("tram")], "web": [Document("bus"), Document(" tram ")]})
        >>> [(c.text, c.sources) for c in pool.candidates]
        [('tram', ('wiki', 'web')), ('bus', ('web',))]
    """
    found = list(_occurrences(sources, check_optional_count("docs_per_source", docs_per_source)))
    same: dict[tuple[str, str], list[_Found]] = {}
    for occurrence in found:
        if not occurrence.blank:
            same.setdefault(same_text(occurrence.document), []).append(occurrence)
    groups = [sorted(group, key=_Found.candidate_order) for group in same.values()]

    candidates = [_candidate(group) for group in groups if not all(f.beyond for f in group)]
    candidates.sort(key=lambda candidate: _fused_order(candidate, weights))
    dropped = [_dropped([f], "blank") for f in found if f.blank]
    dropped += [_dropped(group, "docs_per_source") for group in groups if all(f.beyond for f in group)]
    dropped.sort(key=lambda d: (d.provenance[0].rank, d.provenance[0].source))

    handed_over: dict[str, list[Document]] = {name: [] for name in sorted(sources)}
    for f in found:
        if not f.blank and not f.beyond:
            handed_over[f.provenance.source].append(f.document)
    return Pool(
        sources={name: tuple(documents) for name, documents in handed_over.items()},
        candidates=tuple(candidates),
        dropped=tuple(dropped),
        n_documents={name: len(sources[name]) for name in sorted(sources)},
    )


def restrict(pool: Pool, names: Collection[str]) -> Pool:
    """Keep the candidates that at least one of the named sources found, at whatever rank.

    A candidate that is kept keeps its whole provenance, sources that were not named included. The
    others are dropped as ``"source_not_selected"``; what the sources handed over stays on record.

    Args:
        pool: A pool.
        names: Names of sources of this pool.

    Raises:
        InvalidTypeError: When names is a string.
        InvalidArgumentError: When a name is not that of a source of this pool.
    """
    if isinstance(names, str):
        raise InvalidTypeError(f"names must be a collection of source names, got the str {names!r}")
    for name in names:
        if name not in pool.sources:
            raise InvalidArgumentError(f"no source is named {name!r}; the sources are {', '.join(pool.sources)}")
    chosen = frozenset(names)
    kept = tuple(c for c in pool.candidates if not chosen.isdisjoint(c.sources))
    left_out = tuple(
        DroppedDocument(c.document, c.provenance, "source_not_selected")
        for c in pool.candidates
        if chosen.isdisjoint(c.sources)
    )
    return replace(pool, candidates=kept, dropped=pool.dropped + left_out)


def reciprocal_rank(provenance: Iterable[Provenance], weights: Mapping[str, float] | None = None) -> float:
    """Reciprocal rank fusion: the sum over the sources of weight / (60 + best rank in that source).

    Only ranks count, so a source whose scores are ten times larger has no more say than another.

    Args:
        provenance: The occurrences of one document.
        weights: Weight of each source; None for 1.

    Example:
        >>> reciprocal_rank([Provenance("web", 1), Provenance("web", 9), Provenance("wiki", 4)]) == 1 / 61 + 1 / 64
        True
    """
    best: dict[str, int] = {}
    for p in provenance:
        best[p.source] = min(p.rank, best.get(p.source, p.rank))
    # fsum rounds once, so that equal ranks give equal sums in whatever order they are added.
    return math.fsum((1.0 if weights is None else weights[n]) / (RANK_OFFSET + r) for n, r in best.items())


def _occurrences(sources: Mapping[str, Sequence[Document]], limit: int | None) -> Iterator[_Found]:
    for name in sorted(sources):
        n_readable = 0
        for rank, document in enumerate(sources[name], start=1):
            blank = is_blank(document.text)
            n_readable += not blank
            occurrence = Provenance(name, rank, document.score, document.id, document.metadata)
            yield _Found(document, occurrence, blank, beyond=limit is not None and n_readable > limit)


def same_text(document: Document) -> tuple[str, str]:
    """What two documents have in common when they are the same: text, but for space around it, and title.

    Args:
        document: The document.

    Example:
        >>> same_text(Document(" The tram. ")) == same_text(Document("The tram.", title=""))
        True
    """
    return document.text.strip(), document.title or ""


def _candidate(group: Sequence[_Found]) -> Candidate:
    return Candidate(group[0].document, tuple(f.provenance for f in group))


def _dropped(group: Sequence[_Found], reason: DropReason) -> DroppedDocument:
    return DroppedDocument(group[0].document, tuple(f.provenance for f in group), reason)


def _fused_order(candidate: Candidate, weights: Mapping[str, float] | None) -> tuple[float, int, str]:
    # No two candidates share a place in a source, so rank and source decide every tie.
    best = candidate.provenance[0]
    return -reciprocal_rank(candidate.provenance, weights), best.rank, best.source
