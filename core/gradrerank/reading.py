"""Sources from files, for the command line.

| file            | documents                                                                       |
|-----------------|---------------------------------------------------------------------------------|
| ``*.jsonl``     | one a line: an object, or a JSON string that is the text; blank lines are skipped |
| ``*.json``      | one list of such objects or strings                                              |
| any other       | plain text, one document a paragraph; paragraphs are parted by blank lines        |

An object has ``text`` and may have ``id``, ``title``, ``metadata`` (an object) and ``score`` (a number);
every other key becomes metadata. A document without an id is named by its file and place: the line in a
``.jsonl`` file, the position in a ``.json`` list, the paragraph in a text, as in ``notes.txt:1``. Files
are UTF-8, with or without a byte order mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from gradrerank.documents import Document
from gradrerank.errors import GradRerankError, InvalidArgumentError

_FIELDS = ("text", "id", "title", "metadata", "score")
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def read_named_files(arguments: Iterable[str]) -> dict[str, list[Document]]:
    """Read the files of arguments such as ``wiki=wiki.jsonl``.

    Args:
        arguments: ``NAME=PATH`` each; the name ends at the first ``=``.

    Returns:
        Documents by source name, in the order of the arguments.

    Raises:
        InvalidArgumentError: When an argument has another form, a name comes twice, or a file cannot be
            read; the message names the argument, or the file and the line.
    """
    paths: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not (equals and name.strip() and path.strip()):
            raise InvalidArgumentError(f"--source must be NAME=PATH, for instance wiki=wiki.jsonl, got {argument!r}")
        if name in paths:
            raise InvalidArgumentError(f"--source names {name!r} twice: {paths[name]!r} and {path!r}")
        paths[name] = path
    return {name: read_documents(path) for name, path in paths.items()}


def read_documents(path: str | Path) -> list[Document]:
    """Read the documents of one file, in its own order; see the top of this module for the forms.

    Args:
        path: The file.

    Returns:
        Its documents, none for an empty file. Blank texts are kept: the reranker reports them.

    Raises:
        InvalidArgumentError: When the file cannot be opened or is malformed; the message names the file and
            the line or position.
    """
    path = Path(path)
    text = _content(path)
    match path.suffix.lower():
        case ".jsonl":
            # Not splitlines: it would also split at separators that may stand inside a JSON string.
            lines = enumerate(text.split("\n"), start=1)
            return [_document(_parsed(s, path, n), path, n, "line") for n, s in lines if s.strip()]
        case ".json":
            items = _parsed(text, path, None)
            if not isinstance(items, list):
                raise InvalidArgumentError(f"{path} must hold a JSON list of documents, got {_kind(items)}")
            return [_document(item, path, n, "item") for n, item in enumerate(items, start=1)]
        case _:
            paragraphs = (p.strip() for p in _BLANK_LINES.split(text))
            return [Document(p, id=f"{path.name}:{n}") for n, p in enumerate(filter(None, paragraphs), start=1)]


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error


def _parsed(text: str, path: Path, line: int | None) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"{path} line {line or error.lineno}: not JSON: {error.msg} at column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:
        where = f"{path} line {line}" if line else f"{path}"
        raise InvalidArgumentError(f"{where}: not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _document(item: Any, path: Path, number: int, unit: str) -> Document:
    where = f"{path} {unit} {number}"
    if isinstance(item, str):
        return Document(item, id=f"{path.name}:{number}")
    if not isinstance(item, dict):
        raise InvalidArgumentError(f"{where}: a document must be an object or a string, got {_kind(item)}")
    if "text" not in item:
        keys = ", ".join(map(repr, item)) or "none"
        raise InvalidArgumentError(f"{where}: the key 'text' is missing; the keys are {keys}")
    try:
        return Document(
            text=item["text"],
            id=_id(item.get("id"), f"{path.name}:{number}"),
            title=item.get("title"),
            metadata=dict(_metadata(item)),
            score=item.get("score"),
        )
    except GradRerankError as error:
        raise InvalidArgumentError(f"{where}: {error}") from error


def _id(given: Any, default: str) -> Any:
    """A whole number is a common id and becomes its digits; Document refuses what is no id at all."""
    if given is None:
        return default
    return str(given) if type(given) is int else given


def _metadata(item: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    own = item.get("metadata")
    if own is not None and not isinstance(own, dict):
        raise InvalidArgumentError(f"'metadata' must be an object, got {_kind(own)}")
    yield from (own or {}).items()
    for key, value in item.items():
        if key in _FIELDS:
            continue
        if own and key in own:
            raise InvalidArgumentError(f"the key {key!r} stands beside 'metadata' and in it; which one is meant?")
        yield key, value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
