"""Questions with documents and gold evidence, read from JSON Lines.

One object a line: ``{"id", "question", "answers": [..], "documents": [{"id", "text", "title", "source",
"gold": bool}]}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradrerank import Document


@dataclass(frozen=True)
class Question:
    """A question, its answers, and its documents by source; ``gold`` holds ids of documents."""

    text: str
    answers: list[str]
    sources: dict[str, list[Document]]
    gold: frozenset[str]


def read_questions(path: Path, limit: int | None = None) -> Iterator[Question]:
    """Yield the first ``limit`` questions of a file."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if limit is not None and number >= limit:
                return
            row = json.loads(line)
            sources: dict[str, list[Document]] = {}
            for d in row["documents"]:
                document = Document(d["text"], id=d["id"], title=d.get("title"))
                sources.setdefault(d["source"], []).append(document)
            gold = frozenset(d["id"] for d in row["documents"] if d["gold"])
            yield Question(row["question"], row["answers"], sources, gold)
