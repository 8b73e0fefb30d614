"""Scorers that count, sources that fail, and a handler that writes everything down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document

from gradrerank import Scores, ScoringJob


class TextScorer:
    """Scores by the text alone, counts its calls, and may take its time."""

    def __init__(self, score: Callable[[str], float] = lambda text: float(len(text)), seconds: float = 0.0) -> None:
        self.name, self.calls, self.seconds, self.jobs = "text", 0, seconds, []
        self._score = score

    def score(self, job: ScoringJob) -> Scores:
        self.calls += 1
        self.jobs.append(job)
        time.sleep(self.seconds)
        return Scores([self._score(d.text) for d in job.documents])


def docs(*texts: str, **metadata: Any) -> list[Document]:
    """Documents with ids d0, d1, ..., each with metadata of its own."""
    return [Document(page_content=t, id=f"d{i}", metadata=dict(metadata)) for i, t in enumerate(texts)]


def source(found: list[Document]) -> Callable[[str], list[Document]]:
    """A source that always finds the same."""
    return lambda query: list(found)


def broken(error: BaseException) -> Callable[[str], list[Document]]:
    """A source that raises."""

    def call(query: str) -> list[Document]:
        raise error

    return call


@dataclass
class Run:
    """One run of a trace."""

    name: str
    kind: str
    parent: UUID | None
    starts: int = 1
    ends: int = 0
    errors: list[BaseException] = field(default_factory=list)
    output: Any = None


class Recorder(BaseCallbackHandler):
    """Writes down every run, and refuses a second start or an end without a start."""

    def __init__(self) -> None:
        self.runs: dict[UUID, Run] = {}
        self.events: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    def _start(self, kind: str, run_id: UUID, parent_run_id: UUID | None, name: str) -> None:
        with self._lock:
            assert run_id not in self.runs, f"{name} started twice"
            self.runs[run_id] = Run(name, kind, parent_run_id)

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **more: Any) -> None:
        self._start("chain", run_id, more.get("parent_run_id"), more.get("name") or "?")

    def on_retriever_start(self, serialized: Any, query: Any, *, run_id: UUID, **more: Any) -> None:
        self._start("retriever", run_id, more.get("parent_run_id"), more.get("name") or "?")

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any) -> None:
        self._start("llm", run_id, more.get("parent_run_id"), more.get("name") or "?")

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **more: Any) -> None:
        self._start("llm", run_id, more.get("parent_run_id"), more.get("name") or "?")

    def _end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        self.runs[run_id].ends += 1
        self.runs[run_id].output = output

    on_chain_end = on_retriever_end = on_llm_end = _end

    def _error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self.runs[run_id].errors.append(error)

    on_chain_error = on_retriever_error = on_llm_error = _error

    def on_custom_event(self, name: str, data: Any, **more: Any) -> None:
        self.events.append((name, data))

    def named(self, name: str) -> list[Run]:
        return [run for run in self.runs.values() if run.name == name]

    def parent_of(self, run: Run) -> str | None:
        return None if run.parent is None else self.runs[run.parent].name

    def assert_each_run_ended_once(self) -> None:
        for run in self.runs.values():
            assert run.ends + len(run.errors) == 1, run


class Raiser(BaseCallbackHandler):
    """Fails at whatever it is told."""

    def _fail(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("a broken handler")

    on_chain_start = on_chain_end = on_retriever_start = on_retriever_end = on_custom_event = _fail
