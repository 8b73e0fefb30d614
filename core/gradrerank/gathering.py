"""Calls that run side by side meet here, so that their questions pass through the model together.

Each of n calls either hands in a job or leaves without one. When all have come, the jobs are done at
once, and each call goes on with its own result.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

J = TypeVar("J")
R = TypeVar("R")


class Gathering(Generic[J, R]):
    """Where n threads meet.

    Args:
        n: Number of threads that take part.
        work: Does all jobs, in the thread that comes last; gives a result or an exception for each.

    Example:
        >>> gathering = Gathering(1, lambda jobs: [2 * job for job in jobs])
        >>> with gathering.part() as part:
        ...     part.hand_in(21)
        42
    """

    def __init__(self, n: int, work: Callable[[Sequence[J]], Sequence[R | Exception]]) -> None:
        self._work = work
        self._missing = n
        self._jobs: list[J] = []
        self._results: Sequence[R | Exception] = ()
        self._done = threading.Event()
        self._lock = threading.Lock()

    def part(self) -> Part[J, R]:
        """One thread's part, as a context; leaving it without a job keeps nobody waiting."""
        return Part(self)

    def hand_in(self, job: J) -> R:
        """Hand in a job and wait for its result; an exception in its place is raised."""
        with self._lock:
            place = len(self._jobs)
            self._jobs.append(job)
        self.arrive()
        self._done.wait()
        return _result(self._results, place)

    def arrive(self) -> None:
        """Count one thread; the last one does the work."""
        with self._lock:
            self._missing -= 1
            last = self._missing == 0
        if not last:
            return
        try:
            self._results = _complete(self._work(self._jobs), len(self._jobs)) if self._jobs else ()
        except Exception as error:  # noqa: BLE001 - raised in every thread that waits
            self._results = [error] * len(self._jobs)
        finally:
            # Whatever happens here, nobody waits for ever.
            self._done.set()


class Part(Generic[J, R]):
    """One thread's part in a gathering."""

    def __init__(self, gathering: Gathering[J, R]) -> None:
        self._gathering = gathering
        self.came = False

    def hand_in(self, job: J) -> R:
        """See :meth:`Gathering.hand_in`."""
        self.came = True
        return self._gathering.hand_in(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.came:
            self._gathering.arrive()


class AsyncGathering(Generic[J, R]):
    """Where n coroutines of one loop meet.

    Args:
        n: Number of coroutines that take part.
        work: Does all jobs; gives a result or an exception for each. It goes on when the coroutines that
            wait for it are cancelled.
    """

    def __init__(self, n: int, work: Callable[[Sequence[J]], Awaitable[Sequence[R | Exception]]]) -> None:
        self._work = work
        self._missing = n
        self._jobs: list[J] = []
        self._all_came = asyncio.Event()
        self._task: asyncio.Task[Sequence[R | Exception]] | None = None

    def part(self) -> AsyncPart[J, R]:
        """One coroutine's part, as a context; leaving it without a job keeps nobody waiting."""
        return AsyncPart(self)

    async def hand_in(self, job: J) -> R:
        """Hand in a job and wait for its result; an exception in its place is raised."""
        place = len(self._jobs)
        self._jobs.append(job)
        self.arrive()
        await self._all_came.wait()
        if self._task is None:
            self._task = asyncio.ensure_future(self._all())
        return _result(await asyncio.shield(self._task), place)

    def arrive(self) -> None:
        """Count one coroutine."""
        self._missing -= 1
        if self._missing == 0:
            self._all_came.set()

    async def _all(self) -> Sequence[R | Exception]:
        try:
            return _complete(await self._work(self._jobs), len(self._jobs))
        except Exception as error:  # noqa: BLE001 - raised in every coroutine that waits
            # As results, so that the error reaches every coroutine and is not reported a second time.
            return [error] * len(self._jobs)


class AsyncPart(Generic[J, R]):
    """One coroutine's part in a gathering."""

    def __init__(self, gathering: AsyncGathering[J, R]) -> None:
        self._gathering = gathering
        self.came = False

    async def hand_in(self, job: J) -> R:
        """See :meth:`AsyncGathering.hand_in`."""
        self.came = True
        return await self._gathering.hand_in(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.came:
            self._gathering.arrive()


def _complete(results: Sequence[R | Exception], n: int) -> Sequence[R | Exception]:
    if len(results) != n:
        raise RuntimeError(f"{len(results)} results for {n} jobs")
    return results


def _result(results: Sequence[R | Exception], place: int) -> R:
    result = results[place] if place < len(results) else RuntimeError("the work on all jobs was interrupted")
    if isinstance(result, Exception):
        raise result
    return result
