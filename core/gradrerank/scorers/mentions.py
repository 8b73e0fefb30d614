"""Which documents name which others: a title of one in the text of another.

What a question does not say itself, a document that it leads to often names: who asks for the birthplace
of the director of a film needs the page of the film and, by its name there, the page of the director.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# Words; in scripts that set no space between words, or put endings on names, every letter for itself. Marks that
# ``\w`` leaves out belong to the letter before them.
_APART = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(rf"[{_APART}]|(?:(?![{_APART}])[\w{_MARKS}])+")
# "The Wave (1981 film)" is called "The Wave" in a text.
_ASIDE = re.compile(r"\s*\([^()]*\)\s*$")
# A shorter title of one word is an abbreviation or a number as often as a name.
_LEAST_LETTERS = 3

Words = tuple[str, ...]


def mentions(titles: Sequence[str | None], texts: Sequence[str]) -> list[list[int]]:
    """For each document the others whose title stands in its text.

    Upper and lower case are told apart for titles of one word alone ("It" is a film, "it" is none). An aside in
    brackets at the end of a title need not be there. Where several titles begin at one word, the longest is
    meant. A title without a letter, or of fewer than three characters in one word, names nothing; documents of
    the same title, such as parts of one page, do not name each other.

    Args:
        titles: n titles; None, or a blank one, is never named.
        texts: n texts.

    Returns:
        For each of the n documents the indices of those it names, ascending.

    Example:
        >>> mentions(["The Wave (film)", "Ada Moss"], ["A film by Ada Moss.", "She was born in Leeds."])
        [[1], []]
    """
    names = [_name(title) for title in titles]
    named: dict[Words, list[int]] = {}
    for index, name in enumerate(names):
        if name:
            named.setdefault(name, []).append(index)
    by_first: dict[str, list[Words]] = {}
    for name in sorted(named, key=len, reverse=True):
        by_first.setdefault(name[0], []).append(name)
    return [
        sorted({index for name in _found(text, by_first) - {own} for index in named[name]})
        for own, text in zip(names, texts, strict=True)
    ]


def _name(title: str | None) -> Words:
    """The words that stand for a title in a text; none where it names nothing."""
    words = _words(_ASIDE.sub("", title or "")) or _words(title or "")
    if not any(letter.isalpha() for word in words for letter in word):
        return ()
    if len(words) == 1:
        return words if len(words[0]) >= _LEAST_LETTERS else ()
    return _folded(words)


def _found(text: str, by_first: dict[str, list[Words]]) -> set[Words]:
    """The names in a text, at every word the longest that begins there."""
    words = _words(text)
    folded = _folded(words)
    found: set[Words] = set()
    for at, (word, plain) in enumerate(zip(words, folded, strict=True)):
        for name in by_first.get(plain, ()):
            if len(name) > 1 and folded[at : at + len(name)] == name:
                found.add(name)
                break
        else:
            if (word,) in by_first.get(word, ()):
                found.add((word,))
    return found


def _words(text: str) -> Words:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text)))


def _folded(words: Words) -> Words:
    return tuple(word.casefold() for word in words)
