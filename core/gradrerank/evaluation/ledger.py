"""A file that remembers, line by line, what was computed already, so that a run can go on after a stop."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gradrerank.errors import GradRerankWarning, InvalidArgumentError

Value = Mapping[str, Any]


def key_of(*parts: Any) -> str:
    """A name for everything that a result depends on.

    Args:
        *parts: Plain values: texts, numbers, lists, mappings.

    Returns:
        Hexadecimal digits, the same for the same parts in every process.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def code_version() -> str:
    """A name for the package's own source as it is on disk."""
    home, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Ledger:
    """Values by key, each a line of a JSON Lines file that is only ever appended to.

    A value is on disk when :meth:`put` returns. The last line is torn when a run was stopped while
    writing it; it is dropped. One process at a time may write to a file.

    Args:
        path: The file; None keeps everything in memory.

    Raises:
        InvalidArgumentError: When a line before the last one is not a line of a ledger.

    Example:
        >>> ledger = Ledger()
        >>> ledger.put("k", {"seconds": 0.5})
        >>> ledger.get("k")
        {'seconds': 0.5}
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._values: dict[str, Value] = {}
        self._other_code: set[str] = set()
        self._warned = False
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._read(self.path)

    def __len__(self) -> int:
        """Number of values."""
        return len(self._values)

    def get(self, key: str) -> Value | None:
        """The value of a key, or None when it was not computed yet.

        Warns once when a value was computed by other code than that which runs now: the key tells
        configurations and questions apart, not versions of a function.
        """
        if key in self._other_code and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.path} holds values that other code of this package computed; they are reused. Start a new "
                "file if what was changed since changes the numbers",
                GradRerankWarning,
                stacklevel=2,
            )
        return self._values.get(key)

    def put(self, key: str, value: Value) -> None:
        """Remember a value, and write it to the file."""
        self._values[key] = value
        self._other_code.discard(key)
        if self.path is not None:
            line = json.dumps({"key": key, "code": code_version(), **value}, allow_nan=False)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def _read(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            # So that the next line does not continue the torn one.
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = json.loads(line)
                key, code = row.pop("key"), row.pop("code")
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise InvalidArgumentError(f"{path}, line {number}: not a line of a ledger: {error!r}") from error
            self._values[key] = row
            (self._other_code.add if code != code_version() else self._other_code.discard)(key)
