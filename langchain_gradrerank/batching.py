"""``batch`` and ``abatch``: every input is a run of its own, and their questions are ranked together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor, get_config_list

from gradrerank import RerankResult
from gradrerank.gathering import AsyncGathering, AsyncPart, Gathering, Part
from gradrerank.together import RankJob

Results = list[RerankResult | Exception]

# The part that the run in this context has in a batch, and the compressor whose batch it is.
PART: ContextVar[tuple[object, Part[RankJob, RerankResult]] | None] = ContextVar("gradrerank_part", default=None)
ASYNC_PART: ContextVar[tuple[object, AsyncPart[RankJob, RerankResult]] | None] = ContextVar(
    "gradrerank_async_part", default=None
)


def run_together(
    invoke: Callable[[str, RunnableConfig], list[Document]],
    inputs: Sequence[str],
    config: RunnableConfig | Sequence[RunnableConfig] | None,
    owner: object,
    rank: Callable[[Sequence[RankJob]], Results],
    *,
    return_exceptions: bool,
) -> list[Any]:
    """Invoke for each input in a thread of its own; the threads meet where they rank.

    Args:
        invoke: Runs one input.
        inputs: The queries.
        config: One config for all or one for each; ``max_concurrency`` limits how many run, and are
            ranked, together.
        owner: The compressor whose rankings are joined.
        rank: Does several ranking jobs.
        return_exceptions: Whether an error takes the place of its result.

    Returns:
        The documents, or where asked for the exception, of each input.
    """

    def run(query: str, own: RunnableConfig, gathering: Gathering[RankJob, RerankResult]) -> Any:
        with gathering.part() as part:
            PART.set((owner, part))  # in the thread's own copy of the context
            try:
                return invoke(query, own)
            except Exception as error:
                if not return_exceptions:
                    raise
                return error

    outputs: list[Any] = []
    for queries, configs in _slices(inputs, config):
        gathering: Gathering[RankJob, RerankResult] = Gathering(len(queries), rank)
        with ContextThreadPoolExecutor(max_workers=len(queries)) as threads:
            outputs += threads.map(run, queries, configs, [gathering] * len(queries))
    return outputs


async def arun_together(
    ainvoke: Callable[[str, RunnableConfig], Awaitable[list[Document]]],
    inputs: Sequence[str],
    config: RunnableConfig | Sequence[RunnableConfig] | None,
    owner: object,
    rank: Callable[[Sequence[RankJob]], Awaitable[Results]],
    *,
    return_exceptions: bool,
) -> list[Any]:
    """As :func:`run_together`, with a task for each input."""

    async def run(query: str, own: RunnableConfig, gathering: AsyncGathering[RankJob, RerankResult]) -> Any:
        with gathering.part() as part:
            ASYNC_PART.set((owner, part))  # in the task's own copy of the context
            return await ainvoke(query, own)

    outputs: list[Any] = []
    for queries, configs in _slices(inputs, config):
        gathering: AsyncGathering[RankJob, RerankResult] = AsyncGathering(len(queries), rank)
        tasks = [asyncio.ensure_future(run(*one, gathering)) for one in zip(queries, configs, strict=True)]
        try:
            outputs += await asyncio.gather(*tasks, return_exceptions=return_exceptions)
        finally:
            for task in tasks:
                task.cancel()
    return outputs


def _slices(
    inputs: Sequence[str], config: RunnableConfig | Sequence[RunnableConfig] | None
) -> list[tuple[Sequence[str], Sequence[RunnableConfig]]]:
    configs = get_config_list(config, len(inputs))
    size = configs[0].get("max_concurrency") or len(inputs)
    return [(inputs[i : i + size], configs[i : i + size]) for i in range(0, len(inputs), size)]
