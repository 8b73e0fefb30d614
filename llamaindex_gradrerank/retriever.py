"""The retriever over named sources: asks them all, and ranks what they found together."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import IndexNode, MetadataMode, NodeWithScore, QueryBundle

from gradrerank.adapting import (
    Fetched,
    OnSourceError,
    afetch_all,
    check_on_source_error,
    check_setting,
    check_sources,
    check_timeout,
    fetch_all,
    merged_pool,
    n_blank,
)
from gradrerank.context.limits import check_per_source
from gradrerank.errors import InvalidArgumentError
from gradrerank.fetching import run_in_thread
from gradrerank.sources.pool import reciprocal_rank
from gradrerank.sources.weights import Weights, check_weights
from llamaindex_gradrerank.events import SourcesEvent, dispatcher
from llamaindex_gradrerank.nodes import NodePool, in_sources, own_text, read_nodes, read_query
from llamaindex_gradrerank.postprocessor import GradRerankPostprocessor


class _Default:
    """Stands for a postprocessor that was not given, where None means none."""

    def __repr__(self) -> str:
        return "GradRerankPostprocessor()"


_DEFAULT: Any = _Default()


class MultiSourceRetriever(BaseRetriever):
    """Asks several retrievers at once and ranks what they found by how much it helps the model.

    Each retriever has a name, which every node keeps: nodes come back as
    :class:`~llamaindex_gradrerank.RankedNode`, whose ``gradrerank`` tells all sources that found the
    node, with its rank, score and id in each. Equal texts are one node. A source that is only
    synchronous is asked in a thread when the retriever is awaited, so that the loop goes on.

    An ``IndexNode`` stands for the object that it points to, by itself, by the source or by
    ``objects``/``object_map``, before anything is ranked.

    Args:
        sources: For each name a retriever.
        postprocessor: Ranks the nodes. None ranks nothing: the merged nodes come back in fused
            retrieval order, with reciprocal rank fusion as their score.
        top_n: Most nodes that come back; None leaves it to the postprocessor.
        timeout: Seconds that each source has; None for no limit.
        on_source_error: ``"warn"`` goes on without a source that fails and warns, ``"ignore"`` does so
            silently, ``"raise"`` raises its error. When all fail, that is always an error.
        weights: Trust in each source, by name or in the order of the sources; see
            :mod:`gradrerank.sources.weights`.
        callback_manager: As in every retriever. Ranking is told to it where it has handlers, and else
            to that of the postprocessor.
        object_map: What an ``IndexNode`` stands for, by index id.
        objects: The same, as nodes.
        verbose: Whether to print which objects are entered.

    Raises:
        InvalidArgumentError: When an argument cannot be used; the message names it.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> class Fixed(BaseRetriever):
        ...     def __init__(self, *texts):
        ...         self.nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
        ...         super().__init__()
        ...     def _retrieve(self, query_bundle):
        ...         return self.nodes
        >>> sources = {"timetable": Fixed("It leaves at 8:40."), "news": Fixed("It is blue.", "It leaves at 8:40.")}
        >>> nodes = MultiSourceRetriever(sources, postprocessor=None).retrieve("When does the ferry leave?")
        >>> [(node.text, node.gradrerank["sources"]) for node in nodes]
        [('It leaves at 8:40.', ['timetable', 'news']), ('It is blue.', ['news'])]
    """

    def __init__(
        self,
        sources: Mapping[str, BaseRetriever],
        *,
        postprocessor: GradRerankPostprocessor | None = _DEFAULT,
        top_n: int | None = None,
        timeout: float | None = None,
        on_source_error: OnSourceError = "warn",
        weights: Weights | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
    ) -> None:
        self.sources = _checked_sources(sources)
        self.postprocessor = GradRerankPostprocessor() if postprocessor is _DEFAULT else postprocessor
        self.top_n = check_setting("top_n", top_n)
        self.timeout = check_timeout(timeout)
        self.on_source_error = check_on_source_error(on_source_error)
        self.weights = self._checked_weights(weights)
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)

    # -- retrieval ---------------------------------------------------------------------------------

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = read_query(query_bundle)
        calls = {name: partial(self._ask, name, query) for name in self.sources}
        fetched = fetch_all(calls, timeout=self.timeout, on_error=self.on_source_error)
        nodes, pool = self._pooled(fetched)
        if self.postprocessor is None:
            return self._merged(pool)
        return self.postprocessor.rerank(query, nodes, pool, self._told(), **self._settings())

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = read_query(query_bundle)
        calls = {name: partial(self._aask, name, query) for name in self.sources}
        fetched = await afetch_all(calls, timeout=self.timeout, on_error=self.on_source_error)
        nodes, pool = self._pooled(fetched)
        if self.postprocessor is None:
            return self._merged(pool)
        return await self.postprocessor.arerank(query, nodes, pool, self._told(), **self._settings())

    def _ask(self, name: str, query: QueryBundle) -> list[NodeWithScore]:
        found = read_nodes(self.sources[name].retrieve(query), f"sources[{name!r}]")
        return super()._handle_recursive_retrieval(query, found)

    async def _aask(self, name: str, query: QueryBundle) -> list[NodeWithScore]:
        if type(self.sources[name])._aretrieve is BaseRetriever._aretrieve:  # it would block the loop
            return await run_in_thread(self._ask, name, query)
        found = read_nodes(await self.sources[name].aretrieve(query), f"sources[{name!r}]")
        return await super()._ahandle_recursive_retrieval(query, found)

    def _handle_recursive_retrieval(self, query_bundle: QueryBundle, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
        """Nothing: what an IndexNode stands for was found before ranking, source by source.

        After ranking it would come back unranked, and without the names of its sources.
        """
        return nodes

    async def _ahandle_recursive_retrieval(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore]
    ) -> list[NodeWithScore]:
        """As the synchronous one."""
        return nodes

    def _pooled(self, fetched: Fetched[list[NodeWithScore]]) -> tuple[list[NodeWithScore], NodePool]:
        """All nodes, and the same by source; a source that failed found none."""
        errors = {name: f"{type(error).__name__}: {error}" for name, error in fetched.errors.items()}
        found = {name: len(nodes) for name, nodes in fetched.results.items()}
        texts = {name: [own_text(item.node) for item in nodes] for name, nodes in fetched.results.items()}
        dispatcher.event(SourcesEvent(found=found, blank=n_blank(texts), errors=errors))
        answers = {name: fetched.results.get(name, []) for name in self.sources}
        own = self.postprocessor
        shown = (MetadataMode.NONE, None) if own is None else (own.metadata_mode, own.title_key)
        return [node for nodes in answers.values() for node in nodes], NodePool(in_sources(answers), *shown)

    def _merged(self, pool: NodePool) -> list[NodeWithScore]:
        merged = merged_pool(pool.own_sources, self.weights)
        ranked = [pool.unscored(c.provenance, reciprocal_rank(c.provenance, self.weights)) for c in merged.candidates]
        return [*ranked[: check_setting("top_n", self.top_n)], *pool.media(merged.dropped, self.weights)]

    def _settings(self) -> dict[str, Any]:
        given = {"top_n": self.top_n, "weights": self.weights}
        return {name: value for name, value in given.items() if value is not None}

    def _told(self) -> CallbackManager | None:
        return self.callback_manager if self.callback_manager.handlers else None

    def _get_prompt_modules(self) -> PromptMixinType:
        return {} if self.postprocessor is None else {"postprocessor": self.postprocessor}

    # -- validation --------------------------------------------------------------------------------

    def _checked_weights(self, weights: Weights | None) -> dict[str, float] | None:
        given = None if self.postprocessor is None else self.postprocessor.weights
        if given is not None and weights is not None:
            raise InvalidArgumentError("weights are given to the retriever and to its postprocessor; give them once")
        check_weights(given, list(self.sources))
        check_per_source(None if self.postprocessor is None else self.postprocessor.per_source, list(self.sources))
        return check_weights(weights, list(self.sources))

    def __deepcopy__(self, memo: dict[int, Any]) -> MultiSourceRetriever:
        """A copy with settings of its own that shares sources, models and handlers."""
        twin = copy.copy(self)
        twin.sources, twin.weights = dict(self.sources), copy.copy(self.weights)
        twin.postprocessor = copy.deepcopy(self.postprocessor, memo)
        return twin

    def __repr__(self) -> str:
        """The names of the sources and what ranks them."""
        return f"MultiSourceRetriever({list(self.sources)}, postprocessor={self.postprocessor!r}, top_n={self.top_n})"


def _checked_sources(sources: Any) -> dict[str, BaseRetriever]:
    checked = check_sources(sources)
    for name, source in checked.items():
        if not isinstance(source, BaseRetriever):
            hint = "; call its as_retriever()" if hasattr(source, "as_retriever") else ""
            raise InvalidArgumentError(f"sources[{name!r}] must be a BaseRetriever, got {type(source).__name__}{hint}")
    return checked
