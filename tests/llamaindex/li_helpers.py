"""Small sources, scorers and handlers that the tests of the LlamaIndex package share."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.callbacks.schema import CBEventType
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from gradrerank.scorers import Scores, ScoringJob


def as_nodes(*texts: str, scores: list[float | None] | None = None, **fields: Any) -> list[NodeWithScore]:
    """Nodes with falling scores and ids n0, n1, ..."""
    given = [1.0 - i / 10 for i in range(len(texts))] if scores is None else scores
    return [NodeWithScore(node=TextNode(text=t, id_=f"n{i}", **fields), score=given[i]) for i, t in enumerate(texts)]


class FixedRetriever(BaseRetriever):
    """Always finds the same nodes, or raises."""

    def __init__(self, *found: Any, error: BaseException | None = None, **options: Any) -> None:
        self.found = as_nodes(*found) if all(isinstance(f, str) for f in found) else list(found)
        self.error = error
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.error is not None:
            raise self.error
        return self.found


class LengthScorer:
    """The utility of a text is its length; counts its calls."""

    name = "length"

    def __init__(self) -> None:
        self.jobs: list[ScoringJob] = []

    @property
    def texts(self) -> list[str]:
        return [d.text for job in self.jobs for d in job.documents]

    def score(self, job: ScoringJob) -> Scores:
        self.jobs.append(job)
        return Scores([float(len(d.text)) for d in job.documents])


class BrokenScorer:
    """Raises."""

    name = "broken"

    def score(self, job: ScoringJob) -> Scores:
        raise ZeroDivisionError("broken on purpose")


class EventRecorder(BaseEventHandler):
    """Keeps every event that is dispatched."""

    events: list[Any] = []

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.events.append(event)

    def named(self, name: str) -> list[Any]:
        return [e for e in self.events if e.class_name() == name]


class CallbackRecorder(BaseCallbackHandler):
    """Keeps every start and end of the RERANKING callback."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.starts: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []

    def on_event_start(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> str:
        if event_type == CBEventType.RERANKING:
            self.starts.append({"id": event_id, **payload})
        return event_id

    def on_event_end(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> None:
        if event_type == CBEventType.RERANKING:
            self.ends.append({"id": event_id, **(payload or {})})

    def start_trace(self, trace_id: str | None = None) -> None:
        pass

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        pass


class RecordingLLM(CustomLLM):
    """Answers with a fixed text and keeps the prompts that it saw."""

    answer: str = "at nine"
    prompts: list[str] = []

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4000, num_output=50)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.prompts.append(prompt)
        return CompletionResponse(text=self.answer)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        self.prompts.append(prompt)
        return (CompletionResponse(text=self.answer[: i + 1], delta=c) for i, c in enumerate(self.answer))
