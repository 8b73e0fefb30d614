"""Ways to choose by name. Another one is one file here, or any object with the same protocol."""

from __future__ import annotations

from collections.abc import Callable

from gradrerank.context.choosing import Chooser, InOrder
from gradrerank.context.coverage import Coverage
from gradrerank.context.knapsack import Knapsack
from gradrerank.context.mmr import MaximalMarginalRelevance
from gradrerank.errors import InvalidTypeError
from gradrerank.validation import check_choice

CHOOSERS: dict[str, Callable[[float], Chooser]] = {
    "order": lambda balance: InOrder(),
    "knapsack": lambda balance: Knapsack(),
    "coverage": lambda balance: Coverage(),
    "mmr": MaximalMarginalRelevance,
}


def as_chooser(selection: str | Chooser, mmr_lambda: float = 0.7) -> Chooser:
    """Find a way to choose by its name, or take one as it is.

    Args:
        selection: A name in :data:`CHOOSERS`, or an object with ``name`` and ``choose``.
        mmr_lambda: The balance of ``"mmr"``, between 0 and 1.

    Raises:
        InvalidArgumentError: When none has this name.
        InvalidTypeError: When it is neither a name nor such an object.

    Example:
        >>> as_chooser("knapsack").name
        'knapsack'
    """
    if isinstance(selection, str):
        return CHOOSERS[check_choice("selection", selection, tuple(CHOOSERS))](mmr_lambda)
    if isinstance(selection, type) or not isinstance(selection, Chooser):
        raise InvalidTypeError(
            f"selection must be one of {', '.join(map(repr, CHOOSERS))} or an object with name and choose, got "
            f"{selection!r}"
        )
    return selection
