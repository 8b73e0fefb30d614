"""Encodings of the texts that were encoded last: a pool of documents is asked about more than once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradrerank.lm.tokens import Encoding

# Tokens that are remembered: some 1,500 documents of 90 tokens, and about 20 MB.
_TOKENS = 1 << 17


class RecentEncodings:
    """Encodings by text, the least recently used forgotten first; for several threads.

    Args:
        limit: Most tokens of all encodings together; an empty text counts as one.

    Example:
        >>> recent = RecentEncodings(limit=0)
        >>> recent.find(["a"])
        {}
    """

    def __init__(self, limit: int = _TOKENS) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Encoding] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def find(self, texts: Iterable[str]) -> dict[str, Encoding]:
        """Those texts that are known."""
        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
            for text in found:
                self._known.move_to_end(text)
        return found

    def keep(self, encodings: Mapping[str, Encoding]) -> None:
        """Remember encodings, as far as there is room."""
        with self._lock:
            for text, encoding in encodings.items():
                if text not in self._known:
                    self._known[text] = encoding
                    self._tokens += max(1, len(encoding))
            while self._tokens > self._limit:
                _, forgotten = self._known.popitem(last=False)
                self._tokens -= max(1, len(forgotten))
