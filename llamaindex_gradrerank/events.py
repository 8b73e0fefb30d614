"""What handlers of events and of callbacks are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined] # not in its __all__
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import NodeWithScore, QueryBundle

from gradrerank.documents import RerankResult

dispatcher = get_dispatcher(__name__)


class GradRerankEvent(BaseEvent):
    """A ranking with everything that was decided on the way to it, for handlers of events."""

    result: RerankResult = Field(exclude=True, repr=False, description="The ranking, sources and dropped documents.")

    @classmethod
    def class_name(cls) -> str:
        """The name of the event."""
        return "GradRerankEvent"


class SourcesEvent(BaseEvent):
    """What the sources answered, for handlers of events."""

    found: dict[str, int] = Field(description="How many nodes each source found.")
    blank: dict[str, int] = Field(
        default_factory=dict,
        description="How many of them have no text: they are left out, but for images and the like.",
    )
    errors: dict[str, str] = Field(description="The error of each source that failed.")

    @classmethod
    def class_name(cls) -> str:
        """The name of the event."""
        return "SourcesEvent"


@contextmanager
def announced(
    manager: CallbackManager, query: QueryBundle, nodes: Sequence[NodeWithScore], top_n: int | None, model_name: str
) -> Iterator[list[NodeWithScore]]:
    """Tell handlers of both kinds of the start of a reranking, and however it ends, of the end.

    Args:
        manager: Whose handlers hear the RERANKING callback.
        query: The query.
        nodes: What is to be ranked.
        top_n: Most nodes that are kept; None for all.
        model_name: Name of the scoring model.

    Yields:
        An empty list, to be filled with what is kept.
    """
    kept: list[NodeWithScore] = []
    most = len(nodes) if top_n is None else top_n
    dispatcher.event(ReRankStartEvent(query=query, nodes=list(nodes), top_n=most, model_name=model_name))
    payload: dict[str, Any] = {
        EventPayload.NODES: list(nodes),
        EventPayload.MODEL_NAME: model_name,
        EventPayload.QUERY_STR: query.query_str,
        EventPayload.TOP_K: most,
    }
    try:
        with manager.event(CBEventType.RERANKING, payload=payload) as event:
            yield kept
            event.on_end(payload={EventPayload.NODES: list(kept)})
    finally:
        dispatcher.event(ReRankEndEvent(nodes=list(kept)))
