"""Pieces of documents that have a gate of their own: whole documents, windows, sentences."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal

from gradrerank.errors import ScoringError

if TYPE_CHECKING:
    from gradrerank.lm.prompt import DocumentTokens

CharacterRange = tuple[int, int]
Segmentation = Literal["document", "window", "sentence"] | Callable[[str], Sequence[CharacterRange]]

# A sentence ends at its closing mark with what closes quotes and brackets, or at a line break.
_SENTENCE_END = re.compile(r"[.!?…।؟۔]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*\s*|\n+")
# What stands before a full stop that ends no sentence: an initial or a usual abbreviation.
_ABBREVIATED = re.compile(
    r"\b(?:[^\W\d_]|[A-Z](?:\.[A-Z])+|Mrs?|Ms|Drs?|Prof|Rev|Hon|Gen|Col|Capt|Lt|Sgt|Sen|Rep|Gov|St|Mt|Ft|Jr|Sr"
    r"|vs|cf|et al|approx|e\.g|i\.e)\. $"
)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Which piece each token belongs to; pieces are numbered through all documents.

    Args:
        token_spans: For each document the piece of each of its tokens. Title and separator belong to
            the first and the last piece, so that a document's mass is the sum over its pieces.
        document_spans: For each document the numbers of its pieces, in order.
        characters: For each piece the characters ``(start, end)`` of its document's text.
    """

    token_spans: tuple[tuple[int, ...], ...]
    document_spans: tuple[range, ...]
    characters: tuple[CharacterRange, ...]


def split_into_pieces(documents: Sequence[DocumentTokens], by: Segmentation, window: int) -> Pieces:
    """Cut documents into pieces.

    Args:
        documents: n documents as tokens.
        by: ``"document"``, ``"window"``, ``"sentence"``, or a callable from a text to ranges; text between
            two ranges belongs to the piece before it.
        window: Tokens of a window.

    Returns:
        The pieces. No piece splits a character, and pieces never reach beyond what is read.

    Raises:
        ScoringError: When a callable returns ranges that overlap, are out of order or out of the text.
    """
    token_spans: list[tuple[int, ...]] = []
    document_spans: list[range] = []
    characters: list[CharacterRange] = []
    for document in documents:
        starts, begins = _cuts(document, by, window)
        first = len(characters)
        document_spans.append(range(first, first + len(starts)))
        edges = [0, *(document.body_start + start for start in starts[1:]), len(document)]
        lengths = (end - start for start, end in zip(edges, edges[1:], strict=False))
        token_spans.append(tuple(chain.from_iterable(repeat(first + k, n) for k, n in enumerate(lengths))))
        characters.extend(zip(begins, [*begins[1:], document.kept[1]], strict=True))
    return Pieces(tuple(token_spans), tuple(document_spans), tuple(characters))


def sentence_ranges(text: str) -> list[CharacterRange]:
    """Cut a text after sentence ends and line breaks, but not after an initial or a usual abbreviation.

    Args:
        text: Any text.

    Returns:
        Ranges that cover the whole text in order. None is blank unless the whole text is: white space
        belongs to the sentence before it, at the very beginning to the one after it.

    Example:
        >>> sentence_ranges("One. Two!")
        [(0, 5), (5, 9)]
    """
    ranges: list[CharacterRange] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if not text[start : match.end()].isspace() and not _is_abbreviation(text, match):
            ranges.append((start, match.end()))
            start = match.end()
    if text[start:].isspace() and ranges:
        ranges[-1] = (ranges[-1][0], len(text))
    elif start < len(text):
        ranges.append((start, len(text)))
    return ranges


def _is_abbreviation(text: str, end: re.Match[str]) -> bool:
    known = _ABBREVIATED.search(text, max(0, end.start() - 12), end.start() + 2)
    return known is not None and "\n" not in end.group()


def _cuts(document: DocumentTokens, by: Segmentation, window: int) -> tuple[list[int], list[int]]:
    """Where pieces begin: first tokens as indices in the body, and first characters of the text.

    Both ascend from 0. A token that covers the space before a sentence as well as its first letters
    belongs to the sentence.
    """
    if by == "document" or not len(document.body):
        return [0], [0]
    offsets = document.body.offsets
    if by == "window":
        wanted = [(index, offsets[index][0]) for index in range(0, len(document.body), window)]
    else:
        ranges = sentence_ranges(document.text) if by == "sentence" else _checked(by, document.text)
        ends = [end for _, end in offsets]
        wanted = [(bisect_right(ends, start), start) for start, _ in ranges]
    starts, begins = [0], [0]
    for index, begin in wanted:
        moved = index
        while moved < len(offsets) and not document.body.is_character_edge(moved):
            moved += 1
        if starts[-1] < moved < len(offsets):
            starts.append(moved)
            begins.append(begin if moved == index else offsets[moved][0])
    return starts, begins


def _checked(by: Callable[[str], Sequence[CharacterRange]], text: str) -> list[CharacterRange]:
    try:
        ranges = [(int(start), int(end)) for start, end in by(text)]
    except (TypeError, ValueError) as error:
        raise ScoringError(f"pieces must return pairs (start, end) of characters: {error}") from error
    last = 0
    for start, end in ranges:
        if not last <= start <= end <= len(text):
            raise ScoringError(
                f"pieces returned the range {(start, end)} for a text of {len(text)} characters; ranges must lie in "
                "the text, in order and without overlap"
            )
        last = end
    return ranges
