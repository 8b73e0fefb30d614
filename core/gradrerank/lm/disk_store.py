"""Document caches on disk, so that a corpus is encoded once and not once a process.

One file a document in the safetensors format, which holds plain arrays and nothing that could run.
Files are written aside and renamed into place, so that several processes can share a folder; each
carries a checksum, so that a torn or changed file is ignored and made again, never used.
"""

from __future__ import annotations

import os
import time
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.lm.kv_store import DocumentCache, DocumentStore
from gradrerank.validation import check_number

if TYPE_CHECKING:
    from torch import Tensor

_WRITING = ".writing-"
# Seconds after which a file that is still being written has no writer any more.
_ABANDONED = 3600.0


class DiskStore:
    """A folder of document caches.

    Args:
        folder: Where the files lie; made when it is missing.

    Raises:
        InvalidArgumentError: When folder is no path, or cannot be made.

    Example:
        >>> import tempfile
        >>> store = DiskStore(tempfile.mkdtemp())
        >>> store.get("0" * 40) is None, len(store)
        (True, 0)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise InvalidArgumentError(f"cache_folder, the folder of a DiskStore, must be a path, got {folder!r}")
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgumentError(f"the folder {str(folder)!r} of a DiskStore cannot be made: {error}") from error
        self._sweep()

    def get(self, key: str) -> DocumentCache | None:
        """The cache of this name, memory-mapped, or None when there is none that is whole."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(key), framework="pt") as file:
                cache = DocumentCache(file.get_tensor("keys"), file.get_tensor("values"))
                expected = (file.metadata() or {}).get("checksum")
        except (OSError, SafetensorError):
            # Not there, not readable, or cut off: the document is encoded again.
            return None
        return cache if expected == _checksum(key, cache) else None

    def put(self, key: str, cache: DocumentCache) -> None:
        """Write a cache in one step.

        Raises:
            OSError: When the disk is full or the folder cannot be written; nothing half written stays.
        """
        from safetensors.torch import save

        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        # Not a private temporary file: others who share the folder shall read what is written.
        work = path.parent / f"{_WRITING}{uuid.uuid4().hex}"
        try:
            tensors = {"keys": cache.keys.cpu().contiguous(), "values": cache.values.cpu().contiguous()}
            work.write_bytes(save(tensors, metadata={"checksum": _checksum(key, cache)}))
            os.replace(work, path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise

    def __len__(self) -> int:
        """Number of files."""
        return sum(1 for _ in self.folder.glob("??/*.safetensors"))

    def _sweep(self) -> None:
        """Remove what writers that were killed left behind."""
        for work in self.folder.glob(f"??/{_WRITING}*"):
            try:
                if time.time() - work.stat().st_mtime > _ABANDONED:
                    work.unlink()
            except OSError:
                # Gone meanwhile, or another user's: neither is in anybody's way.
                continue

    def _path(self, key: str) -> Path:
        # Two levels, so that no folder holds a whole corpus.
        return self.folder / key[:2] / f"{key}.safetensors"


def _checksum(key: str, cache: DocumentCache) -> str:
    # With the name, so that a file that was copied over another is not taken for it, and with shape and type, so
    # that bytes that are whole are not read as other numbers.
    parts = (f"{t.dtype}{list(t.shape)}{zlib.crc32(_bytes(t)):08x}" for t in (cache.keys, cache.values))
    return ",".join([key, *parts])


def _bytes(tensor: Tensor) -> memoryview:
    import torch

    return memoryview(tensor.cpu().contiguous().view(torch.uint8).numpy())  # type: ignore[arg-type]


def make_store(
    store: DocumentStore | None, capacity: int | None, folder: str | os.PathLike[str] | None
) -> DocumentStore | None:
    """The store that a caller describes.

    Args:
        store: A ready store, or None.
        capacity: Most bytes in memory, or None.
        folder: Where caches are kept on disk, or None.

    Returns:
        The store, or None where none of the three is given.

    Raises:
        InvalidArgumentError: When a ready store comes with a description of another, or capacity is no number
            from 0.
        InvalidTypeError: When the store is none.
    """
    if store is not None and not isinstance(store, DocumentStore):
        raise InvalidTypeError(f"store must be a DocumentStore or None, got {type(store).__name__} {store!r}")
    if capacity is not None:
        capacity = int(check_number("cache_bytes", capacity, minimum=0))
    if store is not None and (capacity is not None or folder is not None):
        raise InvalidArgumentError("store is ready made; cache_bytes and cache_folder describe another one")
    if store is not None or (capacity is None and folder is None):
        return store
    disk = None if folder is None else DiskStore(folder)
    return DocumentStore(disk=disk) if capacity is None else DocumentStore(capacity, disk)
