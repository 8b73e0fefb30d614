"""What bounds the set of kept documents, whoever chooses them: top_n, per_source and token_budget."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradrerank.documents import DropReason
from gradrerank.errors import InvalidArgumentError
from gradrerank.validation import is_blank

PerSource = Mapping[str, int | tuple[int, int | None]]
"""For a source the most documents that are kept of it, or a pair of the least and the most (None: no limit)."""

Bounds = tuple[int, int | None]


def check_per_source(per_source: Any, names: Collection[str] | None = None) -> dict[str, Bounds] | None:
    """Limits and floors by source name, each as a pair of the least and the most.

    Args:
        per_source: What the caller passed: a mapping from source names to whole numbers or pairs; None
            for no limits.
        names: The sources; None checks only what can be checked without them.

    Raises:
        InvalidArgumentError: When it is no such mapping, a number is negative, a floor lies above its
            limit, or a name is not that of a source.

    Example:
        >>> check_per_source({"web": 2, "wiki": (1, None)})
        {'web': (0, 2), 'wiki': (1, None)}
    """
    if per_source is None:
        return None
    if not isinstance(per_source, Mapping):
        raise InvalidArgumentError(
            f"per_source must map source names to a limit or a pair (least, most), got {type(per_source).__name__} "
            f"{per_source!r}"
        )
    for name in per_source:
        if not isinstance(name, str) or is_blank(name):
            raise InvalidArgumentError(f"per_source must name sources, got {name!r}")
        if names is not None and name not in names:
            raise InvalidArgumentError(f"per_source names {name!r}, which is no source; sources are {', '.join(names)}")
    return {name: _bounds(name, value) for name, value in per_source.items()}


def _bounds(name: str, value: Any) -> Bounds:
    is_pair = isinstance(value, (tuple, list))
    pair = value if is_pair else (0, value)
    least, most = (_whole(number) for number in pair) if len(pair) == 2 else (None, None)
    if least is None or (most is None and not (is_pair and pair[1] is None)):
        raise InvalidArgumentError(
            f"per_source[{name!r}] must be a whole number >= 0 or a pair (least, most) of them, got {value!r}"
        )
    if most is not None and least > most:
        raise InvalidArgumentError(f"per_source[{name!r}] has the floor {least} above its limit {most}")
    return least, most


def _whole(number: Any) -> int | None:
    """A whole number from 0 as a plain int; None for anything else."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        return None
    whole = operator.index(number)
    return whole if whole >= 0 else None


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds on what is kept of n documents in the order of their ranking.

    A document that several sources found counts for each of them: it is kept only where none of them
    is at its limit, and it helps each of them to its floor.

    Args:
        sources: For each of the n documents the names of the sources that found it.
        top_n: Most documents, None for no limit.
        per_source: Least and most documents of a source, by its name.
        token_budget: Most tokens, None for no limit.
        tokens: Tokens of some documents as they will stand in the prompt; the second argument is the
            number beyond which the exact one does not matter, or None.

    Example:
        >>> limits = Limits([("web",), ("web",), ("wiki",)], per_source={"web": (0, 1)})
        >>> limits.obstacle([0], 1), limits.obstacle([0], 2)
        ('per_source', None)
    """

    sources: Sequence[Collection[str]]
    top_n: int | None = None
    per_source: Mapping[str, Bounds] = field(default_factory=dict)
    token_budget: int | None = None
    tokens: Callable[[Sequence[int], int | None], int] = lambda kept, limit: 0

    def obstacle(self, kept: Sequence[int], index: int) -> DropReason | None:
        """Why a document cannot join those that are kept, or None when it can."""
        if self.top_n is not None and len(kept) >= self.top_n:
            return "top_n"
        if any(self._is_full(name, kept) for name in self.sources[index] if name in self.per_source):
            return "per_source"
        if self.token_budget is not None and self.tokens([*kept, index], self.token_budget) > self.token_budget:
            return "token_budget"
        return None

    def floors(self) -> list[int]:
        """The documents that the floors of ``per_source`` ask for, as far as the other bounds allow.

        The ranking is walked best first; a document is taken where a source that found it is below its floor
        and nothing stands in the way. What was taken for one source and is no longer needed, because a
        document for another one was found by both, is let go, and its place is free again: for the rest of
        the floors, and then for the best of all documents.

        Example:
            >>> found = [("news",), ("web",), ("web", "wiki")]
            >>> Limits(found, top_n=2, per_source={"web": (1, None), "wiki": (1, None)}).floors()
            [2]
        """
        kept: list[int] = []
        while True:
            needed = self._without_needless(self._filled(kept))
            if needed == kept:
                return kept
            kept = needed

    def _filled(self, kept: Sequence[int]) -> list[int]:
        """These and more documents, as long as a floor asks for one that fits."""
        taken, missing = list(kept), self._missing(kept)
        for index, names in enumerate(self.sources):
            if index not in taken and any(missing[name] > 0 for name in names) and self.obstacle(taken, index) is None:
                taken.append(index)
                missing.subtract(set(names))
        return sorted(taken)

    def _without_needless(self, kept: Sequence[int]) -> list[int]:
        """These without what no floor needs beside the others, worst first."""
        needed, missing = list(kept), self._missing(kept)
        for index in reversed(kept):
            names = set(self.sources[index]) & set(self.per_source)
            if all(missing[name] < 0 for name in names):
                needed.remove(index)
                missing.update(names)
        return needed

    def _missing(self, kept: Sequence[int]) -> Counter[str]:
        """How many documents each floor still asks for; below 0 where there are more than it asks for."""
        missing = Counter({name: least for name, (least, _) in self.per_source.items()})
        for index in kept:
            missing.subtract(set(self.sources[index]))
        return missing

    def _is_full(self, name: str, kept: Sequence[int]) -> bool:
        most = self.per_source[name][1]
        return most is not None and sum(name in self.sources[i] for i in kept) >= most
