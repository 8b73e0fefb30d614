"""Figures as Markdown, and pages whose tables a command writes.

A page keeps a place for each table between two comments, ``<!-- table NAME -->`` and ``<!-- end NAME -->``;
what stands between them is replaced, everything else is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gradrerank.errors import InvalidArgumentError


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number as tables show it: no zero before the point, a plain minus, and a plus where asked for.

    Args:
        value: The number.
        digits: Digits behind the point.
        sign: Whether a number that is not negative gets a plus.

    Example:
        >>> number(0.9171), number(-0.046, 2), number(0.5, 2, sign=True), number(1.0, 2)
        ('.917', '-.05', '+.50', '1.00')
    """
    shown = re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")
    if not float(shown):
        shown = shown.removeprefix("-")
    return f"+{shown}" if sign and not shown.startswith("-") else shown


def estimate(found: Mapping[str, float], *, sign: bool = False) -> str:
    """A mean with its interval.

    Args:
        found: ``mean``, ``low`` and ``high``, as :meth:`~gradrerank.evaluation.intervals.Estimate.to_dict` has
            them.
        sign: Whether positive numbers get a plus, as differences do.

    Example:
        >>> estimate({"mean": 0.917, "low": 0.9, "high": 0.934})
        '.917 [.90, .93]'
    """
    low, high = (number(found[end], 2, sign=sign) for end in ("low", "high"))
    return f"{number(found['mean'], sign=sign)} [{low}, {high}]"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Args:
        head: Names of the columns.
        rows: As many cells for each row.

    Example:
        >>> print(markdown_table(["", "n"], [["all", "3"]]))
        | | n |
        |---|---|
        | all | 3 |
    """
    lines = [list(head), *rows]
    shown = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in lines]
    return "\n".join([shown[0], "|" + "---|" * len(head), *shown[1:]])


def fill(page: str, tables: Mapping[str, str]) -> str:
    """A page with new tables in their places.

    Args:
        page: The page.
        tables: Text by name of the place.

    Returns:
        The page; places that ``tables`` does not name stay as they are.

    Raises:
        InvalidArgumentError: When the page has no such place, or has it twice.

    Example:
        >>> fill("<!-- table a -->old<!-- end a -->", {"a": "new"}).splitlines()
        ['<!-- table a -->', '', 'new', '', '<!-- end a -->']
    """
    for name, text in tables.items():
        start, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise InvalidArgumentError(f"the page must have {start} and {end} once each")
        before, _, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not closed:
            raise InvalidArgumentError(f"the page must have {end} behind {start}")
        page = f"{before}{start}\n\n{text}\n\n{end}{after}"
    return page
