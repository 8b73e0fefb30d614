"""Work in batches that shrink where memory runs out, and an error that says so where no batch is small enough."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from gradrerank.errors import ContextOverflowError
from gradrerank.shortage import note_shortage

T = TypeVar("T")
R = TypeVar("R")

# How devices other than CUDA, whose error has a class of its own, say that there is no memory.
_SAID = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")

_ADVICE = (
    "pass fewer or shorter documents (docs_per_source, max_document_tokens), a smaller dtype, or free memory on the "
    "device"
)


def in_batches(
    items: Sequence[T], size: int, work: Callable[[Sequence[T]], Sequence[R]], what: str, advice: str = _ADVICE
) -> list[R]:
    """Do work on items in batches, halving the batches whenever memory runs out.

    Args:
        items: n items.
        size: Items in a batch at most.
        work: Gives a result for each item of a batch; done again for the first half of a batch that failed.
        what: What one item is, for messages.
        advice: What the caller can do where a single item is too much.

    Returns:
        n results in the order of the items.

    Raises:
        ContextOverflowError: When there is no memory for a single item.

    Warns:
        LowMemoryWarning: When batches had to shrink; once for a whole call, see :mod:`gradrerank.shortage`.

    Example:
        >>> in_batches([1, 2, 3], 2, lambda batch: [-item for item in batch], "a number")
        [-1, -2, -3]
    """
    results: list[R] = []
    shrank = False
    while len(results) < len(items):
        batch = items[len(results) : len(results) + size]
        try:
            with naming_lack_of_memory(what, advice):
                results += work(batch)
        except ContextOverflowError as error:
            if len(batch) == 1 or not is_lack_of_memory(error.__cause__):
                raise
            size = len(batch) // 2
            shrank = True
            _give_back_unused()
    if shrank:
        note_shortage(what, size)
    return results


@contextmanager
def naming_lack_of_memory(what: str, advice: str = _ADVICE) -> Iterator[None]:
    """Turn a device's complaint about memory into an error of ours, and let go of what the work held.

    Args:
        what: What there was no memory for.
        advice: What the caller can do.

    Raises:
        ContextOverflowError: When memory ran out inside the block.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        # A caller who keeps the error, as a notebook does, must not keep the tensors of the failed pass.
        traceback.clear_frames(error.__traceback__)
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ContextOverflowError(f"there is not enough memory for {what} ({reason}): {advice}") from error


def is_lack_of_memory(error: BaseException | None) -> bool:
    """Whether an exception says that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def _give_back_unused() -> None:
    """Return what an accelerator's allocator keeps in pieces, so that it can be had in one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
