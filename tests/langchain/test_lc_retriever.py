"""The retriever: sources asked together, failures, ranking together, copies and dumps."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
import time
import warnings
from typing import Any

import pytest
import torch
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from lc_helpers import Recorder, TextScorer, broken, docs, source
from pydantic import ValidationError
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document as CoreDocument
from gradrerank import GradReranker
from gradrerank.errors import AllSourcesFailedError, InvalidArgumentError, InvalidTypeError, SourceWarning
from langchain_gradrerank import GradRerankCompressor, MultiSourceRetriever


class Fixed(BaseRetriever):
    """A retriever without async code of its own."""

    texts: list[str]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return docs(*self.texts)


@pytest.fixture
def compressor(reranker: GradReranker) -> GradRerankCompressor:
    return GradRerankCompressor(reranker=reranker, select_sources=False)


SOURCES: dict[str, Any] = {
    "wiki": Fixed(texts=DOCUMENTS[:3]),
    "web": RunnableLambda(lambda query: docs(*DOCUMENTS[2:])),
    "crm": source(docs(DOCUMENTS[4], DOCUMENTS[0])),
}


def both(retriever: MultiSourceRetriever, query: Any = QUERY, **options: Any) -> list[Document]:
    """Retrieve in sync and in async, and see that both say the same."""
    found = retriever.invoke(query, **options)
    assert asyncio.run(retriever.ainvoke(query, **options)) == found
    return found


def record(document: Document) -> dict[str, Any]:
    return document.metadata["gradrerank"]


class TestStandard(RetrieversIntegrationTests):
    """The tests that LangChain has for every retriever, as they are."""

    @property
    def retriever_constructor(self) -> type[MultiSourceRetriever]:
        return MultiSourceRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"sources": SOURCES, "compressor": GradRerankCompressor(model=tiny(), select_sources=False)}

    @property
    def retriever_query_example(self) -> str:
        return QUERY

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


class TestStandardWithoutCompressor(TestStandard):
    """The same for the merged pool."""

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"sources": SOURCES, "compressor": None}


# -- what comes back -------------------------------------------------------------------------------


def test_the_ranking_is_that_of_the_core(compressor: GradRerankCompressor, reranker: GradReranker) -> None:
    found = both(MultiSourceRetriever(sources=SOURCES, compressor=compressor))
    core = {
        "wiki": [CoreDocument(t) for t in DOCUMENTS[:3]],
        "web": [CoreDocument(t) for t in DOCUMENTS[2:]],
        "crm": [CoreDocument(DOCUMENTS[4]), CoreDocument(DOCUMENTS[0])],
    }
    expected = reranker.rerank(QUERY, core, select_sources=False)
    assert [d.page_content for d in found] == [d.text for d in expected]
    assert [d.metadata["relevance_score"] for d in found] == [d.score for d in expected]
    assert [record(d)["ranks"] for d in found] == [{n: p.rank for n, p in d.sources.items()} for d in expected]


def test_every_document_lists_all_of_its_sources(compressor: GradRerankCompressor) -> None:
    for retriever_compressor in (compressor, None):
        found = both(MultiSourceRetriever(sources=SOURCES, compressor=retriever_compressor))
        assert {d.page_content: d.metadata["retrieval_source"] for d in found} == {
            DOCUMENTS[0]: ["wiki", "crm"],
            DOCUMENTS[1]: ["wiki"],
            DOCUMENTS[2]: ["web", "wiki"],
            DOCUMENTS[3]: ["web"],
            DOCUMENTS[4]: ["crm", "web"],
        }
        assert all(record(d)["sources"] == d.metadata["retrieval_source"] for d in found)


def test_without_compressor_the_order_is_fused_retrieval_order() -> None:
    retriever = MultiSourceRetriever(
        sources={"a": source(docs("x", "y", "z")), "b": source(docs("z", "y"))}, compressor=None
    )
    found = both(retriever)
    assert [d.page_content for d in found] == ["z", "y", "x"]
    assert all("relevance_score" not in d.metadata for d in found)
    assert record(found[1]) == {
        "sources": ["a", "b"],
        "ranks": {"a": 2, "b": 2},
        "scores": {"a": None, "b": None},
        "ids": {"a": "d1", "b": "d1"},
        "metadata": {"b": {}},
        "stages": {},
    }


def test_a_merged_pool_ranked_later_is_ranked_the_same(compressor: GradRerankCompressor) -> None:
    """MultiSourceRetriever(compressor=None) inside a ContextualCompressionRetriever loses nothing."""
    at_once = MultiSourceRetriever(sources=SOURCES, compressor=compressor)
    later = ContextualCompressionRetriever(
        base_compressor=compressor, base_retriever=MultiSourceRetriever(sources=SOURCES, compressor=None)
    )
    first, second = at_once.invoke(QUERY), later.invoke(QUERY)
    assert [d.page_content for d in first] == [d.page_content for d in second]
    for one, other in zip(first, second, strict=True):
        assert one.id == other.id
        assert one.metadata["retrieval_source"] == other.metadata["retrieval_source"]
        assert record(one) == record(other)


def test_the_choice_of_sources_is_made(reranker: GradReranker) -> None:
    retriever = MultiSourceRetriever(
        sources={"good": source(docs("The ferry leaves the harbour.")), "bad": source(docs("zzzz qqqq zzzz"))},
        compressor=GradRerankCompressor(reranker=reranker, max_sources=1),
    )
    assert [d.metadata["retrieval_source"] for d in both(retriever)] == [["good"]]


def test_an_ensemble_is_a_source_like_any_other(compressor: GradRerankCompressor) -> None:
    ensemble = EnsembleRetriever(retrievers=[Fixed(texts=DOCUMENTS[:2]), Fixed(texts=DOCUMENTS[1:3])])
    retriever = MultiSourceRetriever(sources={"ensemble": ensemble, "web": SOURCES["web"]}, compressor=compressor)
    assert {d.metadata["retrieval_source"][-1] for d in both(retriever)} == {"ensemble", "web"}


def test_retrievers_nest(compressor: GradRerankCompressor) -> None:
    inner = MultiSourceRetriever(sources=SOURCES, compressor=compressor)
    outer = MultiSourceRetriever(sources={"all": inner, "more": source(docs("More."))}, compressor=compressor)
    found = both(outer)
    assert {tuple(d.metadata["retrieval_source"]) for d in found} == {("all",), ("more",)}
    json.dumps([d.metadata for d in found])


def test_default_compressor_is_not_loaded_before_it_is_needed() -> None:
    start = time.perf_counter()
    retriever = MultiSourceRetriever(sources=SOURCES)
    assert isinstance(retriever.compressor, GradRerankCompressor)
    assert not retriever.compressor._holder().loaded
    assert time.perf_counter() - start < 1


# -- cases -----------------------------------------------------------------------------------------


def test_C01_empty_sources(reranker: GradReranker) -> None:
    scorer = TextScorer()
    counting = GradRerankCompressor(reranker=reranker, scorer=scorer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert both(MultiSourceRetriever(sources={"a": source([]), "b": source([])}, compressor=counting)) == []
        assert both(MultiSourceRetriever(sources={"a": source([])}, compressor=None)) == []
    assert scorer.calls == 0


def test_C01_an_empty_source_changes_nothing_in_the_ranking_of_a_full_one(reranker: GradReranker) -> None:
    compressor = GradRerankCompressor(reranker=reranker)
    alone = both(MultiSourceRetriever(sources={"a": source(docs(*DOCUMENTS))}, compressor=compressor))
    beside = both(MultiSourceRetriever(sources={"a": source(docs(*DOCUMENTS)), "b": source([])}, compressor=compressor))
    assert alone == beside


@pytest.mark.parametrize("merged", [True, False])
def test_C02_blank_documents_are_left_out_and_ranks_still_count_them(merged: bool, compressor: Any) -> None:
    retriever = MultiSourceRetriever(
        sources={"a": source(docs("", " ", "real", "\u200b"))}, compressor=None if merged else compressor
    )
    (found,) = both(retriever)
    assert (found.id, record(found)["ranks"]) == ("d2", {"a": 3})
    recorder = Recorder()
    retriever.invoke(QUERY, config={"callbacks": [recorder]})
    assert recorder.events[0] == ("gradrerank_sources", {"found": {"a": 4}, "blank": {"a": 3}, "errors": {}})


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "2"])
def test_C04_top_n_is_refused_at_construction_and_at_the_call(compressor: Any, bad: Any) -> None:
    message = rf"top_n must be a whole number >= 1 or None, got {bad!r}"
    with pytest.raises(ValidationError, match=message):
        MultiSourceRetriever(sources=SOURCES, top_n=bad)
    retriever = MultiSourceRetriever(sources=SOURCES, compressor=compressor)
    with pytest.raises(InvalidArgumentError, match=message):
        retriever.invoke(QUERY, top_n=bad)
    with pytest.raises(InvalidArgumentError, match=message):
        asyncio.run(retriever.ainvoke(QUERY, top_n=bad))


@pytest.mark.parametrize("merged", [True, False])
def test_C04_top_n_of_the_call_goes_before_that_of_the_object(reranker: GradReranker, merged: bool) -> None:
    compressor = None if merged else GradRerankCompressor(reranker=reranker, select_sources=False, top_n=4)
    retriever = MultiSourceRetriever(sources=SOURCES, compressor=compressor, top_n=2)
    assert [len(both(retriever, **o)) for o in ({}, {"top_n": 1}, {"top_n": 50}, {"top_n": None})] == [2, 1, 5, 5]
    assert len(both(MultiSourceRetriever(sources=SOURCES, compressor=compressor))) == (5 if merged else 4)


def test_an_unknown_argument_of_the_call_is_refused(compressor: GradRerankCompressor) -> None:
    with pytest.raises(TypeError, match="topn"):
        MultiSourceRetriever(sources=SOURCES, compressor=compressor).invoke(QUERY, topn=3)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["plain"], r"sources\['bad'\]\[0\] is str, expected Document"),
        ("plain", r"sources\['bad'\] must be a list of Document, best first, got str"),
        (None, r"sources\['bad'\] must be a list of Document, best first, got NoneType"),
    ],
)
def test_C05_what_a_source_gives_is_checked_under_the_same_policy(answer: Any, message: str) -> None:
    sources = {"bad": RunnableLambda(lambda query: answer), "good": source(docs("x"))}
    with pytest.warns(SourceWarning, match=message):
        assert len(MultiSourceRetriever(sources=sources, compressor=None).invoke(QUERY)) == 1
    with pytest.raises(InvalidTypeError, match=message):
        MultiSourceRetriever(sources=sources, compressor=None, on_source_error="raise").invoke(QUERY)


def test_C05_sources_may_give_tuples_and_generators() -> None:
    sources = {"tuple": lambda query: tuple(docs("x")), "list": lambda query: docs("y")}
    assert len(both(MultiSourceRetriever(sources=sources, compressor=None))) == 2


@pytest.mark.parametrize("query", ["", "  ", "\u200b"])
@pytest.mark.parametrize("merged", [True, False])
def test_C06_a_blank_query_asks_no_source(compressor: GradRerankCompressor, query: str, merged: bool) -> None:
    asked: list[str] = []
    sources = {"a": lambda q: asked.append(q) or docs("x")}
    retriever = MultiSourceRetriever(sources=sources, compressor=None if merged else compressor)
    with pytest.raises(InvalidArgumentError, match="query must hold some text"):
        retriever.invoke(query)
    with pytest.raises(InvalidArgumentError, match="query must hold some text"):
        asyncio.run(retriever.ainvoke(query))
    assert asked == []


@pytest.mark.parametrize("merged", [True, False])
def test_C08_one_identity_rule_everywhere(compressor: GradRerankCompressor, merged: bool) -> None:
    text = "Trams run hourly."
    sources = {
        "wiki": source(
            [
                Document(page_content=text, id="w1", metadata={"file": "a"}),
                Document(page_content="Not the same.", id="n9", metadata={"file": "c"}),
            ]
        ),
        "notes": source([Document(page_content=f" {text}\n", id="n9", metadata={"file": "b"})]),
    }
    found = both(MultiSourceRetriever(sources=sources, compressor=None if merged else compressor))
    assert sorted(d.page_content.strip() for d in found) == ["Not the same.", text]
    # Of equal ranks the first source by name leads: "notes".
    tram = next(d for d in found if d.metadata["file"] == "b")
    assert tram.metadata["retrieval_source"] == ["notes", "wiki"]
    assert record(tram)["ids"] == {"notes": "n9", "wiki": "w1"}
    assert record(tram)["metadata"] == {"wiki": {"file": "a"}}


@pytest.mark.parametrize("merged", [True, False])
def test_C10_what_sources_hold_is_never_changed(compressor: GradRerankCompressor, merged: bool) -> None:
    held = docs(*DOCUMENTS, nested={"deep": [1]})
    before = copy.deepcopy(held)
    retriever = MultiSourceRetriever(
        sources={"a": lambda q: held, "b": lambda q: held}, compressor=None if merged else compressor
    )
    for document in both(retriever):
        document.metadata["nested"]["deep"].append(2)
        document.metadata["x"] = {}
    assert held == before


def test_C11_scores_of_every_source_are_kept_and_source_order_does_not_matter(compressor: Any) -> None:
    sources = {
        "bm25": source([Document(page_content=t, metadata={"score": s}) for t, s in (("a", 14.2), ("b", 3.0))]),
        "dense": source([Document(page_content=t, metadata={"score": s}) for t, s in (("a", 0.61), ("c", -0.3))]),
        "plain": source(docs("d", "a")),
    }
    first = both(MultiSourceRetriever(sources=sources, compressor=compressor))
    second = both(MultiSourceRetriever(sources=dict(reversed(sources.items())), compressor=compressor))
    assert first == second
    scores = {d.page_content: record(d)["scores"] for d in first}
    assert scores == {
        "a": {"bm25": 14.2, "dense": 0.61, "plain": None},
        "b": {"bm25": 3.0},
        "c": {"dense": -0.3},
        "d": {"plain": None},
    }


# -- failing sources -------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [True, False])
def test_C13_one_dead_source_is_warned_about_and_left_out(compressor: Any, merged: bool) -> None:
    sources = {"wiki": SOURCES["wiki"], "crm": broken(ConnectionError("down"))}
    retriever = MultiSourceRetriever(sources=sources, compressor=None if merged else compressor)
    with pytest.warns(SourceWarning, match="source 'crm' failed and was left out: ConnectionError: down"):
        found = retriever.invoke(QUERY)
    with pytest.warns(SourceWarning, match="'crm'"):
        assert asyncio.run(retriever.ainvoke(QUERY)) == found
    assert {d.metadata["retrieval_source"][0] for d in found} == {"wiki"}


def test_C13_ignore_and_raise(compressor: GradRerankCompressor) -> None:
    sources = {"wiki": SOURCES["wiki"], "crm": broken(ConnectionError("down"))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert both(MultiSourceRetriever(sources=sources, compressor=compressor, on_source_error="ignore"))
    retriever = MultiSourceRetriever(sources=sources, compressor=compressor, on_source_error="raise")
    with pytest.raises(ConnectionError, match="down") as caught:
        retriever.invoke(QUERY)
    assert caught.value.__notes__ == ["raised by source 'crm'"]
    with pytest.raises(ConnectionError, match="down"):
        asyncio.run(retriever.ainvoke(QUERY))


@pytest.mark.parametrize("policy", ["warn", "ignore"])
def test_C13_all_failed_is_always_an_error(policy: Any) -> None:
    sources = {"wiki": broken(KeyError("index")), "crm": broken(ConnectionError("down"))}
    retriever = MultiSourceRetriever(sources=sources, compressor=None, on_source_error=policy)
    message = r"all 2 sources failed: 'wiki': KeyError: 'index'; 'crm': ConnectionError: down"
    with pytest.raises(AllSourcesFailedError, match=message):
        retriever.invoke(QUERY)
    with pytest.raises(AllSourcesFailedError, match=message):
        asyncio.run(retriever.ainvoke(QUERY))


@pytest.mark.parametrize("policy", ["warn", "ignore", "raise"])
def test_C13_keyboard_interrupt_is_no_error_of_a_source(policy: Any) -> None:
    sources = {"wiki": SOURCES["wiki"], "crm": broken(KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        MultiSourceRetriever(sources=sources, compressor=None, on_source_error=policy).invoke(QUERY)


async def test_C13_cancellation_reaches_the_sources(compressor: GradRerankCompressor) -> None:
    cancelled: list[str] = []

    async def slow(query: str) -> list[Document]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(query)
            raise
        return []

    retriever = MultiSourceRetriever(sources={"a": slow, "b": slow}, compressor=compressor)
    task = asyncio.create_task(retriever.ainvoke(QUERY))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [QUERY, QUERY]


def test_sources_are_asked_together_and_a_slow_one_is_left_behind() -> None:
    release, barrier = threading.Event(), threading.Barrier(2)

    def meet(query: str) -> list[Document]:
        barrier.wait(10)
        return docs(query)

    def slow(query: str) -> list[Document]:
        release.wait(30)
        return []

    async def aslow(query: str) -> list[Document]:
        await asyncio.sleep(30)
        return []

    start = time.perf_counter()
    retriever = MultiSourceRetriever(sources={"slow": slow, "a": meet, "b": meet}, compressor=None, timeout=0.5)
    with pytest.warns(SourceWarning, match="'slow' gave no answer within 0.5 s"):
        assert len(retriever.invoke(QUERY)) == 1
    release.set()
    retriever = MultiSourceRetriever(sources={"slow": aslow, "a": meet, "b": meet}, compressor=None, timeout=0.5)
    with pytest.warns(SourceWarning, match="'slow' gave no answer within 0.5 s"):
        assert len(asyncio.run(retriever.ainvoke(QUERY))) == 1
    assert time.perf_counter() - start < 10


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5], "weights has 1 numbers for 2 sources: a, b"),
        ([0, 0], "must not all be 0"),
        ([-1, 2], r"weights\['a'\] must be a finite number >= 0"),
        ([float("nan"), 1], r"weights\['a'\]"),
        ({"wikii": 1}, "weights names 'wikii', which is no source; sources are a, b"),
        (3, "weights must map source names"),
    ],
)
def test_C15_weights_that_cannot_be_used_are_refused(weights: Any, message: str) -> None:
    sources = {"a": source([]), "b": source([])}
    with pytest.raises(ValidationError, match=message):
        MultiSourceRetriever(sources=sources, weights=weights)
    if isinstance(weights, dict):
        with pytest.raises(ValidationError, match=message):
            MultiSourceRetriever(sources=sources, compressor=GradRerankCompressor(weights=weights))


def test_C15_weights_are_given_once() -> None:
    with pytest.raises(ValidationError, match="weights are given to the retriever and to its compressor"):
        MultiSourceRetriever(sources=SOURCES, weights=[1, 1, 2], compressor=GradRerankCompressor(weights={"web": 1}))


@pytest.mark.parametrize("merged", [True, False])
def test_C15_weights_count_in_both_modes(reranker: GradReranker, merged: bool) -> None:
    scorer = TextScorer(lambda text: 0.01)
    compressor = None if merged else GradRerankCompressor(reranker=reranker, scorer=scorer, select_sources=False)

    def ranked(weights: Any) -> list[str]:
        sources = {"a": source(docs("x")), "b": source(docs("y"))}
        found = both(MultiSourceRetriever(sources=sources, compressor=compressor, weights=weights))
        return [d.page_content for d in found]

    assert ranked([0.9, 0.1]) == ranked([9, 1]) == ranked({"a": 2, "b": 1}) == ["x", "y"]
    assert ranked([0.1, 0.9]) == ["y", "x"]
    assert ranked([1, 0]) == ["x"]


def test_C15_a_source_that_failed_may_have_a_weight(compressor: GradRerankCompressor) -> None:
    sources = {"a": source(docs("x")), "b": broken(ConnectionError("down"))}
    retriever = MultiSourceRetriever(sources=sources, compressor=compressor, weights=[1, 2], on_source_error="ignore")
    assert len(both(retriever)) == 1


# -- construction, copies, dumps -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": {}}, "sources must name at least one retriever"),
        ({"sources": [source([])]}, "sources must map names to retrievers"),
        ({"sources": {" ": source([])}}, "the name of a source must be a str"),
        ({"sources": {"a": "url"}}, r"sources\['a'\] must be a retriever, another runnable or a function"),
        ({"sources": {"a": Fixed}}, r"sources\['a'\] must be a retriever"),
        ({"timeout": 0}, "timeout must be seconds above 0"),
        ({"timeout": True}, "timeout"),
        ({"on_source_error": "warm"}, "did you mean 'warn'"),
        ({"compressor": "gates"}, "compressor"),
        ({"topn": 1}, "topn"),
    ],
)
def test_validation_names_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MultiSourceRetriever(**{"sources": SOURCES, **fields})


@pytest.mark.parametrize("merged", [True, False])
def test_C20_deepcopy_and_pickle(tiny_folder: str, merged: bool) -> None:
    compressor = None if merged else GradRerankCompressor(model=tiny_folder, select_sources=False)
    sources = {"a": Fixed(texts=DOCUMENTS[:3]), "b": Fixed(texts=DOCUMENTS[2:])}
    retriever = MultiSourceRetriever(sources=sources, compressor=compressor, top_n=3, weights=[1, 2])
    found = both(retriever)
    twin = copy.deepcopy(retriever)
    assert twin.sources["a"] is retriever.sources["a"]
    assert both(twin) == found
    pickled = pickle.dumps(retriever)
    assert len(pickled) < 10_000
    assert both(pickle.loads(pickled)) == found


def test_C20_deepcopy_of_sources_that_cannot_be_copied(compressor: GradRerankCompressor) -> None:
    class Client:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, query: str) -> list[Document]:
            with self.lock:
                return docs("x")

    retriever = MultiSourceRetriever(sources={"a": RunnableLambda(Client().__call__)}, compressor=compressor)
    assert both(copy.deepcopy(retriever)) == both(retriever)


def test_C20_dumps_and_repr_hold_configuration_only(compressor: GradRerankCompressor) -> None:
    retriever = MultiSourceRetriever(
        sources={"a": Fixed(texts=["sk-secret"]), "b": source([])}, compressor=compressor, top_n=3, timeout=2
    )
    dump = retriever.model_dump()
    assert json.loads(retriever.model_dump_json()) == dump
    assert dump["sources"]["a"] == "<Fixed>"
    assert (dump["top_n"], dump["timeout"], dump["compressor"]["reranker"]) == (3, 2.0, "<GradReranker>")
    assert "sk-secret" not in json.dumps(dump) + repr(retriever)
    assert repr(retriever) == (
        "MultiSourceRetriever(sources=['a', 'b'], compressor=GradRerankCompressor(reranker=<GradReranker>, "
        "select_sources=False), top_n=3, timeout=2.0)"
    )


# -- async and threads -----------------------------------------------------------------------------


async def test_C17_the_loop_ticks_while_sources_and_reranking_block(reranker: GradReranker) -> None:
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.01)
            gaps.append(time.perf_counter() - start)

    def slow(query: str) -> list[Document]:
        time.sleep(0.2)
        return docs("x", "y")

    compressor = GradRerankCompressor(reranker=reranker, scorer=TextScorer(seconds=0.3))
    retriever = MultiSourceRetriever(sources={"a": slow, "b": slow}, compressor=compressor)
    ticker = asyncio.create_task(tick())
    assert len(await retriever.ainvoke(QUERY)) == 2
    ticker.cancel()
    assert len(gaps) > 20
    assert max(gaps) < 0.1


async def test_C17_C18_twenty_concurrent_calls_equal_twenty_sequential_ones(compressor: GradRerankCompressor) -> None:
    retriever = MultiSourceRetriever(sources=SOURCES, compressor=compressor)
    queries = [f"{QUERY} {'And then? ' * i}" for i in range(20)]
    sequential = [retriever.invoke(query) for query in queries]
    assert list(await asyncio.gather(*(retriever.ainvoke(query) for query in queries))) == sequential
    # Questions that are ranked together are padded to one length: equal up to rounding.
    for batch in (retriever.batch(queries, config={"max_concurrency": 8}), await retriever.abatch(queries)):
        for found, alone in zip(batch, sequential, strict=True):
            assert [d.page_content for d in found] == [d.page_content for d in alone]
            scores = [d.metadata["relevance_score"] for d in found]
            assert scores == pytest.approx([d.metadata["relevance_score"] for d in alone], abs=1e-5)


async def test_C17_sync_inside_a_running_loop(compressor: GradRerankCompressor) -> None:
    assert len(MultiSourceRetriever(sources=SOURCES, compressor=compressor).invoke(QUERY)) == 5


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_C19_C28_the_mode_of_the_caller_makes_no_difference(compressor: Any, guard: Any) -> None:
    retriever = MultiSourceRetriever(sources=SOURCES, compressor=compressor)
    free = both(retriever)
    with guard():
        assert both(retriever) == free
