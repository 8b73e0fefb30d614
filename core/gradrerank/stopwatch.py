"""Wall time by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the seconds that each stage takes.

    Example:
        >>> watch = Stopwatch()
        >>> with watch.stage("score"):
        ...     pass
        >>> sorted(watch.seconds())
        ['score', 'total']
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block and add it to the stage of this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere to the stage of this name."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds by stage, and ``"total"`` since the stopwatch was made."""
        return {**self._seconds, "total": time.perf_counter() - self._start}
