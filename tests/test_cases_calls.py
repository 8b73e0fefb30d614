"""Cases C17 to C20, C28 and C29 through the core and both framework packages: who calls, from where, on what model."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from through import WAYS, langchain_documents, letters, llamaindex_nodes, rank
from tiny import DOCUMENTS, QUERY, tiny, tiny_model, tiny_tokenizer

from gradrerank import Document, GradReranker, Scores, ScoringJob
from gradrerank.scorers import SCORERS

every_way = pytest.mark.parametrize("way", WAYS)
frameworks = pytest.mark.parametrize("way", [way for way in WAYS if way != "core"])
SOURCES = {"a": [Document(t, id=t[:9]) for t in DOCUMENTS[:3]], "b": [Document(t, id=t[:9]) for t in DOCUMENTS[2:]]}


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


def scored(way: str, reranker: GradReranker, query: str = QUERY, **use: Any) -> list[tuple[str, float]]:
    return [(s.text, s.score) for s in rank(way, reranker, query, SOURCES, **use)]


class Slow:
    """A scorer that takes its time."""

    name = "slow"

    def __init__(self, seconds: float = 0.3) -> None:
        self.seconds, self.started, self.ended = seconds, 0, 0

    def score(self, job: ScoringJob) -> Scores:
        self.started += 1
        time.sleep(self.seconds)
        self.ended += 1
        return Scores([float(len(d.text)) for d in job.documents])


def awaitable(way: str, reranker: GradReranker, **use: Any) -> Callable[[], Any]:
    """The asynchronous call of a framework over the documents of one list."""
    given = [d for found in SOURCES.values() for d in found]
    if way == "langchain":
        from langchain_gradrerank import GradRerankCompressor

        compressor = GradRerankCompressor(reranker=reranker, **use)
        return lambda: compressor.acompress_documents(langchain_documents(given), QUERY)
    from llamaindex_gradrerank import GradRerankPostprocessor

    postprocessor = GradRerankPostprocessor(reranker=reranker, **use)
    return lambda: postprocessor.apostprocess_nodes(llamaindex_nodes(given), query_str=QUERY)


# -- C17: event loops -----------------------------------------------------------------------------------------


@frameworks
def test_C17_the_loop_ticks_and_twenty_calls_give_what_one_gives(reranker: GradReranker, way: str) -> None:
    call = awaitable(way, reranker, scorer=Slow(0.05))

    async def main() -> tuple[int, list[Any]]:
        ticks, done = 0, asyncio.Event()

        async def tick() -> None:
            nonlocal ticks
            while not done.is_set():
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        found = await asyncio.gather(*(call() for _ in range(20)))
        done.set()
        await ticker
        return ticks, found

    for _ in range(2):  # one object in two loops
        ticks, found = asyncio.run(main())
        assert ticks >= 10
        assert all([str(d) for d in each] == [str(d) for d in found[0]] for each in found)


@frameworks
@pytest.mark.parametrize("how", ["cancel", "wait_for", "timeout"])
def test_C17_a_cancellation_returns_at_once_and_leaves_nothing_behind(
    reranker: GradReranker, way: str, how: str
) -> None:
    slow = Slow(0.5)
    call = awaitable(way, reranker, scorer=slow)

    async def main() -> float:
        start = time.monotonic()
        if how == "cancel":
            task = asyncio.ensure_future(call())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "wait_for":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(call(), 0.1)
        else:
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.1):
                    await call()
        took = time.monotonic() - start
        assert len(asyncio.all_tasks()) == 1
        return took

    threads = threading.active_count()
    took = asyncio.run(main())
    deadline = time.monotonic() + 20
    while (slow.started > slow.ended or threading.active_count() > threads) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= threads, "the thread that computed has ended"
    assert took < 0.5 or slow.ended == 0
    assert len(asyncio.run(call())) == 5, "the next call works"


@every_way
def test_C17_the_sync_call_works_inside_a_running_loop(reranker: GradReranker, way: str) -> None:
    expected = scored(way, reranker)

    async def main() -> list[tuple[str, float]]:
        return scored(way, reranker)

    assert asyncio.run(main()) == expected


# -- C18: threads ---------------------------------------------------------------------------------------------


@every_way
def test_C18_sixteen_threads_and_two_rerankers_on_one_model_get_what_one_thread_gets(way: str) -> None:
    model, tokenizer = tiny()
    pair = [GradReranker((model, tokenizer), encoder=letters) for _ in range(2)]
    pair[1].settings = pair[1].settings.override(scorer="gates+likelihood")
    jobs = [
        {"query": f"{QUERY} Or {'the tram ' * (i % 5)}?", "scorer": name, "max_document_tokens": [None, 8, 20][i % 3]}
        for i, name in enumerate([*SCORERS, "gates+likelihood+links"] * 3)
    ]

    def work(at: int) -> list[tuple[str, float]]:
        use = dict(jobs[at % len(jobs)])
        return scored(way, pair[at % 2], str(use.pop("query")), **use)

    n = 2 * len(jobs)
    with pytest.warns(Warning):  # documents are cut
        expected = [work(at) for at in range(n)]
        for each in pair:
            each.generator.store.clear()
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(work, range(n)))
    assert found == expected, "equal to the last bit"


def test_C18_the_users_own_tokenizer_may_be_used_in_any_way_meanwhile() -> None:
    model, tokenizer = tiny()
    reranker = GradReranker((model, tokenizer), select_sources=False)
    expected = scored("core", reranker)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            tokenizer(DOCUMENTS, truncation=True, max_length=3, padding=True)
            tokenizer.padding_side = "left"

    threads = [threading.Thread(target=disturb) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            reranker.generator.store.clear()
            assert scored("core", reranker) == expected
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _in_child(reranker: GradReranker, results: Any) -> None:
    results.put(scored("core", reranker))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_C18_a_process_that_is_forked_after_use_ranks_the_same(reranker: GradReranker) -> None:
    expected = scored("core", reranker)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(reranker, results))
    child.start()
    child.join(120)
    assert child.exitcode == 0 and results.get() == expected
    assert scored("core", reranker) == expected


def test_C18_a_process_that_is_spawned_after_use_ranks_the_same(tmp_path: Any) -> None:
    for part in tiny():
        part.save_pretrained(tmp_path)
    reranker = GradReranker(str(tmp_path), encoder=letters, cache_folder=tmp_path / "caches")
    expected = scored("core", reranker)
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(reranker, results))
    child.start()
    child.join(240)
    assert child.exitcode == 0 and results.get() == expected


# -- C19, C28: modes ------------------------------------------------------------------------------------------


@contextmanager
def grad_off() -> Iterator[None]:
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(True)


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": grad_off,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "enable_grad": torch.enable_grad,
    "deterministic": lambda: torch.random.fork_rng([]),
}


@every_way
@pytest.mark.parametrize("mode", list(MODES))
def test_C19_C28_the_mode_of_the_caller_changes_nothing_and_stays(reranker: GradReranker, way: str, mode: str) -> None:
    expected = scored(way, reranker)
    reranker.generator.store.clear()
    with MODES[mode]():
        before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        found = scored(way, reranker)
        with pytest.raises(ValueError, match="top_n"):
            scored(way, reranker, top_n=0)
        after = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
    assert found == expected and after == before
    assert scored(way, reranker) == expected, "what was cached inside the mode serves outside of it"


@pytest.mark.parametrize("scorer", [*SCORERS, "gates+likelihood+links"])
def test_C19_C28_every_scorer_in_every_mode(reranker: GradReranker, scorer: str) -> None:
    expected = scored("core", reranker, scorer=scorer)
    for mode in MODES.values():
        reranker.generator.store.clear()
        with mode():
            assert scored("core", reranker, scorer=scorer) == expected


# -- C20: copies ----------------------------------------------------------------------------------------------


@every_way
def test_C20_copies_and_pickles_rank_the_same(tmp_path: Any, way: str) -> None:
    for part in tiny():
        part.save_pretrained(tmp_path)
    reranker = GradReranker(str(tmp_path), encoder=letters, top_n=3)
    expected = scored(way, reranker)
    for twin in (copy.copy(reranker), copy.deepcopy(reranker), pickle.loads(pickle.dumps(reranker))):
        assert scored(way, twin) == expected
        assert len(repr(twin)) < 200
    assert len(pickle.dumps(reranker)) < 20_000, "no weights"
    with pytest.raises(TypeError, match="weights are not pickled"):
        pickle.dumps(GradReranker(tiny(), encoder=letters))


# -- C29: marks on the user's model ---------------------------------------------------------------------------


def marks(model: Any) -> Any:
    return (
        [
            (m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in model.modules()
        ],
        [(p.requires_grad, p.grad is None, p._version) for p in model.parameters()],
        model.config.to_dict(),
        torch.get_rng_state().tolist(),
        model.is_gradient_checkpointing,
    )


@every_way
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("scorer", ["gates", "gates+likelihood", "ablation", "mixture", "iterated"])
def test_C29_the_users_model_is_left_as_it_was(way: str, training: bool, scorer: str) -> None:
    model, tokenizer = tiny_model("gpt2"), tiny_tokenizer()
    expected = scored(way, GradReranker((tiny_model("gpt2"), tiny_tokenizer()), encoder=letters), scorer=scorer)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train(training)
    model.config.use_cache = True
    tokenizer.padding_side = "left"
    before = copy.deepcopy(marks(model))
    reranker = GradReranker((model, tokenizer), encoder=letters)
    assert scored(way, reranker, scorer=scorer) == expected, "no dropout"
    with pytest.raises(ZeroDivisionError):
        scored(way, reranker, scorer=_Broken())
    assert marks(model) == before and tokenizer.padding_side == "left"


class _Broken:
    name = "broken"

    def score(self, job: ScoringJob) -> Scores:
        job.generator.gate_gradients(
            job.generator.reader.assemble(job.caches()), job.continuation, torch.ones(1, len(job.documents))
        )
        raise ZeroDivisionError


def test_C17_nothing_starts_a_thread_or_loop_at_import() -> None:
    code = (
        "import threading, gradrerank, sys\n"
        "for name in ('langchain_gradrerank', 'llamaindex_gradrerank'):\n"
        "    try: __import__(name)\n"
        "    except ImportError: pass\n"
        "print([t.name for t in threading.enumerate() if 'gradrerank' in t.name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "[]"
