"""Event loops, threads and grad modes around the postprocessor."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from li_helpers import BrokenScorer, FixedRetriever, LengthScorer, RecordingLLM, as_nodes
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker
from gradrerank.scorers import Scores, ScoringJob
from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever


class SlowScorer(LengthScorer):
    name = "slow"

    def score(self, job: ScoringJob) -> Scores:
        time.sleep(0.3)
        return super().score(job)


async def longest_gap(work: Any) -> float:
    """The longest time between two ticks of 10 ms while something is awaited."""
    ticks = [time.monotonic()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(time.monotonic())

    ticker = asyncio.create_task(tick())
    await work
    ticker.cancel()
    assert len(ticks) > 15
    return max(b - a for a, b in zip(ticks, ticks[1:], strict=False))


async def test_C17_the_loop_goes_on_while_nodes_are_ranked(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(reranker=reranker, scorer=SlowScorer())
    assert await longest_gap(postprocessor.apostprocess_nodes(as_nodes("a", "bb"), query_str="q")) < 0.1
    retriever = MultiSourceRetriever({"a": FixedRetriever("a", "bb")}, postprocessor=postprocessor)
    assert await longest_gap(retriever.aretrieve("q")) < 0.1


async def test_C17_the_loop_goes_on_while_a_model_is_loaded_and_a_draft_is_written(tmp_path: Any) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    class SlowLLM(RecordingLLM):
        async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0.2)
            return self.complete(prompt, formatted=formatted, **kwargs)

    model, tokenizer = tiny("llama")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    postprocessor = GradRerankPostprocessor(model=str(tmp_path), target="draft", llm=SlowLLM(prompts=[]))
    assert await longest_gap(postprocessor.apostprocess_nodes(as_nodes(*DOCUMENTS), query_str=QUERY)) < 0.5
    assert loops == [asyncio.get_running_loop()]  # clients of an LLM belong to the loop of the caller


async def test_C17_the_sync_method_works_inside_a_running_loop(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(reranker=reranker)
    retriever = MultiSourceRetriever({"a": FixedRetriever(*DOCUMENTS)}, postprocessor=postprocessor)
    found = postprocessor.postprocess_nodes(as_nodes(*DOCUMENTS), query_str=QUERY)
    assert [n.score for n in retriever.retrieve(QUERY)] == [n.score for n in found]


def test_C17_one_object_serves_several_loops(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(reranker=reranker)
    retriever = MultiSourceRetriever({"a": FixedRetriever(*DOCUMENTS)}, postprocessor=postprocessor)
    first, second = (asyncio.run(retriever.aretrieve(QUERY)) for _ in range(2))
    assert first == second


async def test_C17_twenty_concurrent_calls_give_what_twenty_calls_in_a_row_give(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(reranker=reranker)
    queries = [f"{QUERY} {'And the tram? ' * (i % 5)}{i}" for i in range(20)]
    nodes = as_nodes(*DOCUMENTS)
    expected = [postprocessor.postprocess_nodes(nodes, query_str=q) for q in queries]
    found = await asyncio.gather(*(postprocessor.apostprocess_nodes(nodes, query_str=q) for q in queries))
    assert found == expected


async def test_C17_a_cancellation_returns_at_once(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(reranker=reranker, scorer=SlowScorer())
    task = asyncio.create_task(postprocessor.apostprocess_nodes(as_nodes("a", "bb"), query_str="q"))
    await asyncio.sleep(0.05)
    begin = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begin < 0.2


async def test_C17_a_cancellation_reaches_the_llm_and_frees_the_thread_that_waits_for_it(
    reranker: GradReranker,
) -> None:
    cancelled: list[str] = []

    class Hanging(RecordingLLM):
        async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(prompt)
                raise

    hanging = GradRerankPostprocessor(reranker=reranker, target="draft", llm=Hanging())
    for _ in range(3):  # more than may compute at a time
        task = asyncio.create_task(hanging.apostprocess_nodes(as_nodes(*DOCUMENTS), query_str=QUERY))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.05)
    assert len(cancelled) == 3
    plain = GradRerankPostprocessor(reranker=reranker)
    assert len(await asyncio.wait_for(plain.apostprocess_nodes(as_nodes("a", "b"), query_str="q"), 5)) == 2


def test_C18_sixteen_threads_get_what_one_gets() -> None:
    model, tokenizer = tiny("llama")
    postprocessor = GradRerankPostprocessor(model=(model, tokenizer), max_document_tokens=12)
    jobs = [(f"{QUERY} {i}", as_nodes(*(d * (1 + i % 3) for d in DOCUMENTS))) for i in range(32)]

    def run(job: Any) -> Any:
        tokenizer(job[0] * 3, truncation=True, max_length=5)  # the caller's own use of the tokenizer
        return postprocessor.postprocess_nodes(job[1], query_str=job[0])

    with pytest.warns(UserWarning, match="read only in part"):
        expected = [run(job) for job in jobs]
        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(run, jobs)) == expected


async def test_C19_C28_the_grad_mode_of_the_caller_changes_nothing(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(reranker=reranker)
    nodes = as_nodes(*DOCUMENTS)
    expected = postprocessor.postprocess_nodes(nodes, query_str=QUERY)
    for mode in (torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)):
        fresh = GradRerankPostprocessor(model=tiny("llama"))
        with mode():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            assert postprocessor.postprocess_nodes(nodes, query_str=QUERY) == expected
            assert await postprocessor.apostprocess_nodes(nodes, query_str=QUERY) == expected
            assert await asyncio.to_thread(postprocessor.postprocess_nodes, nodes, query_str=QUERY) == expected
            first = fresh.postprocess_nodes(nodes, query_str=QUERY)
            with pytest.raises(ZeroDivisionError):
                GradRerankPostprocessor(reranker=reranker, scorer=BrokenScorer()).postprocess_nodes(
                    nodes, query_str=QUERY
                )
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert fresh.postprocess_nodes(nodes, query_str=QUERY) == first
        # Another model object reads the documents in other batches.
        assert [n.node_id for n in first] == [n.node_id for n in expected]
        assert [n.score for n in first] == pytest.approx([n.score for n in expected], abs=1e-5)
    torch.set_grad_enabled(True)
