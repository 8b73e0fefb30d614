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
        names: What to call each document in messages; None calls it by its place.

    Example:
        >>> tokens = PromptTokens(["trams run", "hourly"], lambda text: len(text.split()))
        >>> tokens.alone(0), tokens.together([1, 0])
        (2, 3)
    """

    def __init__(
        self,
        texts: Sequence[str],
        count: TokenCounter,
        apart: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._texts = texts
        self._names = [f"{i + 1} of {len(texts)}" for i in range(len(texts))] if names is None else names
        self._count = count
        self._apart = apart
        self._alone: dict[int, int] = {}
        self._separator: int | None = None if apart is None else 0

    def alone(self, index: int) -> int:
        """Tokens of one document with its separator: an estimate of what it adds to others."""
        if self._apart is not None:
            return self._apart[index]
        if index not in self._alone:
            self._alone[index] = counted(self._count, self._texts[index] + DOCUMENT_SEPARATOR, self._called([index]))
        return self._alone[index]

    @property
    def separator(self) -> int:
        """Tokens that :meth:`alone` counts and that the last document does not take."""
        if self._separator is None:
            self._separator = counted(self._count, DOCUMENT_SEPARATOR, f"the separator {DOCUMENT_SEPARATOR!r}")
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
        joined = DOCUMENT_SEPARATOR.join(self._texts[i] for i in indices)
        return max(apart, counted(self._count, joined, self._called(indices)))

    def _called(self, indices: Sequence[int]) -> str:
        """Documents by name, of many only the first."""
        names = ", ".join(self._names[i] for i in indices[:5])
        more = f" and {len(indices) - 5} more" if len(indices) > 5 else ""
        return f"document {names}" if len(indices) == 1 else f"the joined documents {names}{more}"


def counted(count: TokenCounter, text: str, what: str = "a text") -> int:
    """What a counter says of a text, checked.

    Args:
        count: The counter.
        text: The text.
        what: What to call the text in messages.

    Raises:
        ScoringError: When the counter fails, or its answer is not a whole number from 0; the message says of
            which document.
    """
    try:
        number: Any = count(text)
    except Exception as error:
        raise ScoringError(f"token_counter failed for {what}: {type(error).__name__}: {error}") from error
    try:
        plain = -1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        plain = -1
    if plain < 0:
        raise ScoringError(
            f"token_counter must return a whole number >= 0, got {type(number).__name__} {number!r} for {what}, "
            f"{len(text)} characters"
        )
    return plain


def prompt_tokens(
    texts: Sequence[str], counter: TokenCounter | None, generator: Generator, names: Sequence[str] | None = None
) -> PromptTokens:
    """The count of documents by the caller's tokenizer or by that of the scoring model.

    With the scoring model's tokenizer the larger of two numbers counts: of the joined text, and of the
    documents encoded apart, each with its separator, as this package reads them.

    Args:
        texts: n documents as they stand in the prompt, title lines included.
        counter: The caller's own counter, or None.
        generator: The scoring model.
        names: What to call each document in messages; None calls it by its place.
    """
    if counter is not None:
        return PromptTokens(texts, counter, names=names)
    apart = [len(d) for d in generator.layout.documents([(None, text) for text in texts])]
    return PromptTokens(texts, lambda text: len(generator.tokenizer.content([text])[0]), apart)
