"""LangChain documents to ours, and back.

**What is written into metadata.** A ranked document keeps its class, id and metadata, and gets

- ``relevance_score``: its signed utility, a float; positive helps, negative hurts;
- ``gradrerank``: everything else, in one dict of plain values: ``sources`` that found it (best rank
  first), by source name ``ranks`` (from 1), retrieval ``scores`` and ``ids``, the ``metadata`` of its
  duplicates from other sources, ``stages`` (the score of every stage) and ``truncated``. Where
  ``compress`` cut ``page_content``, ``original`` is the whole text, and ``excerpts`` the characters
  ``[start, end]`` of it that are kept; a later step hands ``original`` on;
- ``retrieval_source``: the names of the sources again, as a list, where
  :class:`~langchain_gradrerank.MultiSourceRetriever` found it. This is what documents are grouped by
  when they meet a compressor later on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.documents import Document

from gradrerank import Document as CoreDocument
from gradrerank import RerankResult
from gradrerank.adapting import Occurrence, Occurrences, copied, occurrences_of, original_text, source_names
from gradrerank.documents import RankedDocument
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.sources.pool import Pool
from gradrerank.validation import check_number

# What is written.
RECORD_KEY = "gradrerank"
SCORE_KEY = "relevance_score"
SOURCE_KEY = "retrieval_source"

# What is read, unless the user names other keys.
TITLE_KEY = "title"
RETRIEVAL_SCORE_KEY = "score"


def read_documents(documents: Any, where: str = "documents") -> list[Document]:
    """Read any iterable of documents once and check what is in it.

    Args:
        documents: What the caller, or a source, passed.
        where: What to call it in messages.

    Raises:
        InvalidTypeError: When it is no iterable of documents, or has no order; the message names the
            position.
    """
    if isinstance(documents, (str, bytes, Mapping, set, frozenset, Document)) or not isinstance(documents, Iterable):
        raise InvalidTypeError(f"{where} must be a list of Document, best first, got {type(documents).__name__}")
    read = list(documents)
    for i, document in enumerate(read):
        if not isinstance(document, Document):
            raise InvalidTypeError(f"{where}[{i}] is {type(document).__name__}, expected Document")
        text: object = document.page_content  # model_construct lets anything through
        if not isinstance(text, str):
            raise InvalidTypeError(f"{where}[{i}].page_content is {type(text).__name__}, expected str")
    return read


def to_core(document: Document, *, title_key: str | None, score_key: str | None) -> CoreDocument:
    """A document as the core sees it.

    Args:
        document: A LangChain document.
        title_key: Metadata key of the title; a value that is no str is no title.
        score_key: Metadata key of the retrieval score; a value that is no finite number is none. Where
            there is none, a ``relevance_score`` that another retriever or reranker wrote is taken, since
            ours takes its place.
    """
    score = None
    if score_key is not None:
        score = _number(document.metadata.get(score_key))
        if score is None and RECORD_KEY not in document.metadata:
            score = _number(document.metadata.get(SCORE_KEY))
    title = document.metadata.get(title_key) if title_key is not None else None
    return CoreDocument(
        document.page_content,
        id=document.id,
        title=title if isinstance(title, str) else None,
        metadata={key: value for key, value in document.metadata.items() if key != RECORD_KEY},
        score=score,
    )


def _number(value: Any) -> float | None:
    try:
        return check_number("score", value)
    except InvalidArgumentError:
        return None


def by_metadata(
    documents: Iterable[Document],
    *,
    source_key: str,
    title_key: str | None,
    score_key: str | None,
    also: Iterable[str] = (),
) -> Occurrences[Document]:
    """Documents of one list, grouped by the sources that their metadata names.

    Args:
        documents: Checked documents, best first.
        source_key: Metadata key of the name of the source, or of a list of names. Documents without
            it belong to one source named ``"documents"``.
        title_key: As in :func:`to_core`.
        score_key: As in :func:`to_core`.
        also: Names of sources that are there although they may have found nothing.

    Raises:
        InvalidTypeError: When the value under the key is neither a name nor a list of names.
        InvalidArgumentError: When a name is blank.
    """
    found: dict[str, list[Occurrence[Document]]] = {name: [] for name in also}
    for i, document in enumerate(documents):
        names = source_names(document.metadata.get(source_key), f"documents[{i}].metadata[{source_key!r}]")
        core = to_core(document, title_key=title_key, score_key=score_key)
        for name, occurrence in occurrences_of(document, core, names, document.metadata.get(RECORD_KEY)):
            found.setdefault(name, []).append(occurrence)
    return Occurrences(found)


def by_source(
    answers: Mapping[str, Iterable[Document]], *, title_key: str | None, score_key: str | None
) -> Occurrences[Document]:
    """What named sources answered.

    Args:
        answers: For each source its checked documents, best first.
        title_key: As in :func:`to_core`.
        score_key: As in :func:`to_core`.
    """
    return Occurrences(
        {
            name: [Occurrence(d, to_core(d, title_key=title_key, score_key=score_key)) for d in documents]
            for name, documents in answers.items()
        }
    )


def from_result(result: RerankResult, found: Occurrences[Document]) -> list[Document]:
    """The ranked documents as copies of the caller's own, with score and record.

    Args:
        result: A ranking of the documents in ``found``.
        found: The caller's documents by source.
    """
    return [_from_ranked(ranked, found) for ranked in result]


def _from_ranked(ranked: RankedDocument, found: Occurrences[Document]) -> Document:
    item = found.item(ranked.provenance)
    record = found.record(ranked.provenance, ranked.scores) | {"truncated": ranked.truncated}
    record |= original_text(item.metadata.get(RECORD_KEY), ranked.text, ranked.excerpts)
    return _with(item, {SCORE_KEY: ranked.score, RECORD_KEY: record}, ranked.excerpt)


def from_pool(pool: Pool, found: Occurrences[Document]) -> list[Document]:
    """The candidates of a pool in fused retrieval order, as copies of the caller's own, with their record.

    Args:
        pool: A pool of the documents in ``found``.
        found: The caller's documents by source.
    """
    return [_with(found.item(c.provenance), {RECORD_KEY: found.record(c.provenance)}) for c in pool.candidates]


def with_source_names(document: Document) -> Document:
    """A copy that lists the sources of its record under ``retrieval_source``.

    Args:
        document: A document that this package made.
    """
    names = list(document.metadata[RECORD_KEY]["sources"])
    return document.model_copy(update={"metadata": {**document.metadata, SOURCE_KEY: names}})


def summary(result: RerankResult) -> dict[str, Any]:
    """What was decided on the way to a ranking, without texts or metadata of the caller.

    Args:
        result: A ranking.
    """
    whole = result.to_dict()
    kept = ("scorer", "target", "target_text", "sources", "timings", "tokens", "details", "context_tokens")
    dropped = [
        {
            "id": d.document.id,
            "reason": d.reason,
            "score": d.score,
            "sources": list(dict.fromkeys(p.source for p in d.provenance)),
        }
        for d in result.dropped
    ]
    return {name: whole[name] for name in kept} | {"dropped": dropped}


def _with(document: Document, added: Mapping[str, Any], text: str | None = None) -> Document:
    metadata = {**copied(document.metadata), **added}
    return document.model_copy(update={"metadata": metadata} | ({} if text is None else {"page_content": text}))
