"""How many tokens documents take in a prompt.

A tokenizer is not additive: two texts joined may take more tokens, or fewer, than each on its own.
So what counts is the joined text, in the order in which the documents will stand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gradrerank.documents import DOCUMENT_SEPARATOR
from gradrerank.errors import ScoringError

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator

TokenCounter = Callable[[str], int]
"""Number of tokens of a text, by the tokenizer of the language model that will read it."""


class PromptTokens:
    """Counts the tokens of documents that stand in a prompt.

    Args:
        texts: n documents as they stand in the prompt.
        count: Number of tokens of a text.
        apart: Number of tokens of each document with its separator, where a prompt may also be put
            together from documents that were encoded apart; then the larger number counts. None
            where only the joined text is read.

    Example:
        >>> tokens = PromptTokens(["trams run", "hourly"], lambda text: len(text.split()))
        >>> tokens.alone(0), tokens.together([1, 0])
        (2, 3)
    """

    def __init__(self, texts: Sequence[str], count: TokenCounter, apart: Sequence[int] | None = None) -> None:
        self._texts = texts
        self._count = count
        self._apart = apart
        self._alone: dict[int, int] = {}
        self._separator: int | None = None if apart is None else 0

    def alone(self, index: int) -> int:
        """Tokens of one document with its separator: an estimate of what it adds to others."""
        if self._apart is not None:
            return self._apart[index]
        if index not in self._alone:
            self._alone[index] = counted(self._count, self._texts[index] + DOCUMENT_SEPARATOR)
        return self._alone[index]

    @property
    def separator(self) -> int:
        """Tokens that :meth:`alone` counts and that the last document does not take."""
        if self._separator is None:
            self._separator = counted(self._count, DOCUMENT_SEPARATOR)
        return self._separator

    def together(self, indices: Sequence[int], limit: int | None = None) -> int:
        """Tokens of several documents in the order in which they stand.

        Args:
            indices: The documents, by their position.
            limit: Where they are known to take more, that number may be returned without a closer look.
        """
        if not indices:
            return 0
        apart = 0 if self._apart is None else sum(self._apart[i] for i in indices)
        if limit is not None and apart > limit:
            return apart
        return max(apart, counted(self._count, DOCUMENT_SEPARATOR.join(self._texts[i] for i in indices)))


def counted(count: TokenCounter, text: str) -> int:
    """What a counter says of a text, checked.

    Args:
        count: The counter.
        text: The text.

    Raises:
        ScoringError: When the answer is not a whole number from 0.
    """
    number: Any = count(text)
    try:
        plain = -1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        plain = -1
    if plain < 0:
        raise ScoringError(
            f"token_counter must return a whole number >= 0, got {type(number).__name__} {number!r} for a text of "
            f"{len(text)} characters"
        )
    return plain


def prompt_tokens(texts: Sequence[str], counter: TokenCounter | None, generator: Generator) -> PromptTokens:
    """The count of documents by the caller's tokenizer or by that of the scoring model.

    With the scoring model's tokenizer the larger of two numbers counts: of the joined text, and of the
    documents encoded apart, each with its separator, as this package reads them.

    Args:
        texts: n documents as they stand in the prompt, title lines included.
        counter: The caller's own counter, or None.
        generator: The scoring model.
    """
    if counter is not None:
        return PromptTokens(texts, counter)
    apart = [len(d) for d in generator.layout.documents([(None, text) for text in texts])]
    return PromptTokens(texts, lambda text: len(generator.tokenizer.content([text])[0]), apart)
