"""Caches of documents that were read before, bounded in bytes, least recently used first to go."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradrerank.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor

# Everything that changes the numbers: model fingerprint, prefix ids and document ids.
StoreKey = tuple[str, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DocumentCache:
    """Keys and values of one document, encoded on its own behind the prefix.

    Args:
        keys: [layers, kv_heads, n, key_dim].
        values: [layers, kv_heads, n, value_dim].
    """

    keys: Tensor
    values: Tensor

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors take."""
        return int(self.keys.nbytes + self.values.nbytes)


class DocumentStore:
    """An in-memory store of document caches that threads can share.

    Args:
        capacity: Most bytes that the store holds; 0 stores nothing.

    Raises:
        InvalidArgumentError: When capacity is negative.

    Example:
        >>> store = DocumentStore(capacity=0)
        >>> len(store), store.nbytes
        (0, 0)
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise InvalidArgumentError(f"capacity must be 0 or more bytes, got {capacity}")
        self.capacity = capacity
        self._entries: OrderedDict[StoreKey, DocumentCache] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: StoreKey) -> DocumentCache | None:
        """The stored cache, now the most recently used one, or None when it is not there."""
        with self._lock:
            cache = self._entries.get(key)
            if cache is not None:
                self._entries.move_to_end(key)
            return cache

    def put(self, key: StoreKey, cache: DocumentCache) -> None:
        """Store a cache and let go of the least recently used ones until all fit.

        A cache larger than the whole store is not kept.
        """
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._nbytes -= old.nbytes
            if cache.nbytes > self.capacity:
                return
            self._entries[key] = cache
            self._nbytes += cache.nbytes
            while self._nbytes > self.capacity:
                self._nbytes -= self._entries.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return self._nbytes

    def __len__(self) -> int:
        """Number of documents that are held now."""
        return len(self._entries)
