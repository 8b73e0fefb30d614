"""Calls that meet to do their jobs at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker
from gradrerank.errors import InvalidArgumentError
from gradrerank.gathering import AsyncGathering, Gathering
from gradrerank.together import RankJob, rank_together


def run(gathering: Gathering[Any, Any], job: Any) -> Any:
    with gathering.part() as part:
        if job == "raises":
            raise KeyError(job)
        return job if job == "leaves" else part.hand_in(job)


def test_every_thread_gets_its_own_result_from_one_piece_of_work() -> None:
    seen: list[list[int]] = []

    def work(jobs: Sequence[int]) -> list[int]:
        seen.append(list(jobs))
        return [10 * job for job in jobs]

    gathering: Gathering[int, int] = Gathering(8, work)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: run(gathering, job), range(8)))
    assert results == [10 * job for job in range(8)]
    assert [sorted(jobs) for jobs in seen] == [list(range(8))]


@pytest.mark.parametrize("missing", ["leaves", "raises"])
def test_nobody_waits_for_a_thread_that_leaves(missing: str) -> None:
    gathering: Gathering[Any, Any] = Gathering(3, lambda jobs: [job + job for job in jobs])
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(run, gathering, job) for job in ("a", missing, "b")]
        assert (futures[0].result(10), futures[2].result(10)) == ("aa", "bb")
        if missing == "raises":
            with pytest.raises(KeyError):
                futures[1].result(10)


def failing(jobs: Sequence[Any]) -> list[Any]:
    raise ValueError("no")


@pytest.mark.parametrize("work", [failing, lambda jobs: [ValueError("no") for _ in jobs], lambda jobs: []])
def test_an_error_reaches_every_thread(work: Any) -> None:
    gathering: Gathering[Any, Any] = Gathering(2, work)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run, gathering, job) for job in "ab"]:
            with pytest.raises((ValueError, RuntimeError)):
                future.result(10)


async def test_coroutines_meet_and_one_that_is_cancelled_takes_nothing_from_the_others() -> None:
    started = asyncio.Event()

    async def work(jobs: Sequence[int]) -> list[int]:
        started.set()
        await asyncio.sleep(0.05)
        return [10 * job for job in jobs]

    gathering: AsyncGathering[int, int] = AsyncGathering(3, work)

    async def one(job: int) -> int:
        with gathering.part() as part:
            return await part.hand_in(job)

    tasks = [asyncio.ensure_future(one(job)) for job in range(3)]
    await started.wait()
    tasks[0].cancel()
    assert await asyncio.gather(*tasks[1:]) == [10, 20]
    assert tasks[0].cancelled()


async def test_a_coroutine_that_is_cancelled_before_it_comes_is_not_waited_for() -> None:
    async def work(jobs: Sequence[int]) -> list[int]:
        return [10 * job for job in jobs]

    gathering: AsyncGathering[int, int] = AsyncGathering(2, work)

    async def one(job: int, delay: float) -> int:
        with gathering.part() as part:
            await asyncio.sleep(delay)
            return await part.hand_in(job)

    slow = asyncio.ensure_future(one(1, 60))
    quick = asyncio.ensure_future(one(2, 0))
    await asyncio.sleep(0.05)
    slow.cancel()
    assert await asyncio.wait_for(quick, 5) == 20


class Counting(GradReranker):
    """Counts how queries come in."""

    def __init__(self) -> None:
        super().__init__(tiny())
        self.batches: list[int] = []

    def rerank_batch(self, queries: Any, sources: Any, **options: Any) -> Any:
        self.batches.append(len(queries))
        return super().rerank_batch(queries, sources, **options)


def job(query: str, **settings: Any) -> RankJob:
    return RankJob(query, {"a": [Document(text) for text in DOCUMENTS]}, settings)


def test_jobs_with_equal_settings_are_ranked_together() -> None:
    reranker = Counting()
    jobs = [job(QUERY, top_n=2), job("Who?"), job("When?", top_n=2), job("Where?")]
    results = rank_together(reranker, jobs)
    assert reranker.batches == [2, 2]
    assert [getattr(r, "query", None) for r in results] == [j.query for j in jobs]
    assert [len(r) for r in results if not isinstance(r, Exception)] == [2, 5, 2, 5]


def test_one_jobs_error_is_that_of_no_other() -> None:
    results = rank_together(GradReranker(tiny()), [job(QUERY), job(" "), job("When?")])
    assert isinstance(results[1], InvalidArgumentError)
    assert [len(r) for r in (results[0], results[2]) if not isinstance(r, Exception)] == [5, 5]


def test_a_gathering_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    gathering: Gathering[int, int] = Gathering(1, list)
    assert run(gathering, 3) == 3
    assert threading.active_count() == before
