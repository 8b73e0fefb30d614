"""Three small questions, and an encoder without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiny import DOCUMENTS


def letters(texts: Any) -> Any:
    """A sentence encoder without a model: how often each letter occurs."""
    return np.array([[1.0 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts])


def question_row(number: int, query: str, gold: list[int], answers: list[str]) -> dict[str, Any]:
    documents = [
        {"id": f"{i:02d}", "text": text, "title": f"Note {i}", "source": "web" if i % 2 else "wiki", "gold": i in gold}
        for i, text in enumerate(DOCUMENTS)
    ]
    return {"id": f"q{number}", "question": query, "answers": answers, "documents": documents, "meta": {"secret": 1}}


ROWS = [
    question_row(0, "When does the ferry leave the harbour?", [0, 4], ["at nine", "nine"]),
    question_row(1, "How hot is boiling water?", [1], ["one hundred degrees"]),
    question_row(2, "What colour is the house?", [3], ["red"]),
]
