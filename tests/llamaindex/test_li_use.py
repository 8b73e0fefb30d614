"""The postprocessor and the retriever in the places where LlamaIndex users put them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from li_helpers import FixedRetriever, RecordingLLM
from llama_index.core import SummaryIndex, VectorStoreIndex
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.evaluation import RetrieverEvaluator
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import LongContextReorder, SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import Document, TextNode
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever, RankedNode

OURS = ("gradrerank", "retrieval_source", "stages", "ranks", "shelf")


@pytest.fixture
def llm() -> RecordingLLM:
    return RecordingLLM(prompts=[])


@pytest.fixture
def postprocessor(reranker: GradReranker) -> GradRerankPostprocessor:
    return GradRerankPostprocessor(reranker=reranker, top_n=2)


@pytest.fixture
def index() -> VectorStoreIndex:
    nodes = [TextNode(text=text, id_=f"n{i}", metadata={"page": i}) for i, text in enumerate(DOCUMENTS)]
    return VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=4))


@pytest.fixture
def retriever(index: VectorStoreIndex, postprocessor: GradRerankPostprocessor) -> MultiSourceRetriever:
    sources = {"vectors": index.as_retriever(similarity_top_k=5), "shelf": FixedRetriever(*DOCUMENTS[:2])}
    return MultiSourceRetriever(sources, postprocessor=postprocessor)


def sentences(text: str) -> list[str]:
    return re.findall(r"[^.?!]+[.?!]?\s*", text)


def check(nodes: list[Any], llm: RecordingLLM, names: set[str]) -> None:
    """Two ranked nodes with their sources; every prompt holds their texts and nothing of ours."""
    assert len(nodes) == 2 and all(isinstance(n, RankedNode) for n in nodes)
    assert nodes[0].score >= nodes[1].score
    assert {name for n in nodes for name in n.gradrerank["sources"]} <= names
    assert any(all(n.text in prompt for n in nodes) for prompt in llm.prompts)
    assert not any(word in prompt for prompt in llm.prompts for word in OURS)


async def test_index_as_query_engine(index: Any, postprocessor: Any, llm: RecordingLLM) -> None:
    engine = index.as_query_engine(llm=llm, similarity_top_k=5, node_postprocessors=[postprocessor])
    response = engine.query(QUERY)
    assert str(response) == llm.answer
    check(response.source_nodes, llm, {"documents"})
    again = await engine.aquery(QUERY)
    assert again.source_nodes == response.source_nodes
    assert all(response.metadata[n.node_id] == {"page": int(n.node_id[1:])} for n in response.source_nodes)


async def test_retriever_query_engine(retriever: MultiSourceRetriever, llm: RecordingLLM) -> None:
    engine = RetrieverQueryEngine.from_args(retriever=retriever, llm=llm)
    response = engine.query(QUERY)
    check(response.source_nodes, llm, {"vectors", "shelf"})
    assert (await engine.aquery(QUERY)).source_nodes == response.source_nodes


async def test_merged_retriever_and_postprocessors(
    retriever: MultiSourceRetriever, postprocessor: GradRerankPostprocessor, llm: RecordingLLM
) -> None:
    expected = retriever.retrieve(QUERY)
    merged = MultiSourceRetriever(retriever.sources, postprocessor=None)
    others = [postprocessor, SimilarityPostprocessor(similarity_cutoff=-1e9), LongContextReorder()]
    engine = RetrieverQueryEngine.from_args(retriever=merged, llm=llm, node_postprocessors=others)
    found = sorted(engine.query(QUERY).source_nodes, key=lambda n: -n.score)
    check(found, llm, {"vectors", "shelf"})
    assert [(n.text, n.score, n.gradrerank) for n in found] == [(n.text, n.score, n.gradrerank) for n in expected]


async def test_streaming_queries(retriever: MultiSourceRetriever, llm: RecordingLLM) -> None:
    engine = RetrieverQueryEngine.from_args(retriever=retriever, llm=llm, streaming=True)
    response = engine.query(QUERY)
    assert "".join(response.response_gen) == llm.answer
    check(response.source_nodes, llm, {"vectors", "shelf"})
    synthesizer = get_response_synthesizer(llm=llm, streaming=True, use_async=True)
    engine = RetrieverQueryEngine(retriever, response_synthesizer=synthesizer)
    again = await engine.aquery(QUERY)
    assert "".join([token async for token in again.response_gen]) == llm.answer
    assert again.source_nodes == response.source_nodes


async def test_chat_engine(retriever: MultiSourceRetriever, postprocessor: Any, llm: RecordingLLM) -> None:
    def engine(**parts: Any) -> CondensePlusContextChatEngine:
        memory = ChatMemoryBuffer.from_defaults(token_limit=1000)
        return CondensePlusContextChatEngine.from_defaults(llm=llm, memory=memory, **parts)

    history = [ChatMessage(role="user", content="Hello"), ChatMessage(role="assistant", content="Hello!")]
    response = engine(retriever=retriever).chat(QUERY, chat_history=history)
    check(response.source_nodes, llm, {"vectors", "shelf"})
    merged = MultiSourceRetriever(retriever.sources, postprocessor=None)
    again = await engine(retriever=merged, node_postprocessors=[postprocessor]).achat(QUERY, chat_history=history)
    check(again.source_nodes, llm, {"vectors", "shelf"})
    streamed = engine(retriever=retriever).stream_chat(QUERY, chat_history=history)
    assert "".join(streamed.response_gen) == llm.answer
    check(streamed.source_nodes, llm, {"vectors", "shelf"})


def test_an_index_that_was_built_by_a_pipeline(postprocessor: Any, llm: RecordingLLM) -> None:
    # A rule of our own for sentences: the default one fetches its data with some releases of LlamaIndex.
    splitter = SentenceSplitter(chunk_size=64, chunk_overlap=0, chunking_tokenizer_fn=sentences)
    embedding = MockEmbedding(embed_dim=4)
    documents = [
        Document(
            text=" ".join(DOCUMENTS * 4),
            metadata={"file_name": "harbour.txt", "owner": "s3cret"},
            excluded_llm_metadata_keys=["owner"],
        )
    ]
    nodes = IngestionPipeline(transformations=[splitter, embedding]).run(documents=documents)
    assert len(nodes) > 3
    index = VectorStoreIndex(nodes, embed_model=embedding)
    engine = index.as_query_engine(llm=llm, similarity_top_k=4, node_postprocessors=[postprocessor])
    response = engine.query(QUERY)
    check(response.source_nodes, llm, {"documents"})
    hashes = {n.node_id: n.hash for n in nodes}
    assert all(n.node.hash == hashes[n.node_id] for n in response.source_nodes)
    assert not any("s3cret" in prompt for prompt in llm.prompts)


async def test_tools_for_agents(retriever: MultiSourceRetriever, llm: RecordingLLM) -> None:
    output = RetrieverTool.from_defaults(retriever, description="harbour").call(QUERY)
    assert all(n.text in output.content for n in retriever.retrieve(output.raw_input["input"]))
    assert not any(word in output.content for word in OURS)
    engine = RetrieverQueryEngine.from_args(retriever=retriever, llm=llm)
    output = await QueryEngineTool.from_defaults(engine, description="harbour").acall(QUERY)
    assert output.content == llm.answer


async def test_retriever_evaluator(retriever: MultiSourceRetriever, postprocessor: Any, index: Any) -> None:
    best = retriever.retrieve(QUERY)[0].node_id
    evaluator = RetrieverEvaluator.from_metric_names(["hit_rate", "mrr"], retriever=retriever)
    result = await evaluator.aevaluate(QUERY, expected_ids=[best])
    assert result.metric_vals_dict == {"hit_rate": 1.0, "mrr": 1.0}
    over_index = RetrieverEvaluator.from_metric_names(
        ["mrr"], retriever=index.as_retriever(similarity_top_k=5), node_postprocessors=[postprocessor]
    )
    found = await over_index.aevaluate(QUERY, expected_ids=["n0"])
    assert len(found.retrieved_ids) == 2 and math.isfinite(found.metric_vals_dict["mrr"])


def test_a_summary_index_is_a_source(reranker: GradReranker) -> None:
    sources = {"summary": SummaryIndex([TextNode(text=text) for text in DOCUMENTS]).as_retriever()}
    postprocessor = GradRerankPostprocessor(reranker=reranker)
    found = MultiSourceRetriever(sources, postprocessor=postprocessor).retrieve(QUERY)
    assert len(found) == len(DOCUMENTS) and found[0].gradrerank["scores"] == {"summary": None}
