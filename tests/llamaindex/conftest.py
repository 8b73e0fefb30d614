"""One tiny reranker for all tests of the LlamaIndex package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from li_helpers import EventRecorder
from llama_index.core.instrumentation import root_dispatcher
from tiny import tiny

from gradrerank import GradReranker


@pytest.fixture(scope="session")
def reranker() -> GradReranker:
    return GradReranker(tiny("llama"))


@pytest.fixture
def recorder() -> Iterator[EventRecorder]:
    handler = EventRecorder(events=[])
    root_dispatcher.add_event_handler(handler)
    yield handler
    root_dispatcher.event_handlers.remove(handler)
