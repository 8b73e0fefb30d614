"""One tiny reranker for all tests of the LangChain package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny import tiny

from gradrerank import GradReranker


def letters(texts: Any) -> Any:
    """A sentence encoder without a model: how often each letter occurs."""
    return np.array([[1.0 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts])


@pytest.fixture(scope="session")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that can be named."""
    folder = tmp_path_factory.mktemp("tiny")
    for part in tiny():
        part.save_pretrained(folder)
    return str(folder)
