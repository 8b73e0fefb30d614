"""Where memory ran short and smaller batches did the same work in more time: told once for a whole call."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gradrerank.errors import LowMemoryWarning

# By kind of work: what it was, and the smallest batch that it took. None outside of a call.
_noted: ContextVar[dict[str, tuple[str, int]] | None] = ContextVar("gradrerank_shortage", default=None)

# From a warning to whoever called what `told_once` decorates: this module, and two frames of contextlib.
_CALLER = 4


@contextmanager
def told_once() -> Iterator[None]:
    """Collect what runs short inside, and warn of all of it at the end; around a call inside, nothing more.

    A call that fails does not warn: its error says more. As a decorator it makes the warning point to the
    line of the caller.

    Warns:
        LowMemoryWarning: When a batch was made smaller.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught, told_once():
        ...     note_shortage("a document of 90 tokens", 4)
        ...     note_shortage("a document of 95 tokens", 2)
        >>> [str(warning.message).partition(":")[0] for warning in caught]
        ['memory was short']
    """
    if _noted.get() is not None:
        yield
        return
    noted: dict[str, tuple[str, int]] = {}
    token = _noted.set(noted)
    try:
        yield
    finally:
        _noted.reset(token)
    if noted:
        _warn(noted, _CALLER)


def note_shortage(what: str, size: int) -> None:
    """Say that there was memory for smaller batches only.

    Args:
        what: What one item is; the same words with other numbers are the same kind of work.
        size: Items in a batch from now on.

    Warns:
        LowMemoryWarning: At once where no :func:`told_once` is open, for instance in a thread of its own.
    """
    noted = _noted.get()
    kind = re.sub(r"\d+", "#", what)
    if noted is None:
        _warn({kind: (what, size)}, stacklevel=3)
    elif kind not in noted or size < noted[kind][1]:
        noted[kind] = (what, size)


def _warn(noted: dict[str, tuple[str, int]], stacklevel: int) -> None:
    steps = "; ".join(f"down to {size} at a time, each {what}" for what, size in noted.values())
    warnings.warn(
        f"memory was short: batches were made smaller and done again, which only takes longer ({steps})",
        LowMemoryWarning,
        stacklevel=stacklevel + 1,
    )
