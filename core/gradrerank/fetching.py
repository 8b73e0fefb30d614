"""Ask all sources at once, and compute beside an event loop.

Nothing that goes wrong is lost: an error of a source goes to the policy that the caller chose, and
what is no error of a source (KeyboardInterrupt, SystemExit, a cancellation) ends the whole call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from gradrerank.errors import AllSourcesFailedError, SourceWarning

T = TypeVar("T")

OnSourceError = Literal["warn", "raise", "ignore"]
ON_SOURCE_ERROR: tuple[OnSourceError, ...] = ("warn", "raise", "ignore")

# Rerankings beside an event loop that run at a time, in the whole process. Two, so that one computes
# while another waits for the caller's LLM; more would only take memory and processor time from each other.
_SLOTS = threading.BoundedSemaphore(2)
# Set inside a slot: what runs there, such as the caller's LLM, must not wait for a second one.
_in_slot: contextvars.ContextVar[bool] = contextvars.ContextVar("gradrerank_in_slot", default=False)

# Seconds that cancelled sources have to clean up. One that refuses to end is then left behind.
_GRACE = 1.0


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """What the sources answered.

    Args:
        results: The answer of each source that gave one, in the order of the calls.
        errors: The exception of each of the others, in the same order.
    """

    results: dict[str, T]
    errors: dict[str, Exception]


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    value: T | None = None
    error: BaseException | None = None

    def unwrap(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def fetch_all(
    calls: Mapping[str, Callable[[], T]], *, timeout: float | None = None, on_error: OnSourceError = "warn"
) -> Fetched[T]:
    """Ask all sources at once, each in a thread of its own.

    The threads see the caller's context variables. They are daemons: a source that hangs is left
    behind at its timeout, and does not keep the interpreter from ending.

    Args:
        calls: What to call for each source.
        timeout: Seconds that each source has, None for no limit. A source that takes longer has the
            error ``TimeoutError``.
        on_error: ``"warn"`` goes on without a source that fails and warns, ``"ignore"`` does so
            silently, ``"raise"`` raises the error of the first one that fails, as soon as it does.

    Returns:
        Answers and errors.

    Raises:
        AllSourcesFailedError: When no source answered, under ``"warn"`` and ``"ignore"``.
        Exception: Under ``"raise"`` whatever the source raised, with a note that names the source.

    Example:
        >>> fetch_all({"wiki": lambda: ["a"], "web": lambda: []}).results
        {'wiki': ['a'], 'web': []}
    """
    answers: queue.SimpleQueue[tuple[str, _Outcome[T]]] = queue.SimpleQueue()
    for name, call in calls.items():
        _in_thread(call, partial(_put, answers, name), f"gradrerank source {name}")
    outcomes: dict[str, _Outcome[T]] = {}
    ends = None if timeout is None else time.monotonic() + timeout
    while len(outcomes) < len(calls):
        try:
            name, outcome = answers.get(timeout=_left(ends))
        except queue.Empty:
            break
        outcomes[name] = outcome
        _raise_what_ends_all(name, outcome.error, on_error)
    return _fetched(list(calls), outcomes, timeout, on_error)


async def afetch_all(
    calls: Mapping[str, Callable[[], Awaitable[T]]], *, timeout: float | None = None, on_error: OnSourceError = "warn"
) -> Fetched[T]:
    """Ask all sources at once, each in a task of its own.

    However this ends, no task goes on: those that are not done are cancelled and waited for, for a
    second at most.

    Args:
        calls: What to await for each source.
        timeout: As in :func:`fetch_all`.
        on_error: As in :func:`fetch_all`.

    Returns:
        Answers and errors.

    Raises:
        AllSourcesFailedError: As in :func:`fetch_all`.
        Exception: As in :func:`fetch_all`.
    """
    tasks = {asyncio.create_task(_outcome_of(call)): name for name, call in calls.items()}
    outcomes: dict[str, _Outcome[T]] = {}
    ends = None if timeout is None else time.monotonic() + timeout
    try:
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=_left(ends), return_when=asyncio.FIRST_COMPLETED)
            for task, name in tasks.items():  # in the order of the calls, where several end at once
                if task.done() and name not in outcomes:
                    outcomes[name] = task.result()
                    _raise_what_ends_all(name, outcomes[name].error, on_error)
            if _left(ends) == 0.0:
                break
    finally:
        await _cancel([task for task in tasks if not task.done()])
    return _fetched(list(calls), outcomes, timeout, on_error)


def _put(answers: queue.SimpleQueue[tuple[str, _Outcome[T]]], name: str, outcome: _Outcome[T]) -> None:
    answers.put((name, outcome))


def _left(ends: float | None) -> float | None:
    return None if ends is None else max(0.0, ends - time.monotonic())


async def _outcome_of(call: Callable[[], Awaitable[T]]) -> _Outcome[T]:
    try:
        return _Outcome(await call())
    except Exception as error:  # noqa: BLE001 - handed to the policy, which warns or raises
        return _Outcome(error=error)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE)


def _raise_what_ends_all(name: str, error: BaseException | None, on_error: OnSourceError) -> None:
    if error is None or (isinstance(error, Exception) and on_error != "raise"):
        return
    error.add_note(f"raised by source {name!r}")
    raise error


def _fetched(
    names: Sequence[str], outcomes: Mapping[str, _Outcome[T]], timeout: float | None, on_error: OnSourceError
) -> Fetched[T]:
    results: dict[str, T] = {}
    errors: dict[str, Exception] = {}
    for name in names:
        if name not in outcomes:
            errors[name] = TimeoutError(f"source {name!r} gave no answer within {timeout:g} s")
        elif isinstance(error := outcomes[name].error, Exception):
            errors[name] = error
        else:
            results[name] = outcomes[name].unwrap()
    for name, error in errors.items():
        _raise_what_ends_all(name, error, on_error)
    if errors and not results:
        raise AllSourcesFailedError(errors) from next(iter(errors.values()))
    for name, error in errors.items() if on_error == "warn" else ():
        warnings.warn(
            f"source {name!r} failed and was left out: {type(error).__name__}: {error}", SourceWarning, stacklevel=3
        )
    return Fetched(results, errors)


def _in_thread(work: Callable[[], T], done: Callable[[_Outcome[T]], None], name: str) -> None:
    """Run work in a daemon thread with a copy of the caller's context, and hand over how it ended."""

    def run() -> None:
        try:
            outcome = _Outcome(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome = _Outcome(error=error)
        done(outcome)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()


async def run_in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a daemon thread of its own while the event loop goes on, for instance a source.

    Unlike one in the loop's executor, a function that hangs keeps neither loop nor interpreter from
    ending; a call that is cancelled ends by itself, unheard.

    Args:
        work: The function; it sees the caller's context variables.
        *arguments: Its arguments.

    Returns:
        What it returns; what it raises is raised.
    """
    return await _answer_from_thread(lambda answer: work(*arguments))


async def run_blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Run a function that computes in a thread while the event loop goes on.

    Two run at a time in the whole process; the others wait without blocking the loop. A call that is
    cancelled while it waits never starts; one that computes already ends by itself, unheard.

    Args:
        work: The function; it sees the caller's context variables.
        *arguments: Its arguments.

    Returns:
        What it returns; what it raises is raised.
    """

    def in_slot(answer: asyncio.Future[_Outcome[T]]) -> T:
        if _in_slot.get():
            return work(*arguments)
        with _SLOTS:
            if answer.cancelled():
                raise asyncio.CancelledError
            _in_slot.set(True)
            return work(*arguments)

    return await _answer_from_thread(in_slot)


async def _answer_from_thread(work: Callable[[asyncio.Future[_Outcome[T]]], T]) -> T:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Outcome[T]] = loop.create_future()

    def settle(outcome: _Outcome[T]) -> None:
        if not answer.done():
            answer.set_result(outcome)

    def hand_over(outcome: _Outcome[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the answer any more
            loop.call_soon_threadsafe(settle, outcome)

    _in_thread(partial(work, answer), hand_over, "gradrerank")
    return (await answer).unwrap()


class OnLoop:
    """Lets work in a thread await coroutines on the event loop that waits for it.

    To be entered on the loop. What is not done when it is left, by a cancellation for instance, is
    cancelled, and so the thread that waits for it goes on.

    Example:
        >>> async def main():
        ...     with OnLoop() as loop:
        ...         return await run_blocking(lambda: loop.wait_for(asyncio.sleep(0, "done")))
        >>> asyncio.run(main())
        'done'
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: list[Future[Any]] = []
        self._left = threading.Event()

    def __enter__(self) -> OnLoop:
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()
        for call in self._calls:
            call.cancel()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the loop; to be called in another thread.

        Args:
            coroutine: The coroutine.

        Returns:
            What it returns; what it raises is raised.

        Raises:
            CancelledError: When the loop no longer waits.
        """
        if self._left.is_set():
            coroutine.close()
            raise CancelledError
        call = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls.append(call)
        if self._left.is_set():  # left between the two lines above
            call.cancel()
        return call.result()
