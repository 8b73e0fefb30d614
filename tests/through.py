"""The same call through the core and through both framework packages, as one of their users would make it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradrerank import Document, GradReranker

_PACKAGES = {"core": "gradrerank", "langchain": "langchain_core", "llamaindex": "llama_index"}
WAYS = tuple(way for way, package in _PACKAGES.items() if importlib.util.find_spec(package) is not None)

Found = Mapping[str, Sequence[Document]]


@dataclass(frozen=True)
class Seen:
    """What a caller gets to see of a ranked document, whatever came back."""

    text: str
    id: str | None
    score: float
    ranks: Mapping[str, int]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    spans: Sequence[tuple[int, int]] = ()
    raw: Any = field(default=None, compare=False, repr=False)


def letters(texts: Any) -> Any:
    """A sentence encoder without a model: how often each letter occurs."""
    return np.array([[1.0 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts])


def rank(way: str, reranker: GradReranker, query: Any, sources: Found, **settings: Any) -> list[Seen]:
    """Rank the documents of named sources, each source a retriever of the framework."""
    return {"core": _core, "langchain": _langchain, "llamaindex": _llamaindex}[way](
        reranker, query, sources, **settings
    )


def _core(reranker: GradReranker, query: Any, sources: Found, **settings: Any) -> list[Seen]:
    return [
        Seen(
            d.text,
            d.id,
            d.score,
            {name: p.rank for name, p in d.sources.items()},
            d.metadata,
            [(s.start, s.end) for s in d.spans],
            d,
        )
        for d in reranker.rerank(query, sources, **settings)
    ]


def langchain_documents(documents: Sequence[Document]) -> list[Any]:
    """The documents as LangChain's."""
    from langchain_core.documents import Document as LangChainDocument

    return [
        LangChainDocument(
            page_content=d.text,
            id=d.id,
            metadata={**d.metadata, **({"title": d.title} if d.title else {}), **_score(d)},
        )
        for d in documents
    ]


def _score(document: Document) -> dict[str, float]:
    return {} if document.score is None else {"score": document.score}


def _langchain(reranker: GradReranker, query: Any, sources: Found, **settings: Any) -> list[Seen]:
    from langchain_gradrerank import GradRerankCompressor, MultiSourceRetriever

    found = {name: langchain_documents(documents) for name, documents in sources.items()}
    retriever = MultiSourceRetriever(
        sources={name: lambda query, name=name: found[name] for name in found},
        compressor=GradRerankCompressor(reranker=reranker, **settings),
    )
    return [
        Seen(
            d.metadata["gradrerank"].get("original", d.page_content),
            d.id,
            d.metadata["relevance_score"],
            d.metadata["gradrerank"]["ranks"],
            {k: v for k, v in d.metadata.items() if k not in ("gradrerank", "relevance_score", "retrieval_source")},
            raw=d,
        )
        for d in retriever.invoke(query)
    ]


def llamaindex_nodes(documents: Sequence[Document]) -> list[Any]:
    """The documents as LlamaIndex's nodes; one without an id keeps the one that LlamaIndex gives it."""
    from llama_index.core.schema import NodeWithScore, TextNode

    return [
        NodeWithScore(
            node=TextNode(text=d.text, metadata=dict(d.metadata), **({} if d.id is None else {"id_": d.id})),
            score=d.score,
        )
        for d in documents
    ]


def llamaindex_retriever(nodes: list[Any]) -> Any:
    """A retriever of LlamaIndex that finds these nodes, whatever is asked."""
    from llama_index.core.retrievers import BaseRetriever

    class Fixed(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return nodes

    return Fixed()


def _llamaindex(reranker: GradReranker, query: Any, sources: Found, **settings: Any) -> list[Seen]:
    from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever

    retriever = MultiSourceRetriever(
        {name: llamaindex_retriever(llamaindex_nodes(documents)) for name, documents in sources.items()},
        postprocessor=GradRerankPostprocessor(reranker=reranker, metadata_mode="none", **settings),
    )
    return [
        Seen(
            n.gradrerank.get("original", n.node.get_content()),
            n.node.node_id,
            n.score,
            n.gradrerank["ranks"],
            n.node.metadata,
            [(s["start"], s["end"]) for s in n.gradrerank["spans"]],
            n,
        )
        for n in retriever.retrieve(query)
    ]
