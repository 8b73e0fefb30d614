r"""The prompt as segments of token ids: prefix | documents | question | target.

Segments::

prefix      chat template up to the user turn, system text, introduction    shared, encoded once
document    "Title: {title}\n{text}\n\n"                                    each encoded on its own
question    instruction and query, and for an answer the end of the turn    read after all documents
target      the text whose loss is read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradrerank.errors import ContextOverflowError, InvalidArgumentError, InvalidTypeError, UnsupportedModelError
from gradrerank.lm.tokens import ContentTokenizer, Encoding
from gradrerank.validation import is_blank

_SEPARATOR = "\n\n"
# Two plain words that no template alters; they mark where the documents go.
_DOCUMENTS_HERE = "GRADRERANKDOCUMENTSHERE"
_SYSTEM_HERE = "GRADRERANKSYSTEMHERE"


@dataclass(frozen=True, slots=True)
class PromptTexts:
    r"""The words around the documents.

    Args:
        system: The system message.
        introduction: Opens the user turn, before the documents.
        question: Stands between the documents and the query where an answer follows.
        query: Stands between the documents and the query where the query itself is the target. It is read
            again for every query and every document, so a short one is quicker.

    Example:
        >>> PromptTexts(system="Answer from the laws below.").introduction
        'Here are some documents.\n'
    """

    system: str = "You answer questions using documents."
    introduction: str = "Here are some documents.\n"
    question: str = "Using the documents, answer this question in a few words.\nQuestion:"
    query: str = "Question:"


@dataclass(frozen=True, slots=True)
class DocumentTokens:
    """A document as the model reads it.

    Args:
        text: The whole text, as the caller wrote it.
        title: The title, or None.
        ids: Token ids of title line, text (as far as it is read) and separator.
        body: Encoding of that part of the text that is read.
        body_start: Index in ids of the first token of the text.
        truncated: Whether part of the text or the title is not read.
        kept: Characters ``(start, end)`` of the text that are read.
        called: What other documents call it, where that may be something else than the title; else None.
        own: Characters ``(start, end)`` of the text that its author wrote, where a framework set more around them.
    """

    text: str
    title: str | None
    ids: tuple[int, ...]
    body: Encoding
    body_start: int
    truncated: bool
    kept: tuple[int, int]
    called: str | None = None
    own: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What the model reads after the documents.

    Args:
        question: Token ids before the target.
        target: Token ids whose loss is read; at least one.
    """

    question: tuple[int, ...]
    target: tuple[int, ...]

    def __len__(self) -> int:
        """Number of tokens that pass through the model: the last one is predicted, never read."""
        return len(self.question) + len(self.target) - 1


class PromptLayout:
    """Turns documents, query and target into segments for one model.

    Args:
        tokenizer: The model's private tokenizer.
        texts: The words around the documents.
        name: Name of the model, for error messages.
        use_chat_template: None uses the chat template where there is one; False never does.

    Raises:
        InvalidArgumentError: When a text that must separate two parts is blank.
        UnsupportedModelError: When the chat template cannot be rendered.
    """

    def __init__(
        self,
        tokenizer: ContentTokenizer,
        texts: PromptTexts | None = None,
        *,
        name: str,
        use_chat_template: bool | None = None,
    ) -> None:
        if texts is not None and not isinstance(texts, PromptTexts):
            raise InvalidTypeError(f"prompt must be PromptTexts or None, got {type(texts).__name__}")
        self.texts = texts or PromptTexts()
        for part in ("introduction", "question", "query"):
            if is_blank(getattr(self.texts, part)):
                raise InvalidArgumentError(f"prompt.{part} must hold some text, got {getattr(self.texts, part)!r}")
        self._tokenizer = tokenizer
        self._name = name
        self._templated = tokenizer.has_chat_template if use_chat_template is None else use_chat_template
        head, tail = self._chat_frame() if self._templated else (f"{self.texts.system}\n\n", "\nAnswer:")
        self.prefix = self._prefix_ids(head)
        self.tail = tokenizer.template(tail)
        self._separator = tokenizer.content([_SEPARATOR])[0].ids
        self._question, self._query = (e.ids for e in tokenizer.content([self.texts.question, self.texts.query]))

    def documents(
        self, documents: Sequence[tuple[str | None, str]], *, max_tokens: int | None = None
    ) -> list[DocumentTokens]:
        """Encode documents, each on its own.

        Args:
            documents: n pairs of title (or None) and text.
            max_tokens: Tokens of a document that are read at most; the cut is made between two
                characters. None reads all of it.

        Returns:
            n documents as tokens.
        """
        headers = self._tokenizer.content([f"Title: {title}\n" if title else "" for title, _ in documents])
        bodies = self._tokenizer.content([text for _, text in documents])
        return [
            self._document(title, text, header.ids, body, max_tokens)
            for (title, text), header, body in zip(documents, headers, bodies, strict=True)
        ]

    def query_continuation(self, query: str) -> Continuation:
        """The query itself as target."""
        return Continuation(self._query, self._tokenizer.content([" " + query])[0].ids)

    def answer_continuation(self, query: str, answer: str) -> Continuation:
        """An answer as target, after instruction, query and the start of the assistant's turn."""
        asked = self._question + self._tokenizer.content([" " + query])[0].ids + self.tail
        return Continuation(asked, self._tokenizer.content([self.spoken(answer)])[0].ids)

    def spoken(self, answer: str) -> str:
        """An answer as it stands in the prompt."""
        # A chat turn begins right after its header; a plain "Answer:" is followed by a space.
        return answer if self._templated else " " + answer.lstrip()

    def ordinary_prompt(self, query: str, documents: Sequence[DocumentTokens], *, limit: int) -> tuple[int, ...]:
        """One ordinary prompt, documents one after the other, as a user's generator sees it.

        Args:
            query: The query.
            documents: Documents in the order in which they stand; as many as fit are used.
            limit: Most tokens of the prompt.

        Returns:
            Token ids, at most ``limit``.

        Raises:
            ContextOverflowError: When there are documents and not even the first one fits.
        """
        asked = self._question + self._tokenizer.content([" " + query])[0].ids + self.tail
        frame = len(self.prefix) + len(asked)
        ids = list(self.prefix)
        for index, document in enumerate(documents):
            if len(ids) + len(document) + len(asked) > limit:
                if index == 0:
                    raise ContextOverflowError(
                        f"not even one document fits the prompt: {frame} tokens of template and query and "
                        f"{len(document)} of the first document are more than the limit of {limit}"
                    )
                break
            ids.extend(document.ids)
        return tuple(ids) + asked

    def _document(
        self, title: str | None, text: str, header: tuple[int, ...], body: Encoding, max_tokens: int | None
    ) -> DocumentTokens:
        length, cut_header = len(body), header
        if max_tokens is not None:
            room = max(max_tokens - len(self._separator), 2)
            # A title may take half of the room at most: the text is what is ranked.
            cut_header = header[: room // 2]
            length = min(length, room - len(cut_header))
        while not body.is_character_edge(length):
            length -= 1
        read = Encoding(body.ids[:length], body.offsets[:length])
        truncated = length < len(body) or len(cut_header) < len(header)
        kept = (0, len(text) if length == len(body) else (read.offsets[-1][1] if length else 0))
        ids = cut_header + read.ids + self._separator
        return DocumentTokens(text, title, ids, read, len(cut_header), truncated, kept)

    def _prefix_ids(self, head: str) -> tuple[int, ...]:
        """Ids of the prefix with exactly one BOS, whoever wrote it: the template or the tokenizer."""
        leading = self._tokenizer.leading_ids()
        ids = self._tokenizer.template(head + self.texts.introduction)
        bos = self._tokenizer.bos_token
        if leading and not (bos and head.startswith(bos)):
            ids = leading + ids
        return ids

    def _chat_frame(self) -> tuple[str, str]:
        """The rendered template before and after the user's own text."""
        system = {"role": "system", "content": _SYSTEM_HERE}
        refusal: Exception | None = None
        try:
            rendered = self._tokenizer.render([system, {"role": "user", "content": _DOCUMENTS_HERE}])
        except Exception as error:  # noqa: BLE001 - a template raises whatever its author wrote
            rendered, refusal = "", error
        if _SYSTEM_HERE not in rendered:
            # Refused or dropped without a word: the system text opens the user turn instead.
            rendered = self._render_without_system(refusal)
            rendered = rendered.replace(_DOCUMENTS_HERE, f"{_SYSTEM_HERE}\n\n{_DOCUMENTS_HERE}")
        if rendered.count(_DOCUMENTS_HERE) != 1:
            raise UnsupportedModelError(
                f"{self._name}: the chat template shows the user's text {rendered.count(_DOCUMENTS_HERE)} times "
                "instead of once; pass use_chat_template=False for a plain prompt"
            )
        head, tail = rendered.replace(_SYSTEM_HERE, self.texts.system).split(_DOCUMENTS_HERE)
        return head, tail

    def _render_without_system(self, cause: Exception | None) -> str:
        try:
            return self._tokenizer.render([{"role": "user", "content": _DOCUMENTS_HERE}])
        except Exception as error:
            raise UnsupportedModelError(
                f"{self._name}: the chat template cannot be rendered ({cause or error}); "
                "pass use_chat_template=False for a plain prompt"
            ) from error
