"""LlamaIndex nodes become documents, and ranked documents become nodes again.

**Which text is scored.** The text of a node behind its metadata, as the node itself renders them
for the configured mode, with one rule on top: a metadata key that the node excludes for the LLM
never reaches the scoring model, and a key that it excludes for embedding reaches it in mode
``LLM`` only, where the scoring model reads exactly what the answering LLM will read. So ``ALL``
shows what no list excludes, as ``EMBED`` does; ``NONE`` shows the text alone. Whether two nodes
are the same, and where a span lies, is always told by the text alone. A token budget counts what the
answering LLM will read, which is mode ``LLM``, whatever the scoring model read.

**Where our findings live.** In a field of :class:`RankedNode`, next to the score. The metadata of
a node would be the wrong place: it is part of the node's hash, of the text that is embedded and of
the prompt of the LLM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode, ImageNode, MetadataMode, NodeWithScore, QueryBundle

from gradrerank.adapting import Occurrence, Occurrences, copied, occurrences_of, original_text, source_names
from gradrerank.documents import Document, DroppedDocument, Provenance, RankedDocument, RenderedDocument, cut_out
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.sources.pool import build_pool
from gradrerank.validation import is_blank

# Metadata field of the title.
TITLE_KEY = "title"


class RankedNode(NodeWithScore):
    """A node with its signed utility as the score, and what was found out about it.

    It is a ``NodeWithScore`` in every other respect. The node in it is a copy with the same id and
    the same hash, so nothing of ours reaches an index or a prompt.
    """

    gradrerank: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Which sources found the node, at which rank and score, and its score at every stage.",
    )

    @classmethod
    def class_name(cls) -> str:
        """The name of the class in serialized form."""
        return "RankedNode"


class ScoredText(NamedTuple):
    """What the model reads of a node.

    Args:
        text: Metadata and text as rendered; empty where the node's own text is blank.
        start: Where the node's own text begins in it.
        length: Characters of the node's own text in it.
        offset: Characters that rendering cut from the front of the node's own text.
    """

    text: str
    start: int
    length: int
    offset: int

    def own_span(self, start: int, end: int) -> tuple[int, int] | None:
        r"""A span of ``text`` as a span of the node's own text, or None where they do not meet.

        Example:
            >>> ScoredText("file: a\n\nTrams run.", 9, 10, 0).own_span(0, 14)
            (0, 5)
        """
        first = max(start - self.start, 0)
        last = min(end - self.start, self.length)
        return (first + self.offset, last + self.offset) if first < last else None


def read_nodes(nodes: Iterable[NodeWithScore], where: str = "nodes") -> list[NodeWithScore]:
    """Read the nodes once and check each of them.

    Args:
        nodes: Any iterable of nodes with scores.
        where: What the message calls them.

    Returns:
        The same objects, in order.

    Raises:
        InvalidTypeError: When one is not a NodeWithScore, or its text is not a str.
        InvalidArgumentError: When a score is not a finite number.
    """
    if isinstance(nodes, (str, bytes, Mapping)) or not isinstance(nodes, Iterable):
        raise InvalidTypeError(f"{where} is {type(nodes).__name__}, expected an iterable of NodeWithScore")
    read = list(nodes)
    for position, item in enumerate(read):
        if not isinstance(item, NodeWithScore):
            raise InvalidTypeError(f"{where}[{position}] is {type(item).__name__}, expected NodeWithScore")
        text = item.node.get_content(metadata_mode=MetadataMode.NONE)
        if not isinstance(text, str):
            raise InvalidTypeError(f"{where}[{position}] (id {item.node.node_id!r}) has {type(text).__name__} as text")
        if item.score is not None and not math.isfinite(item.score):
            raise InvalidArgumentError(
                f"{where}[{position}] (id {item.node.node_id!r}) has the score {item.score}; use None for 'no score'"
            )
    return read


def read_query(query: QueryBundle | None) -> QueryBundle:
    """The query, where it has a text to rank by.

    Args:
        query: What the framework hands over.

    Raises:
        InvalidArgumentError: When there is no query, or no text in it.
    """
    if query is None:
        raise InvalidArgumentError("no query was given; pass query_str=... or query_bundle=... with a text")
    text: object = query.query_str  # None passes where there is an embedding
    if not isinstance(text, str) or is_blank(text):
        raise InvalidArgumentError(f"the query must hold some text to rank by, got query_str={text!r}")
    return query


def own_text(node: BaseNode) -> str:
    """The text of a node without its metadata."""
    return node.get_content(metadata_mode=MetadataMode.NONE)


def is_media_without_text(node: BaseNode) -> bool:
    """Whether there is an image, a sound or a film in the node and nothing to read."""
    media = ("image_resource", "audio_resource", "video_resource")
    has_media = isinstance(node, ImageNode) or any(getattr(node, name, None) is not None for name in media)
    return has_media and is_blank(own_text(node))


def scored_text(node: BaseNode, mode: MetadataMode) -> ScoredText:
    """What the model reads of a node, by the rule at the top of this module.

    Args:
        node: Any node; it is not changed.
        mode: Which metadata stand before the text.

    Returns:
        The text, and where the node's own text is in it.
    """
    own = own_text(node)
    if is_blank(own):
        return ScoredText("", 0, 0, 0)
    if mode == MetadataMode.NONE:
        return ScoredText(own, 0, len(own), 0)
    hidden = [*node.excluded_embed_metadata_keys, *node.excluded_llm_metadata_keys]
    view = node.model_copy(update={"excluded_embed_metadata_keys": hidden})
    visible = mode if mode == MetadataMode.LLM else MetadataMode.EMBED
    text = view.get_content(metadata_mode=visible)
    if text == own:
        return ScoredText(own, 0, len(own), 0)
    # Rendering strips the whole, so spaces at an end of the node's own text may be missing in it.
    core = own.strip()
    start = _start_of(core, text, view.get_metadata_str(mode=visible))
    return ScoredText(text, start, len(core) if start >= 0 else 0, len(own) - len(own.lstrip()))


def _start_of(core: str, text: str, metadata: str) -> int:
    """Where the text stands: after the metadata, or before them in a template of the other order; -1 for nowhere."""
    shown = metadata.strip()
    behind = text.find(core, text.find(shown) + len(shown))
    return behind if behind >= 0 else text.find(core)


def as_llm_reads(node: BaseNode, text: str) -> str:
    """A node as the answering LLM reads it, with its text or an excerpt of it.

    Args:
        node: Any node; it is not changed.
        text: What of its own text is left.
    """
    view = node.model_copy()  # setting its text replaces the part that holds it, so the node stays as it is
    view.set_content(text)
    return view.get_content(metadata_mode=MetadataMode.LLM)


class NodePool:
    """The nodes of named sources on their way to the core, and back.

    Args:
        found: For each source its nodes, best first, as :func:`by_source` and :func:`in_sources` give
            them. Every text in them is the node's own.
        mode: Which metadata the model reads before the text.
        title_key: Metadata field that holds what other nodes call a node, shown to the model or not; None
            for no such field.
    """

    def __init__(
        self,
        found: Mapping[str, Sequence[Occurrence[NodeWithScore]]],
        mode: MetadataMode,
        title_key: str | None = TITLE_KEY,
    ) -> None:
        self._mode, self._title_key = mode, title_key
        self._own = Occurrences(found)
        pool = build_pool(self._own.sources)
        self.dropped = pool.dropped
        # Equal texts may come with different metadata: all of them are read as the best ranked one is.
        self._best = {c.text.strip(): self.node(c.provenance) for c in pool.candidates}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read, in any source."""
        return not self._best

    @property
    def sources(self) -> dict[str, list[Document]]:
        """For each source what the model reads of its nodes."""
        return {name: [self._as_read(d) for d in documents] for name, documents in self._own.sources.items()}

    @property
    def own_sources(self) -> dict[str, list[Document]]:
        """For each source the own texts of its nodes."""
        return self._own.sources

    def node(self, provenance: Sequence[Provenance]) -> BaseNode:
        """The node with the best rank among the occurrences of a document, as the caller passed it."""
        return self._own.item(provenance).node

    def ranked(self, document: RankedDocument) -> RankedNode:
        """A ranked document as a node."""
        item = self._own.item(document.provenance)
        text = scored_text(item.node, self._mode)
        spans = [(text.own_span(s.start, s.end), s.score) for s in document.spans]
        record = self._own.record(document.provenance, document.scores) | {
            "truncated": document.truncated,
            "spans": [{"start": own[0], "end": own[1], "score": score} for own, score in spans if own is not None],
        }
        excerpts = [own for own in (text.own_span(*each) for each in document.excerpts) if own is not None]
        earlier = item.gradrerank if isinstance(item, RankedNode) else None
        record |= original_text(earlier, own_text(item.node), excerpts)
        node = copied_node(item.node)
        if excerpts:
            node.set_content(cut_out(own_text(node), excerpts))
        return RankedNode(node=node, score=document.score, gradrerank=record)

    def unscored(self, provenance: Sequence[Provenance], score: float | None = None) -> RankedNode:
        """A node that no model has read, with the record of its sources."""
        return RankedNode(node=copied_node(self.node(provenance)), score=score, gradrerank=self._own.record(provenance))

    def media(self, dropped: Iterable[DroppedDocument], weights: Mapping[str, float] | None) -> list[RankedNode]:
        """Images and the like without text, each once, in the order of their retrieval.

        Args:
            dropped: What the core dropped.
            weights: Weights by source; what only sources of weight 0 found is left out.
        """
        left_out = {name for name, weight in (weights or {}).items() if weight == 0}
        found: dict[str, tuple[Provenance, ...]] = {}
        for each in dropped:
            node = self.node(each.provenance)
            if each.reason == "blank" and is_media_without_text(node):
                found[node.node_id] = found.get(node.node_id, ()) + each.provenance
        return [self.unscored(p) for p in found.values() if not left_out.issuperset(each.source for each in p)]

    def _as_read(self, document: Document) -> Document:
        best = self._best.get(document.text.strip())
        if best is None:
            return document
        read = scored_text(best, self._mode)
        if read.start < 0:  # a template that does not show the text as it is
            return replace(document, text=read.text)
        title = None if self._title_key is None else best.metadata.get(self._title_key)
        return RenderedDocument(
            read.text,
            document.id,
            metadata=document.metadata,
            score=document.score,
            own=(read.start, read.start + read.length),
            render=partial(as_llm_reads, best),
            called=title if isinstance(title, str) else None,
        )


def by_source(nodes: Sequence[NodeWithScore], source_key: str) -> dict[str, list[Occurrence[NodeWithScore]]]:
    """Nodes by the source that found them, as told by a record of ours or by their metadata.

    Args:
        nodes: Checked nodes, best first.
        source_key: The metadata field that names the source, or several in a list.

    Raises:
        InvalidTypeError: When that field holds something else.
    """
    found: dict[str, list[Occurrence[NodeWithScore]]] = {}
    for position, item in enumerate(nodes):
        record = item.gradrerank if isinstance(item, RankedNode) else {}
        named = record.get("sources", item.node.metadata.get(source_key))
        names = source_names(named, f"nodes[{position}].metadata[{source_key!r}]")
        for name, occurrence in occurrences_of(item, _document(item), names, record):
            found.setdefault(name, []).append(occurrence)
    return found


def in_sources(nodes: Mapping[str, Sequence[NodeWithScore]]) -> dict[str, list[Occurrence[NodeWithScore]]]:
    """Nodes of named sources, where what an earlier step recorded about them does not count.

    Args:
        nodes: For each source its checked nodes, best first.
    """
    return {name: [Occurrence(item, _document(item)) for item in found] for name, found in nodes.items()}


def _document(item: NodeWithScore) -> Document:
    return Document(own_text(item.node), id=item.node.node_id, metadata=item.node.metadata, score=item.score)


def copied_node(node: BaseNode) -> BaseNode:
    """A copy of a node that shares nothing a caller would write to; id and hash stay the same.

    What an IndexNode points to is shared.

    Args:
        node: The node.
    """
    own = {
        "metadata": copied(node.metadata),
        "relationships": dict(node.relationships),
        "excluded_embed_metadata_keys": list(node.excluded_embed_metadata_keys),
        "excluded_llm_metadata_keys": list(node.excluded_llm_metadata_keys),
    }
    return node.model_copy(update=own)
