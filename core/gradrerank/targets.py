"""What the loss is computed on: the query, a draft, or a reference answer.

| target      | text whose loss is read                                    | when                          |
|-------------|------------------------------------------------------------|-------------------------------|
| `query`     | the query itself, given the documents (query likelihood)   | online, cheapest: no draft    |
| `draft`     | an answer that a generator writes first                    | online, an answer is at hand  |
| `reference` | an answer that the caller gives                            | evaluation, attribution       |
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradrerank.errors import InvalidArgumentError, InvalidTypeError, NoSignalWarning, ScoringError
from gradrerank.validation import is_blank

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.prompt import Continuation, DocumentTokens

TARGETS = ("query", "draft", "reference")

DraftWriter = Callable[[str, list[str]], str]
"""Writes a draft answer from the query and the texts of a few documents."""


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved target.

    Args:
        kind: ``"query"``, ``"draft"`` or ``"reference"``.
        text: The text whose loss is read.
        continuation: Question and target as tokens.
    """

    kind: str
    text: str
    continuation: Continuation


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts are written.

    Args:
        writer: The caller's own LLM; None lets the scoring model write.
        max_documents: Documents in the prompt of a draft, best first by retrieval order.
        max_new_tokens: Most tokens of a draft of the scoring model.
    """

    writer: DraftWriter | None = None
    max_documents: int = 5
    max_new_tokens: int = 32


def check_reference(target: str, reference: str | None) -> None:
    """Refuse combinations of target and reference that cannot be meant.

    Args:
        target: Kind of target.
        reference: The answer given by the caller, or None.

    Raises:
        InvalidArgumentError: For ``target="reference"`` without a reference, for a blank one, and for
            a reference that no target would read.
        InvalidTypeError: When the reference is not a str.
    """
    if target == "reference" and reference is None:
        raise InvalidArgumentError("target='reference' needs reference=..., the answer whose loss is read")
    if reference is None:
        return
    if not isinstance(reference, str):
        raise InvalidTypeError(f"reference must be a str or None, got {type(reference).__name__}")
    if target != "reference":
        raise InvalidArgumentError(f"reference is read by target='reference' only, but target is {target!r}")
    if is_blank(reference):
        raise InvalidArgumentError(f"reference must not be blank, got {reference!r}")


def resolve_target(
    kind: str,
    query: str,
    *,
    reference: str | None,
    generator: Generator,
    documents: Sequence[DocumentTokens],
    drafting: Drafting,
    tokens: Counter[str],
) -> Target:
    """Find the text whose loss is read, writing a draft where one is asked for.

    A blank draft says nothing about the documents; the query then takes its place, with a warning,
    and the result says so.

    Args:
        kind: Kind of target, already checked.
        query: The query.
        reference: The answer given by the caller, already checked.
        generator: The scoring model.
        documents: Candidates in retrieval order.
        drafting: How drafts are written.
        tokens: Counts the tokens that a draft costs.

    Returns:
        The target.

    Raises:
        ScoringError: When the caller's writer returns something that is not a str.
    """
    if kind == "reference" and reference is not None:
        return Target(kind, reference, generator.layout.answer_continuation(query, reference))
    if kind == "draft":
        draft = _write(query, generator, documents[: drafting.max_documents], drafting, tokens)
        if not is_blank(draft):
            return Target(kind, draft, generator.layout.answer_continuation(query, draft))
        warnings.warn("the draft is blank; the query is the target instead", NoSignalWarning, stacklevel=2)
    return Target("query", query, generator.layout.query_continuation(query))


def _write(
    query: str,
    generator: Generator,
    documents: Sequence[DocumentTokens],
    drafting: Drafting,
    tokens: Counter[str],
) -> str:
    if drafting.writer is None:
        return generator.write(query, documents, max_new_tokens=drafting.max_new_tokens, tokens=tokens)
    try:
        draft = drafting.writer(query, [d.text for d in documents])
    except Exception as error:
        error.add_note(f"while draft_writer wrote a draft for the query {query[:60]!r}")
        raise
    if not isinstance(draft, str):
        raise ScoringError(f"draft_writer must return a str, got {type(draft).__name__}")
    return draft
