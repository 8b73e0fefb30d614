"""Checks of arguments, each with a message that names the argument and quotes the value.

One rule for the kind of error: an *option* (a count, a number, a choice) that cannot be used is an
InvalidArgumentError, a ``ValueError``, whatever its type was; a *query* or a *document* of the
wrong type is an InvalidTypeError, a ``TypeError``.
"""

from __future__ import annotations

import difflib
import math
import operator
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from gradrerank.errors import InvalidArgumentError, InvalidTypeError

# Letters, marks and symbols that Unicode defines to be drawn as nothing: joiners, fillers, the empty
# braille pattern and the variation selectors. Their categories alone do not give them away.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(
    chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
)


def is_blank(text: str) -> bool:
    r"""Whether a text has nothing to read: only spaces, controls and invisible characters.

    Args:
        text: Any string; lone surrogates are allowed and count as nothing to read.

    Returns:
        True when every character is in the Unicode categories Z* or C*, or is one of the few
        others that are drawn as nothing.

    Example:
        >>> [is_blank(t) for t in ("", " ", "\u200b", "\n\t", "a", "\u200ba")]
        [True, True, True, True, False, False]
    """
    return all(unicodedata.category(c)[0] in "ZC" or c in _INVISIBLE for c in text)


def check_query(query: Any, name: str = "query") -> str:
    """The query, unchanged; a lone surrogate in it is read as U+FFFD, as in documents.

    Args:
        query: What the caller passed as the query.
        name: What to call it in messages.

    Raises:
        InvalidTypeError: When it is not a string, so that None is never scored as the word "None".
        InvalidArgumentError: When it is blank.
    """
    if not isinstance(query, str):
        raise InvalidTypeError(f"{name} must be a str, got {_shown(query)}")
    if is_blank(query):
        raise InvalidArgumentError(f"{name} must hold some text, got {query!r}")
    return query


def check_queries(queries: Any) -> list[str]:
    """The queries of a batch.

    Args:
        queries: What the caller passed as the queries.

    Raises:
        InvalidTypeError: When they are no sequence, or one of them is not a string; the message says which.
        InvalidArgumentError: When one of them is blank.
    """
    if isinstance(queries, (str, bytes, Mapping, set, frozenset)) or not isinstance(queries, Iterable):
        raise InvalidTypeError(f"queries must be a sequence of queries, got {type(queries).__name__} {queries!r}")
    return [check_query(query, f"queries[{i}]") for i, query in enumerate(queries)]


def check_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """A whole number as a plain int; numpy integers are accepted.

    Args:
        name: Name of the argument, for the message.
        value: What the caller passed.
        minimum: The smallest number allowed, itself included.

    Raises:
        InvalidArgumentError: When it is a bool, not a whole-number type, or below the minimum.
    """
    return _count(name, value, minimum, f"a whole number >= {minimum}")


def check_optional_count(name: str, value: Any, *, minimum: int = 1) -> int | None:
    """A whole number as a plain int, or None; numpy integers are accepted.

    Args:
        name: Name of the argument, for the message.
        value: What the caller passed.
        minimum: The smallest number allowed, itself included.

    Raises:
        InvalidArgumentError: When it is a bool, not a whole-number type, or below the minimum.

    Example:
        >>> check_optional_count("top_n", 3), check_optional_count("top_n", None)
        (3, None)
    """
    return None if value is None else _count(name, value, minimum, f"a whole number >= {minimum} or None")


def _count(name: str, value: Any, minimum: int, expected: str) -> int:
    try:
        count = operator.index(value)
    except TypeError as error:
        raise InvalidArgumentError(f"{name} must be {expected}, got {_shown(value)}") from error
    if count < minimum or _is_bool(value):
        raise InvalidArgumentError(f"{name} must be {expected}, got {_shown(value)}")
    return count


def check_number(
    name: str, value: Any, *, minimum: float | None = None, maximum: float | None = None, or_none: bool = False
) -> float:
    """A finite real number as a plain float; numpy scalars are accepted.

    Args:
        name: Name of the argument, for the message.
        value: What the caller passed.
        minimum: The smallest number allowed, itself included; None for no bound.
        maximum: The largest number allowed beside a minimum, itself included; None for no bound.
        or_none: Whether the message says that None would do, where the caller has seen to that.

    Raises:
        InvalidArgumentError: When it is a bool, a string, not a single real number, NaN, infinite,
            or out of the bounds.

    Example:
        >>> check_number("mmr_lambda", 2, minimum=0.0, maximum=1.0)
        Traceback (most recent call last):
        ...
        gradrerank.errors.InvalidArgumentError: mmr_lambda must be a number between 0 and 1, got 2
    """
    expected = "a finite number" if minimum is None else f"a finite number >= {minimum:g}"
    if minimum is not None and maximum is not None:
        expected = f"a number between {minimum:g} and {maximum:g}"
    expected += " or None" if or_none else ""
    if _is_bool(value) or isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise InvalidArgumentError(f"{name} must be {expected}, got {_shown(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{name} must be {expected}, got {_shown(value)}") from error
    below, above = minimum is not None and number < minimum, maximum is not None and number > maximum
    if not math.isfinite(number) or below or above:
        raise InvalidArgumentError(f"{name} must be {expected}, got {_shown(value)}")
    return number


def check_optional_flag(name: str, value: Any) -> bool | None:
    """A bool, or None.

    Args:
        name: Name of the argument, for the message.
        value: What the caller passed.

    Raises:
        InvalidTypeError: When it is neither.

    Example:
        >>> check_optional_flag("show_progress", None) is None
        True
    """
    if value is not None and not isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be True, False or None, got {_shown(value)}")
    return value


def check_optional_number(name: str, value: Any) -> float | None:
    """A finite real number as a plain float, or None.

    Args:
        name: Name of the argument, for the message.
        value: What the caller passed.

    Raises:
        InvalidArgumentError: When it is neither None nor a finite real number.
    """
    return None if value is None else check_number(name, value, or_none=True)


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of the allowed strings.

    Args:
        name: Name of the argument, for the message.
        value: What the caller passed.
        allowed: The strings to choose from, in the order in which the message lists them.

    Raises:
        InvalidArgumentError: When it is none of them; the message lists them all and points at the
            closest.

    Example:
        >>> check_choice("scorer", "gate", ["gates", "ablation"])
        Traceback (most recent call last):
        ...
        gradrerank.errors.InvalidArgumentError: scorer must be one of 'gates', 'ablation', got 'gate'; \
did you mean 'gates'?
    """
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    message = f"{name} must be one of {', '.join(map(repr, names))}, got {_shown(value)}"
    close = difflib.get_close_matches(value.lower(), names, n=1) if isinstance(value, str) else []
    raise InvalidArgumentError(message + (f"; did you mean {close[0]!r}?" if close else ""))


def _is_bool(value: Any) -> bool:
    # By name, so that numpy's own bool is refused too without importing numpy here.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _shown(value: Any) -> str:
    """A value for a message, with its type unless the value alone tells it."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if value is None or type(value) in (bool, int, float, str) else f"{type(value).__name__} {text}"


def check_place(name: str, value: Any) -> str | None:
    """A device or a floating-point type by its name, or None.

    Args:
        name: ``"device"`` or ``"dtype"``.
        value: A name, or the object of torch.

    Raises:
        InvalidArgumentError: When dtype is no floating-point type that a model is run in.
    """
    place = None if value is None else str(value).removeprefix("torch.")
    if place is not None and name == "dtype":
        check_choice("dtype", place, ("float32", "bfloat16", "float16", "float64"))
    return place
