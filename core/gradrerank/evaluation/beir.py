r"""Questions from three files in the form of BEIR and a run file in that of TREC.

queries.jsonl    {"_id", "text"}, and "answers" where there are some
corpus.jsonl     {"_id", "title", "text"}
qrels            query-id \t corpus-id \t score, with a line of headers
run              query-id Q0 corpus-id rank score name
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gradrerank.documents import Document
from gradrerank.errors import InvalidArgumentError
from gradrerank.evaluation.questions import Question, json_lines, needed
from gradrerank.validation import check_optional_count

Where = str | os.PathLike[str]


def read_beir(
    queries: Where, corpus: Where, qrels: Where, run: Where, *, depth: int = 100, limit: int | None = None
) -> Iterator[Question]:
    """Candidates of a run as questions.

    A query that nothing is relevant for in the qrels, or that the run found nothing for, is no question.
    Only the documents that the run names are held in memory.

    Args:
        queries: Queries, JSON Lines.
        corpus: Documents, JSON Lines.
        qrels: Relevance, tab-separated; 0 and below are not relevant.
        run: Candidates; their order is that of the score, equal ones in the order of the file.
        depth: Candidates that are taken for each query.
        limit: Most questions; None for all.

    Yields:
        Questions in the order of the queries; the source of each document is ``"corpus"``.

    Raises:
        InvalidArgumentError: When a line cannot be read, or the run names a document that the corpus
            lacks; the message names file and line.
    """
    check_optional_count("limit", limit)
    relevant = _read_qrels(qrels)
    found = {query: ids[:depth] for query, ids in _read_run(run).items() if query in relevant}
    documents = _read_corpus(corpus, {i for ids in found.values() for i in ids})
    yielded = 0
    for where, _, row in json_lines(queries):
        name = needed(where, row, "_id", str)
        if name not in found:
            continue
        missing = [i for i in found[name] if i not in documents]
        if missing:
            raise InvalidArgumentError(f"{os.fspath(run)} names document {missing[0]!r}, which {corpus} lacks")
        candidates = tuple(documents[i] for i in found[name])
        answers = tuple(needed(where, row, "answers", list)) if "answers" in row else ()
        text, names = needed(where, row, "text", str), ("corpus",) * len(candidates)
        yield Question(name, text, answers, candidates, names, relevant[name], name)
        yielded += 1
        if yielded == limit:
            return


def _read_qrels(path: Where) -> dict[str, dict[str, int]]:
    relevant: dict[str, dict[str, int]] = {}
    for where, fields in _rows(path, separator="\t", n=3):
        if where.endswith(", line 1") and fields[2] == "score":
            continue
        grade = _number(where, fields[2])
        if grade > 0:
            relevant.setdefault(fields[0], {})[fields[1]] = int(grade)
    return relevant


def _read_run(path: Where) -> dict[str, list[str]]:
    scored: dict[str, dict[str, float]] = {}
    for where, (query, _, document, _, score, _) in _rows(path, separator=None, n=6):
        if document in scored.setdefault(query, {}):
            raise InvalidArgumentError(f"{where}: document {document!r} stands twice for query {query!r}")
        scored[query][document] = _number(where, score)
    return {query: sorted(found, key=lambda i: -found[i]) for query, found in scored.items()}


def _read_corpus(path: Where, wanted: set[str]) -> dict[str, Document]:
    documents = {}
    for where, _, row in json_lines(path):
        name = needed(where, row, "_id", str)
        if name in documents:
            raise InvalidArgumentError(f"{where}: the id {name!r} occurs twice")
        if name in wanted:
            documents[name] = Document(needed(where, row, "text", str), id=name, title=row.get("title") or None)
    return documents


def _rows(path: Where, *, separator: str | None, n: int) -> Iterator[tuple[str, list[str]]]:
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where, fields = f"{os.fspath(path)}, line {number}", line.strip().split(separator)
            if len(fields) != n:
                raise InvalidArgumentError(f"{where}: expected {n} fields, got {len(fields)}: {line.strip()[:80]!r}")
            yield where, fields


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: {text!r} is not a number") from error
