"""Three real retrievers, the real models and public questions, through a query engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import SummaryIndex, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode

from gradrerank import SentenceEncoder
from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "federated_5src.jsonl"
QUESTIONS = 4


class MiniLM(BaseEmbedding):
    """The embedded sentence encoder as an embedding of LlamaIndex."""

    _encoder: SentenceEncoder = PrivateAttr(default_factory=SentenceEncoder)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._encoder.encode([text])[0].tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encoder.encode(texts).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def as_node(row: dict[str, Any], document: dict[str, Any]) -> TextNode:
    title = {"title": document["title"]} if document["title"] else {}
    return TextNode(text=document["text"], id_=f"{row['id']}/{document['id']}", metadata=title)


@pytest.mark.real_model
@pytest.mark.skipif(not DATA.exists(), reason="the public question sets are not here")
async def test_three_retrievers_through_a_query_engine() -> None:
    bm25 = pytest.importorskip("llama_index.retrievers.bm25")
    with DATA.open(encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(QUESTIONS)]
    by_source: dict[str, list[TextNode]] = {}
    for row in rows:
        for document in row["documents"]:
            by_source.setdefault(document["source"], []).append(as_node(row, document))
    gold = {f"{row['id']}/{d['id']}" for row in rows for d in row["documents"] if d["gold"]}
    originals = {node.node_id: node for nodes in by_source.values() for node in nodes}
    encyclopedia = by_source["wikipedia"] + by_source["pubmed"]
    embedding = MiniLM()
    retriever = MultiSourceRetriever(
        {
            "encyclopedia": VectorStoreIndex(encyclopedia, embed_model=embedding).as_retriever(similarity_top_k=4),
            "offices": bm25.BM25Retriever.from_defaults(
                nodes=by_source["gov-websites"] + by_source["finance-forum"], similarity_top_k=3
            ),
            "handbook": SummaryIndex(by_source["cloud-docs"][:3]).as_retriever(),
        },
        postprocessor=GradRerankPostprocessor(top_n=4, max_document_tokens=128, encoder=embedding),
    )
    engine = RetrieverQueryEngine.from_args(retriever=retriever, llm=MockLLM())
    found = set()
    for row in rows[:2]:
        with pytest.warns(UserWarning, match="read only in part"):
            response = engine.query(row["question"])
        nodes = response.source_nodes
        assert len(nodes) == 4 and [n.score for n in nodes] == sorted((n.score for n in nodes), reverse=True)
        assert all(set(n.gradrerank["sources"]) <= set(retriever.sources) for n in nodes)
        found |= {n.node_id for n in nodes}
        prompt = str(response)  # the mock answers with the prompt that it saw
        assert row["question"] in prompt and all(n.text in prompt for n in nodes)
        as_they_were = [NodeWithScore(node=originals[n.node_id]) for n in nodes]
        assert prompt == str(get_response_synthesizer(llm=MockLLM()).synthesize(row["question"], as_they_were))
        assert all(n.node.hash == originals[n.node_id].hash for n in nodes)
    assert found & gold
    with pytest.warns(UserWarning, match="read only in part"):
        again = await engine.aquery(rows[1]["question"])
    assert [(n.node_id, n.score) for n in again.source_nodes] == [(n.node_id, n.score) for n in nodes]
