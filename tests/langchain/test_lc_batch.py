"""``batch`` and ``abatch``: the same documents as one by one, the questions ranked together."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from lc_helpers import Recorder, broken, docs, source
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker
from langchain_gradrerank import GradRerankCompressor, MultiSourceRetriever

QUERIES = [QUERY, "Who wrote the book?", "Why?", "Where is the red house?"]


class Counting(GradReranker):
    """Notes how many queries come together."""

    together: list[int]

    def rerank_batch(self, queries: Any, sources: Any, **options: Any) -> Any:
        self.together.append(len(queries))
        return super().rerank_batch(queries, sources, **options)


@pytest.fixture
def counting() -> Counting:
    reranker = Counting(tiny(), select_sources=False)
    reranker.together = []
    return reranker


def retriever_of(reranker: GradReranker, **options: Any) -> MultiSourceRetriever:
    sources = {"a": source(docs(*DOCUMENTS[:3])), "b": source(docs(*DOCUMENTS[2:]))}
    return MultiSourceRetriever(
        sources=options.pop("sources", sources), compressor=GradRerankCompressor(reranker=reranker), **options
    )


def shown(found: list[Document]) -> list[tuple[str, Any]]:
    return [(d.page_content, pytest.approx(d.metadata["relevance_score"], abs=1e-5)) for d in found]


@pytest.mark.parametrize("form", ["batch", "abatch"])
async def test_batch_equals_one_by_one_and_ranks_together(counting: Counting, form: str) -> None:
    retriever = retriever_of(counting, top_n=3)
    if form == "batch":
        found = retriever.batch(QUERIES)
    else:
        found = await retriever.abatch(QUERIES)
    assert counting.together == [4]
    for query, documents in zip(QUERIES, found, strict=True):
        assert [(d.page_content, d.metadata["relevance_score"]) for d in documents] == shown(retriever.invoke(query))


@pytest.mark.parametrize("form", ["batch", "abatch"])
async def test_max_concurrency_limits_what_is_ranked_together(counting: Counting, form: str) -> None:
    retriever, config = retriever_of(counting), {"max_concurrency": 2}
    if form == "batch":
        retriever.batch(QUERIES, config)
    else:
        await retriever.abatch(QUERIES, config)
    assert counting.together == [2, 2]


@pytest.mark.parametrize("form", ["batch", "abatch"])
async def test_a_query_that_fails_stops_no_other_where_exceptions_are_returned(counting: Counting, form: str) -> None:
    retriever = retriever_of(counting)
    queries = [QUERY, " ", "Why?"]
    if form == "batch":
        found: list[Any] = retriever.batch(queries, return_exceptions=True)
    else:
        found = await retriever.abatch(queries, return_exceptions=True)
    assert isinstance(found[1], ValueError)
    assert len(found[0]) == len(found[2]) == 5
    with pytest.raises(ValueError, match="query must"):
        retriever.batch(queries) if form == "batch" else await retriever.abatch(queries)


def test_sources_that_all_fail_for_a_query_keep_nobody_waiting(counting: Counting) -> None:
    def only_for_why(query: str) -> list[Document]:
        if query == "Why?":
            return docs(*DOCUMENTS)
        raise ConnectionError("down")

    retriever = retriever_of(counting, sources={"a": only_for_why, "b": broken(ConnectionError("down"))})
    with pytest.warns(UserWarning, match="down"):
        found: list[Any] = retriever.batch([QUERY, "Why?"], return_exceptions=True)
    assert "all 2 sources failed" in str(found[0])
    assert len(found[1]) == 5


@pytest.mark.parametrize("form", ["batch", "abatch"])
async def test_every_input_is_a_run_with_its_sources_and_its_ranking(counting: Counting, form: str) -> None:
    recorder, retriever = Recorder(), retriever_of(counting)
    config: Any = {"callbacks": [recorder]}
    if form == "batch":
        retriever.batch(QUERIES, config)
    else:
        await retriever.abatch(QUERIES, config)
    runs = list(recorder.runs.values())
    assert all((run.starts, run.ends, run.errors) == (1, 1, []) for run in runs)
    for name in ("MultiSourceRetriever", "a", "b", "GradRerank"):
        assert sum(run.name == name for run in runs) == 4


def test_a_retriever_that_is_a_source_of_another_still_answers(counting: Counting) -> None:
    inner = retriever_of(counting)
    outer = MultiSourceRetriever(
        sources={"inner": inner, "more": source(docs("A kettle."))}, compressor=inner.compressor
    )
    assert [len(found) for found in outer.batch(QUERIES)] == [6] * 4


def test_batch_without_a_compressor_merges_only(counting: Counting) -> None:
    retriever = MultiSourceRetriever(sources={"a": source(docs(*DOCUMENTS))}, compressor=None)
    assert [[d.page_content for d in found] for found in retriever.batch(QUERIES)] == [DOCUMENTS] * 4
