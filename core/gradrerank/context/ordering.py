"""The order in which the kept documents stand in the prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

ORDERS = ("score", "ascending", "edges", "source")


def arrange(kept: Collection[int], order: str, homes: Sequence[str]) -> tuple[int, ...]:
    """Put kept documents in the order in which they will stand.

    Args:
        kept: Documents by their place in the ranking, from 0, in any order.
        order: ``"score"``: best first. ``"ascending"``: best last, next to the question. ``"edges"``: the best at
            both ends and the worst in the middle, since models read the middle of a long prompt least (Liu et
            al., "Lost in the Middle", 2023). ``"source"``: grouped by source, best source first, which is the one
            of the best document.
        homes: For each document of the ranking the source that it stands with: the one that gave it the
            best rank.

    Returns:
        The same documents.

    Example:
        >>> arrange([0, 1, 2, 3, 4], "edges", ["a"] * 5), arrange([0, 1, 2], "source", ["a", "b", "a"])
        ((0, 2, 4, 3, 1), (0, 2, 1))
    """
    ranked = sorted(kept)
    if order == "ascending":
        return tuple(reversed(ranked))
    if order == "edges":
        return (*ranked[::2], *reversed(ranked[1::2]))
    if order == "source":
        best: dict[str, int] = {}
        for place in ranked:
            best.setdefault(homes[place], place)
        return tuple(sorted(ranked, key=lambda place: (best[homes[place]], place)))
    return tuple(ranked)
