"""Caches of documents that were read before: in memory, bounded in bytes, and if wanted on disk.

A cache is found by everything that changes its numbers: the weights and their type, the prefix that
stood before the document, and the document's own tokens. Several threads and several rerankers may
share one store.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradrerank.errors import StoreWarning
from gradrerank.validation import check_number

if TYPE_CHECKING:
    from torch import Tensor

    from gradrerank.lm.disk_store import DiskStore


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


def store_key(fingerprint: str, prefix: Sequence[int], document: Sequence[int]) -> str:
    """The name of a cache.

    Args:
        fingerprint: Names the weights, their type and the code that runs them.
        prefix: Token ids before the document.
        document: Token ids of the document.

    Returns:
        40 hexadecimal digits; equal only where the numbers in the cache are equal.
    """
    digest = hashlib.blake2b(digest_size=20)
    for part in (fingerprint.encode(), array("q", prefix).tobytes(), array("q", document).tobytes()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class DocumentStore:
    """A store of document caches that threads and rerankers can share.

    Args:
        capacity: Most bytes that are held in memory; 0 holds nothing. Beyond it, the least recently
            used caches are let go.
        disk: Where caches are kept for later processes, or None.

    Raises:
        InvalidArgumentError: When capacity is not a number from 0.

    Example:
        >>> store = DocumentStore(capacity=0)
        >>> len(store), store.nbytes
        (0, 0)
    """

    def __init__(self, capacity: int = 1 << 30, disk: DiskStore | None = None) -> None:
        self.capacity = int(check_number("capacity", capacity, minimum=0))
        self.disk = disk
        self._entries: OrderedDict[str, DocumentCache] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> DocumentCache | None:
        """The cache of this name, now the most recently used one, or None when it is not there."""
        with self._lock:
            cache = self._entries.get(key)
            if cache is not None:
                self._entries.move_to_end(key)
        if cache is None and self.disk is not None:
            cache = self.disk.get(key)
            if cache is not None:
                self._hold(key, cache)
        return cache

    def put(self, key: str, cache: DocumentCache) -> None:
        """Keep a cache, on disk too where there is one.

        A cache larger than the capacity is not held in memory. One that cannot be written to disk is a
        warning: what was to be saved is time, and the work at hand goes on without.
        """
        self._hold(key, cache)
        if self.disk is None:
            return
        try:
            self.disk.put(key, cache)
        except OSError as error:
            warnings.warn(f"a document cache could not be written to disk: {error}", StoreWarning, stacklevel=2)

    def clear(self) -> None:
        """Let go of everything in memory; what is on disk stays."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are held in memory now."""
        return self._nbytes

    def __len__(self) -> int:
        """Number of caches that are held in memory now."""
        return len(self._entries)

    def __reduce__(self) -> tuple[type[DocumentStore], tuple[int, DiskStore | None]]:
        """A copy in another process begins empty, over the same folder."""
        return type(self), (self.capacity, self.disk)

    def _hold(self, key: str, cache: DocumentCache) -> None:
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
