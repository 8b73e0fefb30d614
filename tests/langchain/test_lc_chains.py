"""In chains, tools and traces; and once with the real model on real questions."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import bm25s
import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from lc_helpers import Raiser, Recorder, broken, docs, source
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker, SentenceEncoder
from gradrerank.errors import SourceWarning
from langchain_gradrerank import GradRerankCompressor, MultiSourceRetriever

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "federated_5src.jsonl"
PROMPT = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")


class Fixed(BaseRetriever):
    texts: list[str]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return docs(*self.texts)


def cited(documents: list[Document]) -> str:
    """Documents as the prompt shows them, each with its sources."""
    return "\n".join(f"[{', '.join(d.metadata['retrieval_source'])}] {d.page_content}" for d in documents)


@pytest.fixture
def retriever(reranker: GradReranker) -> MultiSourceRetriever:
    return MultiSourceRetriever(
        sources={"wiki": Fixed(texts=DOCUMENTS[:3]), "web": source(docs(*DOCUMENTS[2:]))},
        compressor=GradRerankCompressor(reranker=reranker, select_sources=False),
        top_n=2,
    )


# -- traces ----------------------------------------------------------------------------------------

TREE = {"wiki": "MultiSourceRetriever", "web": "MultiSourceRetriever", "GradRerank": "MultiSourceRetriever"}


def assert_trees(recorder: Recorder, n: int, root: str = "MultiSourceRetriever", above: str | None = None) -> None:
    """n times: the root, and below it one run for each source and one for the reranking."""
    recorder.assert_each_run_ended_once()
    assert sorted(run.name for run in recorder.runs.values()) == sorted([*TREE, root] * n)
    assert [recorder.parent_of(run) for run in recorder.named(root)] == [above] * n
    for name, parent in TREE.items():
        assert [recorder.parent_of(run) for run in recorder.named(name)] == [parent] * n
    parents = [run.parent for name in TREE for run in recorder.named(name)]
    assert {parents.count(run_id) for run_id, run in recorder.runs.items() if run.name == root} == {3}


def test_trace_of_invoke(retriever: MultiSourceRetriever) -> None:
    recorder = Recorder()
    found = retriever.invoke(QUERY, config={"callbacks": [recorder]})
    assert_trees(recorder, 1)
    assert {run.kind for run in recorder.named("wiki")} == {"retriever"}
    assert recorder.named("MultiSourceRetriever")[0].output == found
    assert [name for name, _ in recorder.events] == ["gradrerank_sources", "gradrerank_result"]
    assert recorder.events[0][1] == {"found": {"wiki": 3, "web": 3}, "blank": {}, "errors": {}}
    json.dumps(recorder.events)


async def test_trace_of_ainvoke(retriever: MultiSourceRetriever) -> None:
    recorder = Recorder()
    await retriever.ainvoke(QUERY, config={"callbacks": [recorder]})
    assert_trees(recorder, 1)
    assert [name for name, _ in recorder.events] == ["gradrerank_sources", "gradrerank_result"]


async def test_trace_of_batch(retriever: MultiSourceRetriever) -> None:
    recorder = Recorder()
    retriever.batch([QUERY, "Who wrote the book?"], config={"callbacks": [recorder]})
    assert_trees(recorder, 2)
    recorder = Recorder()
    await retriever.abatch([QUERY, "Who wrote the book?"], config={"callbacks": [recorder]})
    assert_trees(recorder, 2)


async def test_trace_through_contextual_compression(reranker: GradReranker, retriever: MultiSourceRetriever) -> None:
    compressing = ContextualCompressionRetriever(
        base_compressor=GradRerankCompressor(reranker=reranker),
        base_retriever=retriever.model_copy(update={"compressor": None}),
    )
    for run in (compressing.invoke, compressing.ainvoke):
        recorder = Recorder()
        result = run(QUERY, config={"callbacks": [recorder]})
        assert result if isinstance(result, list) else await result
        recorder.assert_each_run_ended_once()
        tree = {r.name: recorder.parent_of(r) for r in recorder.runs.values()}
        assert tree == {
            "ContextualCompressionRetriever": None,
            "MultiSourceRetriever": "ContextualCompressionRetriever",
            "wiki": "MultiSourceRetriever",
            "web": "MultiSourceRetriever",
            "GradRerank": "ContextualCompressionRetriever",
        }
        assert len(recorder.runs) == 5


async def test_trace_of_a_failing_source_and_of_a_failing_ranking(reranker: GradReranker) -> None:
    down = MultiSourceRetriever(
        sources={"wiki": Fixed(texts=DOCUMENTS), "crm": broken(ConnectionError("down"))},
        compressor=GradRerankCompressor(reranker=reranker, target="draft", llm=RunnableLambda(broken(KeyError("llm")))),
    )
    for sync in (True, False):
        recorder = Recorder()
        with pytest.warns(SourceWarning), pytest.raises(KeyError, match="llm"):
            if sync:
                down.invoke(QUERY, config={"callbacks": [recorder]})
            else:
                await down.ainvoke(QUERY, config={"callbacks": [recorder]})
        recorder.assert_each_run_ended_once()
        (crm,), (ranking,) = recorder.named("crm"), recorder.named("GradRerank")
        assert isinstance(crm.errors[0], ConnectionError)
        assert isinstance(ranking.errors[0], KeyError)
        assert recorder.events[0][1]["errors"] == {"crm": "ConnectionError: down"}


def test_a_source_that_hangs_keeps_no_loop_and_its_run_ends_when_it_does() -> None:
    release, recorder = threading.Event(), Recorder()

    class Hanging(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            release.wait(30)
            return []

    def hang(query: str) -> list[Document]:
        release.wait(30)
        return []

    retriever = MultiSourceRetriever(
        sources={"class": Hanging(), "function": hang, "web": source(docs("x"))}, compressor=None, timeout=0.3
    )
    start = time.perf_counter()
    with pytest.warns(SourceWarning) as caught:
        found = asyncio.run(retriever.ainvoke(QUERY, config={"callbacks": [recorder]}))
    assert time.perf_counter() - start < 10
    assert (len(found), len(caught)) == (1, 2)
    release.set()
    waited = time.perf_counter() + 10
    while time.perf_counter() < waited and any(run.ends + len(run.errors) == 0 for run in recorder.runs.values()):
        time.sleep(0.01)
    recorder.assert_each_run_ended_once()
    assert len(recorder.runs) == 4


async def test_a_raising_handler_does_not_break_ranking(retriever: MultiSourceRetriever) -> None:
    quiet = retriever.invoke(QUERY)
    assert retriever.invoke(QUERY, config={"callbacks": [Raiser()]}) == quiet
    assert await retriever.ainvoke(QUERY, config={"callbacks": [Raiser()]}) == quiet
    assert retriever.compressor is not None
    assert len(retriever.compressor.compress_documents(docs(*DOCUMENTS), QUERY, callbacks=[Raiser()])) == 5


# -- where users put it ----------------------------------------------------------------------------


async def test_lcel_chain(retriever: MultiSourceRetriever) -> None:
    prompts: list[str] = []
    chain: Any = (
        {"context": retriever | cited, "question": RunnablePassthrough()}
        | PROMPT
        | RunnableLambda(lambda prompt: prompts.append(prompt.to_string()) or prompt)
        | FakeListChatModel(responses=["At nine."])
        | StrOutputParser()
    )
    recorder = Recorder()
    assert chain.invoke(QUERY, config={"callbacks": [recorder]}) == "At nine."
    assert await chain.ainvoke(QUERY) == "At nine."
    assert prompts[0] == prompts[1] == f"Human: Context: {cited(retriever.invoke(QUERY))}\nQuestion: {QUERY}"
    recorder.assert_each_run_ended_once()
    assert {recorder.parent_of(run) for name in TREE for run in recorder.named(name)} == {"MultiSourceRetriever"}


async def test_retriever_tool(retriever: MultiSourceRetriever) -> None:
    template = PromptTemplate.from_template("{retrieval_source}: {page_content}")
    tool = create_retriever_tool(
        retriever, "search", "Searches.", document_prompt=template, response_format="content_and_artifact"
    )
    found = retriever.invoke(QUERY)
    expected = "\n\n".join(f"{d.metadata['retrieval_source']}: {d.page_content}" for d in found)
    assert tool.invoke({"query": QUERY}) == expected
    assert await tool.ainvoke({"query": QUERY}) == expected
    call = {"type": "tool_call", "id": "1", "name": "search", "args": {"query": QUERY}}
    assert tool.invoke(call).artifact == found


async def test_astream_events(retriever: MultiSourceRetriever) -> None:
    seen = [(event["event"], event["name"]) async for event in retriever.astream_events(QUERY, version="v2")]
    for expected in [
        ("on_retriever_start", "MultiSourceRetriever"),
        ("on_retriever_start", "wiki"),
        ("on_retriever_end", "wiki"),
        ("on_chain_start", "web"),
        ("on_chain_end", "web"),
        ("on_custom_event", "gradrerank_sources"),
        ("on_chain_start", "GradRerank"),
        ("on_custom_event", "gradrerank_result"),
        ("on_chain_end", "GradRerank"),
        ("on_retriever_end", "MultiSourceRetriever"),
    ]:
        assert seen.count(expected) == 1, expected


# -- the real model --------------------------------------------------------------------------------


class MiniLM(Embeddings):
    """The embedded sentence encoder in the shape of a LangChain embedding."""

    def __init__(self) -> None:
        self._encoder = SentenceEncoder()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(x) for x in row] for row in self._encoder.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def vector_store(documents: list[Document], embedding: Embeddings) -> BaseRetriever:
    store = InMemoryVectorStore(embedding)
    store.add_documents(documents)
    return store.as_retriever(search_kwargs={"k": 4})


class BM25(BaseRetriever):
    """BM25 over bm25s; its score goes with the document."""

    documents: list[Document]
    index: Any = None

    def model_post_init(self, context: Any) -> None:
        self.index = bm25s.BM25()
        texts = [d.page_content for d in self.documents]
        self.index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        tokens = bm25s.tokenize([query], show_progress=False)
        places, scores = self.index.retrieve(tokens, k=4, show_progress=False)
        return [
            self.documents[i].model_copy(update={"metadata": {**self.documents[i].metadata, "score": s}})
            for i, s in zip(places[0], scores[0], strict=True)
        ]


@pytest.mark.real_model
@pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA.name}, which is not part of the project")
async def test_end_to_end_on_the_embedded_model() -> None:
    """Three real retrievers over one question's neighbourhood, through a chain, sync and async."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()[:6]]
    by_source: dict[str, list[Document]] = {}
    for row in rows:
        for d in row["documents"]:
            document = Document(
                page_content=d["text"][:600],
                id=f"{row['id']}/{d['id']}",
                metadata={"title": d["title"], "gold": d["gold"]},
            )
            by_source.setdefault(d["source"], []).append(document)
    medicine, offices = by_source["pubmed"], by_source["gov-websites"]
    retriever = MultiSourceRetriever(
        sources={
            "wikipedia": vector_store(by_source["wikipedia"], MiniLM()),
            "gov-websites": BM25(documents=offices),
            "pubmed": RunnableLambda(
                lambda query: [d for d in medicine if set(query.split()) & set(d.page_content.split())][:4]
            ),
        },
        compressor=GradRerankCompressor(),
        top_n=3,
    )
    prompts: list[str] = []
    chain: Any = (
        {"context": retriever | cited, "question": RunnablePassthrough()}
        | PROMPT
        | RunnableLambda(lambda prompt: prompts.append(prompt.to_string()) or prompt)
        | FakeListChatModel(responses=["An answer."])
        | StrOutputParser()
    )
    for row in rows[:2]:
        assert chain.invoke(row["question"]) == "An answer."
        assert await chain.ainvoke(row["question"]) == "An answer."
        assert prompts[-1] == prompts[-2]
        found = retriever.invoke(row["question"])
        assert 1 <= len(found) <= 3
        for document in found:
            names = document.metadata["retrieval_source"]
            assert set(names) <= {"wikipedia", "gov-websites", "pubmed"}
            assert f"[{', '.join(names)}] {document.page_content}" in prompts[-1]
        scores = [d.metadata["relevance_score"] for d in found]
        assert scores == sorted(scores, reverse=True)
        assert found[0].metadata["gold"]  # wikipedia knows the answers to both, and its gold document leads
