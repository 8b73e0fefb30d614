"""Handlers of both kinds see one start and one end of every reranking, whatever happens in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from li_helpers import BrokenScorer, CallbackRecorder, EventRecorder, FixedRetriever, as_nodes
from llama_index.core.callbacks import CallbackManager, EventPayload
from llama_index.core.instrumentation import root_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever


async def run(call: str, postprocessor: GradRerankPostprocessor, nodes: list[Any]) -> list[Any]:
    """Rerank in one of four ways."""
    if call == "sync":
        return postprocessor.postprocess_nodes(nodes, query_str=QUERY)
    if call == "async":
        return await postprocessor.apostprocess_nodes(nodes, query_str=QUERY)
    retriever = MultiSourceRetriever({"a": FixedRetriever(*nodes)}, postprocessor=postprocessor)
    return retriever.retrieve(QUERY) if call == "retriever" else await retriever.aretrieve(QUERY)


CALLS = ["sync", "async", "retriever", "aretriever"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", ["ranked", "empty", "blank", "raises"])
async def test_C01_one_start_and_one_end(reranker: GradReranker, recorder: EventRecorder, call: str, case: str) -> None:
    callbacks = CallbackRecorder()
    texts = {"ranked": DOCUMENTS, "raises": DOCUMENTS, "empty": [], "blank": ["", " "]}[case]
    postprocessor = GradRerankPostprocessor(
        reranker=reranker,
        scorer=BrokenScorer() if case == "raises" else "gates",
        callback_manager=CallbackManager([callbacks]),
        top_n=2 if case == "ranked" else None,
    )
    nodes, found = as_nodes(*texts), []
    if case == "raises":
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            await run(call, postprocessor, nodes)
    else:
        found = await run(call, postprocessor, nodes)
    (start,), (end,) = recorder.named("ReRankStartEvent"), recorder.named("ReRankEndEvent")
    assert start.query.query_str == QUERY and start.nodes == nodes
    assert start.top_n == (2 if case == "ranked" else len(nodes)) and start.model_name == "LlamaForCausalLM"
    assert end.nodes == found and len(found) == (2 if case == "ranked" else 0)
    (begun,), (ended,) = callbacks.starts, callbacks.ends
    assert begun["id"] == ended["id"]
    assert begun[EventPayload.NODES] == nodes and begun[EventPayload.QUERY_STR] == QUERY
    assert begun[EventPayload.TOP_K] == start.top_n and begun[EventPayload.MODEL_NAME] == start.model_name
    if case == "raises":
        assert isinstance(ended[EventPayload.EXCEPTION], ZeroDivisionError)
    else:
        assert ended[EventPayload.NODES] == found
        (told,) = recorder.named("GradRerankEvent")
        assert [d.text for d in told.result] == [n.text for n in found]
        assert "result" not in told.model_dump()


async def test_C17_a_cancelled_reranking_ends_once(reranker: GradReranker, recorder: EventRecorder) -> None:
    callbacks = CallbackRecorder()
    postprocessor = GradRerankPostprocessor(reranker=reranker, callback_manager=CallbackManager([callbacks]))
    task = asyncio.create_task(postprocessor.apostprocess_nodes(as_nodes(*DOCUMENTS), query_str=QUERY))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(recorder.named("ReRankStartEvent")) == len(recorder.named("ReRankEndEvent")) == 1
    assert len(callbacks.starts) == len(callbacks.ends) == 1


def test_a_refused_query_starts_nothing(reranker: GradReranker, recorder: EventRecorder) -> None:
    with pytest.raises(ValueError):
        GradRerankPostprocessor(reranker=reranker).postprocess_nodes(as_nodes("x"))
    assert recorder.named("ReRankStartEvent") == []


def test_the_retriever_tells_its_own_callback_manager(reranker: GradReranker) -> None:
    callbacks = CallbackRecorder()
    postprocessor = GradRerankPostprocessor(reranker=reranker)
    sources = {"a": FixedRetriever(*DOCUMENTS)}
    manager = CallbackManager([callbacks])
    MultiSourceRetriever(sources, postprocessor=postprocessor, callback_manager=manager).retrieve(QUERY)
    assert len(callbacks.starts) == len(callbacks.ends) == 1


@pytest.mark.parametrize("call", CALLS)
async def test_spans_open_and_close(reranker: GradReranker, call: str) -> None:
    spans = SimpleSpanHandler()
    root_dispatcher.add_span_handler(spans)
    try:
        await run(call, GradRerankPostprocessor(reranker=reranker), as_nodes(*DOCUMENTS))
    finally:
        root_dispatcher.span_handlers.remove(spans)
    names = [span.id_.split("-")[0] for span in spans.completed_spans]
    expected = {
        "sync": "GradRerankPostprocessor._postprocess_nodes",
        "async": "GradRerankPostprocessor._apostprocess_nodes",
        "retriever": "GradRerankPostprocessor.rerank",
        "aretriever": "GradRerankPostprocessor.arerank",
    }[call]
    assert names.count(expected) == 1 and not spans.open_spans and not spans.dropped_spans
    if call == "retriever":
        assert names.count("MultiSourceRetriever._retrieve") == 1
        assert names.count("FixedRetriever.retrieve") == 1


async def test_a_handler_that_raises_does_not_break_ranking(reranker: GradReranker) -> None:
    class Raising(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            raise RuntimeError("handler")

    handler = Raising()
    root_dispatcher.add_event_handler(handler)
    try:
        found = await run("async", GradRerankPostprocessor(reranker=reranker), as_nodes(*DOCUMENTS))
    finally:
        root_dispatcher.event_handlers.remove(handler)
    assert len(found) == len(DOCUMENTS)
