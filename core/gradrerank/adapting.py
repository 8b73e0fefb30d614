"""What both framework packages need, once, and that knows no framework.

A framework package translates between its own types and ours. Shared are: the concurrent fetch of
sources (:mod:`gradrerank.fetching`), the checks of arguments, the way back from a ranking to the
caller's own objects with the record that is written into their metadata, and a reranker that is
loaded when it is first needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gradrerank.calibration import ScoreCalibration
from gradrerank.documents import Document, Provenance, copied
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.fetching import (
    ON_SOURCE_ERROR,
    Fetched,
    OnLoop,
    OnSourceError,
    afetch_all,
    fetch_all,
    run_blocking,
    run_in_thread,
)
from gradrerank.settings import Settings
from gradrerank.sources.embedding import as_encoder
from gradrerank.sources.pool import DEFAULT_SOURCE, Pool, build_pool, read_sources, restrict
from gradrerank.sources.weights import Weights, check_weights
from gradrerank.validation import check_choice, check_optional_number, is_blank

if TYPE_CHECKING:
    from gradrerank.lm.prompt import PromptTexts
    from gradrerank.reranker import GradReranker

__all__ = [
    "Fetched",
    "LazyReranker",
    "Occurrence",
    "Occurrences",
    "OnLoop",
    "OnSourceError",
    "afetch_all",
    "check_on_source_error",
    "check_setting",
    "check_sources",
    "check_timeout",
    "copied",
    "draft_prompt",
    "fetch_all",
    "merged_pool",
    "n_blank",
    "occurrences_of",
    "original_text",
    "run_blocking",
    "run_in_thread",
    "source_names",
]

T = TypeVar("T")


# -- checks ----------------------------------------------------------------------------------------


def check_setting(name: str, value: Any) -> Any:
    """One field of :class:`~gradrerank.settings.Settings`, checked, and as a plain number where it is one.

    Args:
        name: Name of the setting.
        value: What the caller passed.

    Raises:
        InvalidArgumentError: When it cannot be used; the message names it. A value of the wrong type too.
    """
    if name == "weights" and value is not None and not isinstance(value, Mapping):
        # A compressor or postprocessor does not know the sources, so weights by position say nothing.
        raise InvalidArgumentError(f"weights must map source names to numbers, got {value!r}")
    try:
        if name == "calibration" and isinstance(value, Mapping):
            value = ScoreCalibration.from_dict(value)
        return getattr(Settings(**{name: value}), name)
    except InvalidTypeError as error:
        raise InvalidArgumentError(str(error)) from error


def check_sources(sources: Any) -> dict[str, Any]:
    """Retrievers by source name, in a dict of its own.

    Args:
        sources: What the caller passed as ``sources``.

    Raises:
        InvalidArgumentError: When it is no mapping, names no source, or a name is no text.
    """
    if not isinstance(sources, Mapping):
        raise InvalidArgumentError(
            f"sources must map names to retrievers, for instance {{'wiki': retriever}}, got {type(sources).__name__}"
        )
    if not sources:
        raise InvalidArgumentError("sources must name at least one retriever, got an empty mapping")
    for name in sources:
        if not isinstance(name, str) or is_blank(name):
            raise InvalidArgumentError(f"the name of a source must be a str that holds some text, got {name!r}")
    return dict(sources)


def check_timeout(timeout: Any) -> float | None:
    """Seconds above 0, or None.

    Args:
        timeout: What the caller passed as ``timeout``.

    Raises:
        InvalidArgumentError: When it is something else.
    """
    seconds = check_optional_number("timeout", timeout)
    if seconds is not None and seconds <= 0:
        raise InvalidArgumentError(f"timeout must be seconds above 0 or None, got {timeout!r}")
    return seconds


def check_on_source_error(policy: Any) -> OnSourceError:
    """``"warn"``, ``"raise"`` or ``"ignore"``.

    Args:
        policy: What the caller passed as ``on_source_error``.

    Raises:
        InvalidArgumentError: When it is something else.
    """
    return check_choice("on_source_error", policy, ON_SOURCE_ERROR)  # type: ignore[return-value]


def source_names(value: Any, where: str) -> list[str]:
    """Names of sources as they stand in a metadata field: one name, a list of them, or nothing.

    Args:
        value: The value of the field; None where it is missing.
        where: The field, for messages, for instance ``"documents[3].metadata['retrieval_source']"``.

    Returns:
        The names, each once; ``["documents"]`` where there is none.

    Raises:
        InvalidTypeError: When it is neither a str nor a list of them.
        InvalidArgumentError: When a name is blank.

    Example:
        >>> source_names(["web", "wiki", "web"], "here"), source_names(None, "here")
        (['web', 'wiki'], ['documents'])
    """
    names = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"{where} must be the name of a source or a list of names, got {value!r}")
    if any(is_blank(name) for name in names):
        raise InvalidArgumentError(f"{where} holds a blank name of a source: {value!r}")
    return list(dict.fromkeys(names)) or [DEFAULT_SOURCE]


# -- there and back --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Occurrence(Generic[T]):
    """A caller's object as one source found it.

    Args:
        item: The caller's object.
        document: What the core sees of it.
        rank: Its rank in that source, where an earlier step recorded it.
        own_metadata: Whether the document has the metadata of the object itself, not of a record.
    """

    item: T
    document: Document
    rank: int | None = None
    own_metadata: bool = True


class Occurrences(Generic[T]):
    """The caller's objects by named source, so that a ranking leads back to them.

    Args:
        found: For each source what it found, best first; where ranks are recorded, these decide.

    Example:
        >>> found = Occurrences({"wiki": [Occurrence(1, Document("tram")), Occurrence(2, Document("bus"))]})
        >>> found.item([Provenance("wiki", 2)])
        2
    """

    def __init__(self, found: Mapping[str, Sequence[Occurrence[T]]]) -> None:
        self._found = {name: _by_rank(occurrences) for name, occurrences in found.items()}

    @property
    def sources(self) -> dict[str, list[Document]]:
        """What the core ranks."""
        return {name: [o.document for o in occurrences] for name, occurrences in self._found.items()}

    @property
    def items(self) -> list[T]:
        """The caller's objects, each once, source by source."""
        return list({id(o.item): o.item for found in self._found.values() for o in found}.values())

    def item(self, provenance: Sequence[Provenance]) -> T:
        """The caller's object with the best rank among the occurrences of a document."""
        return self._found[provenance[0].source][provenance[0].rank - 1].item

    def record(self, provenance: Sequence[Provenance], stages: Mapping[str, float] | None = None) -> dict[str, Any]:
        """What the framework packages write into the metadata of a document, in plain types.

        Args:
            provenance: The occurrences of the document, best rank first.
            stages: The score of every stage, where it was scored.

        Returns:
            ``sources``: names of the sources that found it, best rank first; ``ranks``, ``scores`` and
            ``ids``: rank (from 1), retrieval score and id in each of them, None where a source gave
            none; ``metadata``: the metadata of those occurrences that are not the caller's object
            itself; ``stages``: the score of every stage.
        """
        best: dict[str, Provenance] = {}
        for p in provenance:
            best.setdefault(p.source, p)
        item = self.item(provenance)
        found = {name: self._found[name][p.rank - 1] for name, p in best.items()}
        others = {name: o.document for name, o in found.items() if o.item is not item or not o.own_metadata}
        return {
            "sources": list(best),
            "ranks": {name: found[name].rank or p.rank for name, p in best.items()},
            "scores": {name: p.score for name, p in best.items()},
            "ids": {name: p.id for name, p in best.items()},
            "metadata": {name: copied(document.metadata) for name, document in others.items()},
            "stages": dict(stages or {}),
        }


def occurrences_of(
    item: T, document: Document, names: Sequence[str], record: Any = None
) -> Iterator[tuple[str, Occurrence[T]]]:
    """An object once for each source that found it, as a record of an earlier step tells.

    Args:
        item: The caller's object.
        document: What the core sees of it.
        names: The sources that found it.
        record: What :meth:`Occurrences.record` wrote in an earlier step, or anything else.

    Yields:
        Name of the source and the occurrence; with rank, score, id and metadata of the record for
        the sources that stand in it.
    """
    recorded = record if isinstance(record, Mapping) and isinstance(record.get("ranks"), Mapping) else {"ranks": {}}
    for name in names:
        if name not in recorded["ranks"]:
            yield name, Occurrence(item, document)
            continue
        metadata = recorded.get("metadata", {}).get(name)
        own = replace(
            document,
            id=recorded.get("ids", {}).get(name),
            score=recorded.get("scores", {}).get(name),
            metadata=document.metadata if metadata is None else metadata,
        )
        yield name, Occurrence(item, own, recorded["ranks"][name], own_metadata=metadata is None)


def original_text(record: Any, text: str, excerpts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """What a record keeps of a text that is handed back shorter than it came, in plain types.

    Args:
        record: The record that an earlier step wrote, or anything else.
        text: The caller's text.
        excerpts: The characters of it that are kept; none where all of it is.

    Returns:
        ``original``, the whole text as it came into the first step that compressed it, and ``excerpts``,
        the ranges of it that are kept, where it was this step; nothing where nothing was left out.

    Example:
        >>> original_text(None, "One. Two!", [(0, 4)])
        {'original': 'One. Two!', 'excerpts': [[0, 4]]}
    """
    earlier = record.get("original") if isinstance(record, Mapping) else None
    if isinstance(earlier, str):
        return {"original": earlier}
    return {"original": text, "excerpts": [list(each) for each in excerpts]} if excerpts else {}


def merged_pool(sources: Mapping[str, Sequence[Document]], weights: Weights | None = None) -> Pool:
    """Documents of all sources, merged and in fused retrieval order, without a model.

    Args:
        sources: Documents by source name, best first.
        weights: Trust in each source, as in the reranker; a source of weight 0 is left out.

    Returns:
        The pool.
    """
    read = read_sources(sources)
    checked = check_weights(weights, list(read))
    return restrict(build_pool(read, weights=checked), [name for name in read if checked is None or checked[name] > 0])


def n_blank(texts: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many texts of each source have nothing to read; sources without any are not named.

    Args:
        texts: Texts by source name.

    Example:
        >>> n_blank({"wiki": ["tram", " "], "web": ["bus"]})
        {'wiki': 1}
    """
    counts = {name: sum(map(is_blank, found)) for name, found in texts.items()}
    return {name: count for name, count in counts.items() if count}


def draft_prompt(words: PromptTexts, query: str, texts: Sequence[str]) -> str:
    """What the caller's LLM reads when it writes a draft.

    Args:
        words: The words around the documents, as the scoring model reads them.
        query: The query.
        texts: Texts of a few documents, best first.
    """
    return "\n\n".join([words.system, words.introduction.strip(), *texts, f"{words.question} {query}"])


def _by_rank(occurrences: Sequence[Occurrence[T]]) -> list[Occurrence[T]]:
    places = [o.rank or place for place, o in enumerate(occurrences, start=1)]
    return [occurrences[i] for i in sorted(range(len(places)), key=places.__getitem__)]


# -- the reranker ----------------------------------------------------------------------------------


class LazyReranker:
    """A reranker that is loaded when it is first used, by whichever thread comes first.

    Copies share it. Pickled, it holds configuration only.

    Args:
        reranker: A ready reranker, which is shared; nothing else may be given with it.
        model: As in :class:`~gradrerank.reranker.GradReranker`. A model that is given as an object
            is checked at once, a named one when it is loaded.
        device: Where a named model is placed.
        dtype: Floating-point type of a named model.
        encoder: Sentence encoder for the choice of sources.

    Raises:
        InvalidArgumentError: When something is given beside a ready reranker.
        InvalidTypeError: When reranker or encoder is something else.
        UnsupportedModelError: When a model object cannot be used.
    """

    def __init__(
        self,
        reranker: GradReranker | None = None,
        *,
        model: Any = None,
        device: Any = None,
        dtype: Any = None,
        encoder: Any = None,
    ) -> None:
        self._options = {"model": model, "device": device, "dtype": dtype, "encoder": encoder}
        self._given = self._ready = reranker
        self._lock = threading.Lock()
        given = [name for name, value in self._options.items() if value is not None]
        if reranker is not None:
            _check_ready(reranker, given)
            return
        as_encoder(encoder)
        if model is not None and not isinstance(model, str):
            self.get()

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._ready is not None

    def get(self) -> GradReranker:
        """The reranker; the first call loads its model.

        Raises:
            ModelLoadError: When the model cannot be found or loaded; the next call tries again.
        """
        with self._lock:
            if self._ready is None:
                from gradrerank.reranker import GradReranker

                self._ready = GradReranker(**self._options)
            return self._ready

    def made_from(self, reranker: GradReranker | None, **options: Any) -> bool:
        """Whether it was made from these very arguments."""
        same = all(_same(self._options[name], value) for name, value in options.items())
        return same and self._given is reranker

    def __copy__(self) -> LazyReranker:
        """Itself: it never changes, and a model is loaded once."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyReranker:
        """Itself: it never changes, and a model is loaded once."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By configuration; a model that was given as an object is refused, with what to do instead."""
        if self._given is not None:
            return LazyReranker, (self._given,)
        if self._options["model"] is not None and not isinstance(self._options["model"], str):
            self.get().__getstate__()  # raises: there are no weights in a pickle
        return partial(LazyReranker, **self._options), ()


def _same(one: Any, other: Any) -> bool:
    # Equal as well as identical: names come back from a pickle, and a bound method is made anew at each access.
    return one is other or (type(one) is type(other) and not isinstance(one, tuple) and bool(one == other))


def _check_ready(reranker: Any, given: Sequence[str]) -> None:
    from gradrerank.reranker import GradReranker

    if not isinstance(reranker, GradReranker):
        raise InvalidTypeError(f"reranker must be a GradReranker or None, got {type(reranker).__name__}")
    if given:
        raise InvalidArgumentError(f"{given[0]} has no effect beside a ready reranker; leave one of them out")
