"""Which documents name which others: a title of one in the text of another.

What a question does not say itself, a document that it leads to often names: who asks for the birthplace
of the director of a film needs the page of the film and, by its name there, the page of the director.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

# Words; in scripts that set no space between words, or put endings on names, every letter for itself. Marks that
# ``\w`` leaves out belong to the letter before them.
_APART = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(rf"[{_APART}]|(?:(?![{_APART}])[\w{_MARKS}])+")
# Soft hyphens, joiners and spaces of no width, which stand within words.
_UNSEEN = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
# "The Wave (1981 film)" is called "The Wave" in a text.
_ASIDE = re.compile(r"\([^()]*\)$")
# A shorter title of one word is an abbreviation or a number as often as a name.
_LEAST_LETTERS = 3
# A longer title is a sentence, which no text calls anything by.
_MOST_WORDS = 32
# Under this key a branch of the tree of names holds the documents of the name that ends there; no word is empty.
_END = ""

Words = Sequence[str]
Tree = dict[str, Any]


def mentions(titles: Sequence[str | None], texts: Sequence[str]) -> list[list[int]]:
    """For each document the others whose title stands in its text.

    Upper and lower case are told apart for titles of one word alone ("Jaws" is a film, "jaws" are none). An aside
    in brackets at the end of a title is left out. Where several titles begin at one word, the longest is
    meant. A title without a letter, of fewer than three characters in one word, or of more than 32 words names
    nothing; documents of the same title, such as parts of one page, do not name each other.

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
    single: dict[str, list[int]] = {}
    longer: Tree = {}
    for index, name in enumerate(names):
        if len(name) == 1:
            single.setdefault(name[0], []).append(index)
        elif name:
            _branch(longer, name).setdefault(_END, []).append(index)
    if not single and not longer:
        return [[] for _ in texts]
    found = (_named(text, single, longer) for text in texts)
    return [sorted(i for i in named if names[i] != own) for named, own in zip(found, names, strict=True)]


def _name(title: str | None) -> Words:
    """The words that stand for a title in a text; none where it names nothing."""
    title = unicodedata.normalize("NFKC", title or "").strip()
    words = _words(_ASIDE.sub("", title)) or _words(title)
    if len(words) > _MOST_WORDS or not any(letter.isalpha() for word in words for letter in word):
        return []
    if len(words) == 1:
        return words if len(words[0]) >= _LEAST_LETTERS else []
    return _folded(words)


def _branch(tree: Tree, name: Words) -> Tree:
    """Where a name ends in the tree, grown as far as needed."""
    for word in name:
        tree = tree.setdefault(word, {})
    return tree


def _named(text: str, single: Mapping[str, Sequence[int]], longer: Tree) -> set[int]:
    """The documents that a text names: at every word those of the longest name that begins there."""
    words = _words(text)
    folded = _folded(words)
    found: set[int] = set()
    for at, word in enumerate(words):
        found.update(_longest(folded, at, longer) or single.get(word, ()))
    return found


def _longest(words: Words, at: int, tree: Tree) -> Sequence[int]:
    """The documents of the longest name that begins at a word; none where none does."""
    found: Sequence[int] = ()
    for place in range(at, len(words)):
        branch = tree.get(words[place])
        if branch is None:
            break
        tree, found = branch, branch.get(_END, found)
    return found


def _words(text: str) -> Words:
    return _WORD.findall(unicodedata.normalize("NFKC", text).translate(_UNSEEN))


def _folded(words: Words) -> Words:
    """The words in lower case, folded in one go: a call for each takes most of the time otherwise."""
    return "\0".join(words).casefold().split("\0") if words else []
