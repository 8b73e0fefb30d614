"""Questions with candidate documents and gold evidence, and what a ranker may see of them.

One JSON object a line::

    {"id", "question", "answers": [..], "documents": [{"id", "text", "title"?, "source"?, "gold"?}], "meta"?}

A ranker is handed a :class:`Task`, which holds no label: query and documents with id, title, text and
source, in the order of the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradrerank.documents import Document
from gradrerank.errors import InvalidArgumentError
from gradrerank.sources.pool import DEFAULT_SOURCE
from gradrerank.validation import check_optional_count, is_blank


@dataclass(frozen=True, slots=True)
class Task:
    """What a ranker sees of a question.

    Args:
        query: The question.
        documents: n candidates with id, title and text, in the order in which they came.
        names: For each of them the name of its source.
        reference: An answer, only where a run reads the loss of the reference answer.
    """

    query: str
    documents: tuple[Document, ...]
    names: tuple[str, ...]
    reference: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The n ids."""
        return tuple(str(d.id) for d in self.documents)

    @property
    def sources(self) -> dict[str, list[Document]]:
        """Documents by source, in the order in which they came."""
        found: dict[str, list[Document]] = {}
        for name, document in zip(self.names, self.documents, strict=True):
            found.setdefault(name, []).append(document)
        return found


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answers, its candidates and its gold evidence.

    Args:
        id: Unique in its file.
        text: The question.
        answers: Answers that are accepted; may be empty.
        documents: n candidates with unique ids.
        names: For each candidate the name of its source.
        gold: Relevance above 0 by id of document; may name documents that are not candidates, which no
            ranking can then find.
        group: Questions of one group depend on each other (for instance one page with several
            questions) and are resampled together; the own id where nothing says so.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    names: tuple[str, ...]
    gold: Mapping[str, int] = field(default_factory=dict)
    group: str = ""

    @property
    def sources(self) -> dict[str, list[Document]]:
        """Documents by source, in the order in which they came."""
        return self.task().sources

    def task(self, *, with_reference: bool = False) -> Task:
        """What a ranker sees.

        Args:
            with_reference: Whether it is given the first answer, for ``target="reference"``.

        Raises:
            InvalidArgumentError: When an answer is wanted and there is none.
        """
        if with_reference and not self.answers:
            raise InvalidArgumentError(f"question {self.id!r} has no answer, and target='reference' reads one")
        return Task(self.text, self.documents, self.names, self.answers[0] if with_reference else None)


def read_questions(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[Question]:
    """Read questions one by one, so that a file may be of any size.

    Args:
        path: A JSON Lines file of the form above; empty lines are passed over.
        limit: Most questions that are read; None reads all.

    Yields:
        The questions, in the order of the file.

    Raises:
        InvalidArgumentError: When a line is not such an object, or an id occurs twice; the message names
            file and line.
    """
    check_optional_count("limit", limit)
    seen: dict[str, int] = {}
    for where, number, row in json_lines(path):
        question = _question(where, row)
        if question.id in seen:
            raise InvalidArgumentError(f"{where}: the id {question.id!r} stands in line {seen[question.id]} too")
        seen[question.id] = number
        yield question
        if len(seen) == limit:
            return


def json_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Objects of a JSON Lines file.

    Args:
        path: The file, UTF-8.

    Yields:
        ``"file, line n"`` for messages, n from 1, and the object.

    Raises:
        InvalidArgumentError: When a line is no JSON object.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{os.fspath(path)}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                row = json.loads(text) if text else None
            except ValueError as error:
                raise InvalidArgumentError(f"{where}: not JSON: {error}") from error
            if not text:
                continue
            if not isinstance(row, dict):
                raise InvalidArgumentError(f"{where}: expected an object, got {type(row).__name__}")
            yield where, number, row


def _question(where: str, row: Mapping[str, Any]) -> Question:
    answers, rows = needed(where, row, "answers", list), needed(where, row, "documents", list)
    if not all(isinstance(answer, str) for answer in answers):
        raise InvalidArgumentError(f"{where}: answers must be texts, got {answers!r}")
    text = needed(where, row, "question", str)
    if is_blank(text):
        raise InvalidArgumentError(f"{where}: the question is blank")
    documents, names, gold = [], [], {}
    for position, item in enumerate(rows):
        at = f"{where}, documents[{position}]"
        if not isinstance(item, dict):
            raise InvalidArgumentError(f"{at}: expected an object, got {type(item).__name__}")
        document = Document(needed(at, item, "text", str), id=needed(at, item, "id", str), title=_title(at, item))
        documents.append(document)
        names.append(needed(at, item, "source", str) if "source" in item else DEFAULT_SOURCE)
        if item.get("gold"):
            gold[str(document.id)] = int(item["gold"])
    repeated = {d.id for d in documents if [e.id for e in documents].count(d.id) > 1}
    if repeated:
        raise InvalidArgumentError(f"{where}: several documents have the id {min(map(str, repeated))!r}")
    name = needed(where, row, "id", str)
    meta = row.get("meta")
    context = meta.get("context") if isinstance(meta, dict) else None
    group = name if context is None else f"context {context}"
    return Question(name, text, tuple(answers), tuple(documents), tuple(names), gold, group)


def needed(where: str, row: Mapping[str, Any], key: str, kind: type) -> Any:
    """The value of a key that must be there.

    Args:
        where: File and line, for the message.
        row: The object.
        key: The key.
        kind: The type that its value must have.

    Raises:
        InvalidArgumentError: When the key is missing or its value has another type.
    """
    if key not in row:
        raise InvalidArgumentError(f"{where}: the key {key!r} is missing; there are {', '.join(map(repr, row))}")
    if not isinstance(row[key], kind):
        raise InvalidArgumentError(f"{where}: {key} must be a {kind.__name__}, got {row[key]!r}")
    return row[key]


def _title(where: str, row: Mapping[str, Any]) -> str | None:
    title = row.get("title")
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"{where}: title must be a str, got {title!r}")
    return title or None
