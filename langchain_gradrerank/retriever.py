"""The retriever over named sources: asks them all, and ranks what they found together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from pydantic import ConfigDict, Field, ValidationInfo, field_serializer, field_validator, model_validator

from gradrerank.adapting import (
    Fetched,
    Occurrences,
    OnSourceError,
    afetch_all,
    check_on_source_error,
    check_setting,
    check_sources,
    check_timeout,
    fetch_all,
    merged_pool,
    n_blank,
    run_blocking,
    run_in_thread,
)
from gradrerank.context.limits import check_per_source
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.settings import UNSET
from gradrerank.sources.weights import check_weights
from gradrerank.validation import check_query
from langchain_gradrerank.batching import arun_together, run_together
from langchain_gradrerank.compressor import GradRerankCompressor
from langchain_gradrerank.documents import (
    RETRIEVAL_SCORE_KEY,
    TITLE_KEY,
    by_source,
    from_pool,
    read_documents,
    with_source_names,
)

EVENT = "gradrerank_sources"


class MultiSourceRetriever(BaseRetriever):
    """Asks several named sources at once and ranks their documents together.

    Documents come back as from :class:`~langchain_gradrerank.GradRerankCompressor`, and with the names
    of all sources that found them, as a list, under ``metadata["retrieval_source"]``. In a trace, each
    source is a child run that bears its name, and ranking is a child run named ``GradRerank``; the
    event ``gradrerank_sources`` tells how many documents each source found, how many of them are blank and
    left out, and which failed how.

    Args:
        sources: For each name a source: any runnable or function from a query to a list of documents,
            best first. Functions are called in threads.
        compressor: Ranks the documents. None ranks nothing: the merged documents come back in fused
            retrieval order.
        top_n: Most documents that come back; None leaves it to the compressor. ``invoke(query, top_n=...)``
            overrides both, and None then means all.
        timeout: Seconds that each source has; None for no limit.
        on_source_error: ``"warn"`` goes on without a source that fails and warns, ``"ignore"`` does so
            silently, ``"raise"`` raises its error. When all fail, that is always an error.
        weights: Trust in each source, by name or in the order of the sources; see
            :mod:`gradrerank.sources.weights`.

    Raises:
        ValidationError: When a value cannot be used; the message names the field.

    Example:
        >>> from langchain_core.documents import Document
        >>> retriever = MultiSourceRetriever(
        ...     sources={
        ...         "timetable": lambda query: [Document("The ferry leaves at 8:40.")],
        ...         "news": lambda query: [Document("The ferry is blue."), Document("The ferry leaves at 8:40.")],
        ...     },
        ...     compressor=None,
        ... )
        >>> [d.metadata["retrieval_source"] for d in retriever.invoke("When does the ferry leave?")]
        [['timetable', 'news'], ['news']]
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    sources: dict[str, Any]
    compressor: GradRerankCompressor | None = Field(default_factory=GradRerankCompressor)
    top_n: int | None = None
    timeout: float | None = None
    on_source_error: OnSourceError = "warn"
    weights: dict[str, float] | None = None

    # -- retrieval ---------------------------------------------------------------------------------

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, top_n: int | None = UNSET
    ) -> list[Document]:
        settings = self._settings(query, top_n)
        calls = {name: self._call(name, query, _config(name, run_manager)) for name in self.sources}
        fetched = fetch_all(calls, timeout=self.timeout, on_error=self.on_source_error)
        dispatch_custom_event(EVENT, _told(fetched), config={"callbacks": run_manager.get_child()})
        found = self._found(fetched)
        if self.compressor is None:
            return self._merged(found, **settings)
        ranked = self.compressor.rerank(found, query, run_manager.get_child(), **settings)
        return [with_source_names(document) for document in ranked]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, top_n: int | None = UNSET
    ) -> list[Document]:
        settings = self._settings(query, top_n)
        calls = {name: self._acall(name, query, _config(name, run_manager)) for name in self.sources}
        fetched = await afetch_all(calls, timeout=self.timeout, on_error=self.on_source_error)
        await adispatch_custom_event(EVENT, _told(fetched), config={"callbacks": run_manager.get_child()})
        found = self._found(fetched)
        if self.compressor is None:
            return self._merged(found, **settings)
        ranked = await self.compressor.arerank(found, query, run_manager.get_child(), **settings)
        return [with_source_names(document) for document in ranked]

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Retrieve for several queries: documents that they share are read once, questions together."""
        if self.compressor is None or len(inputs) < 2:
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return run_together(
            lambda query, own: self.invoke(query, own, **kwargs),
            inputs,
            config,
            self.compressor,
            self.compressor.rank_jobs,
            return_exceptions=return_exceptions,
        )

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """As :meth:`batch`, while the event loop goes on."""
        if self.compressor is None or len(inputs) < 2:
            return await super().abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return await arun_together(
            lambda query, own: self.ainvoke(query, own, **kwargs),
            inputs,
            config,
            self.compressor,
            partial(run_blocking, self.compressor.rank_jobs),
            return_exceptions=return_exceptions,
        )

    def _settings(self, query: str, top_n: Any) -> dict[str, Any]:
        check_query(query)
        settings: dict[str, Any] = {}
        if top_n is not UNSET:
            settings["top_n"] = check_setting("top_n", top_n)
        elif self.top_n is not None:
            settings["top_n"] = self.top_n
        if self.weights is not None:
            settings["weights"] = self.weights
        return settings

    def _call(self, name: str, query: str, config: RunnableConfig) -> Any:
        return lambda: read_documents(self.sources[name].invoke(query, config=config), f"sources[{name!r}]")

    def _acall(self, name: str, query: str, config: RunnableConfig) -> Any:
        async def call() -> list[Document]:
            if _only_blocks(self.sources[name]):
                return await run_in_thread(self._call(name, query, config))
            return read_documents(await self.sources[name].ainvoke(query, config=config), f"sources[{name!r}]")

        return call

    def _found(self, fetched: Fetched[list[Document]]) -> Occurrences[Document]:
        """Documents by source; one that failed found none."""
        title_key = TITLE_KEY if self.compressor is None else self.compressor.title_key
        score_key = RETRIEVAL_SCORE_KEY if self.compressor is None else self.compressor.score_key
        answers = {name: fetched.results.get(name, []) for name in self.sources}
        return by_source(answers, title_key=title_key, score_key=score_key)

    def _merged(
        self, found: Occurrences[Document], *, top_n: int | None = None, weights: Mapping[str, float] | None = None
    ) -> list[Document]:
        return [with_source_names(d) for d in from_pool(merged_pool(found.sources, weights), found)[:top_n]]

    # -- validation --------------------------------------------------------------------------------

    @field_validator("sources", mode="before")
    @classmethod
    def _check_sources(cls, value: Any) -> dict[str, Runnable[str, list[Document]]]:
        return {name: _as_runnable(name, source) for name, source in check_sources(value).items()}

    @field_validator("top_n", mode="before")
    @classmethod
    def _check_top_n(cls, value: Any) -> int | None:
        return check_setting("top_n", value)

    @field_validator("timeout", mode="before")
    @classmethod
    def _check_timeout(cls, value: Any) -> float | None:
        return check_timeout(value)

    @field_validator("on_source_error", mode="before")
    @classmethod
    def _check_policy(cls, value: Any) -> OnSourceError:
        return check_on_source_error(value)

    @field_validator("weights", mode="before")
    @classmethod
    def _check_weights(cls, value: Any, info: ValidationInfo) -> dict[str, float] | None:
        if value is None or "sources" not in info.data:
            return None
        try:
            return check_weights(value, list(info.data["sources"]))
        except InvalidTypeError as error:
            raise InvalidArgumentError(str(error)) from error

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        given = None if self.compressor is None else self.compressor.weights
        if given is not None and self.weights is not None:
            raise InvalidArgumentError("weights are given to the retriever and to its compressor; give them once")
        if self.compressor is not None:
            if self.weights is None:
                check_weights(self.compressor.in_force("weights"), list(self.sources))
            check_per_source(self.compressor.in_force("per_source"), list(self.sources))
        return self

    # -- copies and dumps --------------------------------------------------------------------------

    @field_serializer("sources")
    def _dump_sources(self, sources: Mapping[str, Any]) -> dict[str, str]:
        return {name: f"<{source.get_name()}>" for name, source in sources.items()}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The names of the sources, and what else was given."""
        yield "sources", list(self.sources)
        for name in ("compressor", "top_n", "timeout", "on_source_error", "weights"):
            if name in self.model_fields_set:
                yield name, getattr(self, name)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy with settings of its own that shares the sources and the models."""
        memo = {} if memo is None else memo
        memo.update({id(source): source for source in self.sources.values()})
        return super().__deepcopy__(memo)


def _as_runnable(name: str, source: Any) -> Runnable[str, list[Document]]:
    if isinstance(source, Runnable):
        return source
    if callable(source) and not isinstance(source, type):
        return RunnableLambda(source)
    raise InvalidArgumentError(
        f"sources[{name!r}] must be a retriever, another runnable or a function from a query to documents, "
        f"got {source!r}"
    )


def _only_blocks(source: Runnable[str, list[Document]]) -> bool:
    """Whether its async methods only run the sync ones in the loop's executor.

    There, a source that hangs would keep the loop from ending, and its run would never end in a trace.
    """
    if isinstance(source, BaseRetriever):
        return type(source)._aget_relevant_documents.__module__ == BaseRetriever.__module__
    return isinstance(source, RunnableLambda) and not hasattr(source, "afunc")


def _config(
    name: str, run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun
) -> RunnableConfig:
    return {"callbacks": run_manager.get_child(), "run_name": name}


def _told(fetched: Fetched[list[Document]]) -> dict[str, Any]:
    return {
        "found": {name: len(documents) for name, documents in fetched.results.items()},
        "blank": n_blank({name: [d.page_content for d in found] for name, found in fetched.results.items()}),
        "errors": {name: f"{type(error).__name__}: {error}" for name, error in fetched.errors.items()},
    }
