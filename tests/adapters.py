"""One list of documents that name their sources, ranked by either framework package in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from through import WAYS, llamaindex_retriever

ADAPTERS = tuple(way for way in WAYS if way != "core")

Found = Mapping[str, Sequence[str]]


class LangChain:
    """A ``GradRerankCompressor`` and its documents."""

    def make(self, **settings: Any) -> Any:
        """The object that ranks."""
        from langchain_gradrerank import GradRerankCompressor

        return GradRerankCompressor(**settings)

    def retriever(self, sources: Found, made: Any) -> Any:
        """A retriever over sources that find these texts, ranked by what :meth:`make` gave."""
        from langchain_gradrerank import MultiSourceRetriever

        answers = {name: (lambda query, name=name: self.documents({name: sources[name]})) for name in sources}
        return MultiSourceRetriever(sources=answers, compressor=made)

    def documents(self, sources: Found) -> list[Any]:
        """The texts as documents that name their source; ids count from d0."""
        from langchain_core.documents import Document

        named = [(name, text) for name, texts in sources.items() for text in texts]
        return [Document(text, id=f"d{i}", metadata={"retrieval_source": name}) for i, (name, text) in enumerate(named)]

    def rank(self, made: Any, documents: Sequence[Any], query: str) -> list[Any]:
        """The ranked documents."""
        return list(made.compress_documents(documents, query))

    async def arank(self, made: Any, documents: Sequence[Any], query: str) -> list[Any]:
        """The same, awaited."""
        return list(await made.acompress_documents(documents, query))

    def retrieve(self, retriever: Any, query: str) -> list[Any]:
        """What a retriever of :meth:`retriever` finds."""
        return list(retriever.invoke(query))

    def text(self, document: Any) -> str:
        """Its text."""
        return str(document.page_content)

    def id(self, document: Any) -> str:
        """Its id."""
        return str(document.id)

    def record(self, document: Any) -> Mapping[str, Any]:
        """What this package wrote of it."""
        record: Mapping[str, Any] = document.metadata["gradrerank"]
        return record


class LlamaIndex:
    """A ``GradRerankPostprocessor`` and its nodes; see :class:`LangChain`."""

    def make(self, **settings: Any) -> Any:
        from llamaindex_gradrerank import GradRerankPostprocessor

        return GradRerankPostprocessor(**settings)

    def retriever(self, sources: Found, made: Any) -> Any:
        from llamaindex_gradrerank import MultiSourceRetriever

        answers = {name: llamaindex_retriever(self.documents({name: sources[name]})) for name in sources}
        return MultiSourceRetriever(answers, postprocessor=made)

    def documents(self, sources: Found) -> list[Any]:
        from llama_index.core.schema import NodeWithScore, TextNode

        named = [(name, text) for name, texts in sources.items() for text in texts]
        hidden = ["retrieval_source"]
        own = {"excluded_embed_metadata_keys": hidden, "excluded_llm_metadata_keys": hidden}
        nodes = [
            TextNode(text=text, id_=f"d{i}", metadata={"retrieval_source": name}, **own)
            for i, (name, text) in enumerate(named)
        ]
        return [NodeWithScore(node=node) for node in nodes]

    def rank(self, made: Any, documents: Sequence[Any], query: str) -> list[Any]:
        return list(made.postprocess_nodes(documents, query_str=query))

    async def arank(self, made: Any, documents: Sequence[Any], query: str) -> list[Any]:
        return list(await made.apostprocess_nodes(documents, query_str=query))

    def retrieve(self, retriever: Any, query: str) -> list[Any]:
        return list(retriever.retrieve(query))

    def text(self, document: Any) -> str:
        return str(document.node.get_content())

    def id(self, document: Any) -> str:
        return str(document.node.node_id)

    def record(self, document: Any) -> Mapping[str, Any]:
        record: Mapping[str, Any] = document.gradrerank
        return record


def adapter(way: str) -> Any:
    """The package by the name that :data:`through.WAYS` gives it."""
    return {"langchain": LangChain, "llamaindex": LlamaIndex}[way]()
