"""Text to token ids, with two promises: no neighbour and no control token.

Every piece of a prompt is encoded on its own and the ids are joined, so that the ids of a document
never depend on what stands beside it. Text that comes from a caller can never turn into a control
token, whatever markers it contains.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradrerank.errors import UnsupportedModelError
from gradrerank.lm.recent import RecentEncodings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids of one text and the characters that each of them covers.

    Args:
        ids: Token ids, length n.
        offsets: For each token the characters ``(start, end)`` of the text, length n. Several
            tokens that share one character have the same offsets.
    """

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    def is_character_edge(self, index: int) -> bool:
        """Whether a cut before token ``index`` falls between two characters."""
        return index in (0, len(self.ids)) or self.offsets[index][0] >= self.offsets[index - 1][1]


class ContentTokenizer:
    """A private copy of a fast tokenizer that several threads can share.

    Args:
        tokenizer: A fast tokenizer. It is copied, never changed.
        name: Name of the model, for error messages.
        vocabulary: Number of rows of the model's input embedding.

    Raises:
        UnsupportedModelError: When the tokenizer is not a fast one, since only those say which
            characters a token covers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str, vocabulary: int) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UnsupportedModelError(
                f"{name}: {type(tokenizer).__name__} is not a fast tokenizer and cannot map tokens to characters; "
                "load it with AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        self._tokenizer: Any = copy.deepcopy(tokenizer)
        self._tokenizer.backend_tokenizer.no_truncation()
        self._tokenizer.backend_tokenizer.no_padding()
        self._lock = threading.Lock()
        self._recent = RecentEncodings()
        self._name = name
        self._vocabulary = vocabulary
        self.control_ids = _control_ids(self._tokenizer)

    def content(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode texts that come from a caller.

        Args:
            texts: n texts; markers such as ``<|im_end|>`` in them stay plain text.

        Returns:
            n encodings, none of which holds a control id.

        Raises:
            UnsupportedModelError: When the tokenizer gives an id that the model has no row for, or
                when a single character of the text *is* a control token.
        """
        texts = [_LONE_SURROGATE.sub("\ufffd", text) for text in texts]
        found = self._recent.find(texts)
        missing = list(dict.fromkeys(text for text in texts if text not in found))
        for text, encoding in zip(missing, self._encode(missing), strict=True):
            safe = self.control_ids.isdisjoint(encoding.ids)
            found[text] = encoding if safe else self._without_control(text, encoding)
            self._check_range(found[text].ids)
        self._recent.keep({text: found[text] for text in missing})
        return [found[text] for text in texts]

    def template(self, text: str) -> tuple[int, ...]:
        """Encode a piece of our own prompt, in which markers are meant.

        Args:
            text: A piece of the rendered chat template.

        Returns:
            Its token ids, with nothing added.
        """
        with self._lock:
            ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        self._check_range(ids)
        return tuple(ids)

    def leading_ids(self) -> tuple[int, ...]:
        """The ids that the tokenizer itself puts before a text, usually none or one BOS."""
        with self._lock:
            plain = self._tokenizer("a", add_special_tokens=False)["input_ids"]
            full = self._tokenizer("a", add_special_tokens=True)["input_ids"]
        starts = range(len(full) - len(plain) + 1)
        start = next((i for i in starts if full[i : i + len(plain)] == plain), 0)
        return tuple(full[:start])

    def render(self, messages: list[dict[str, str]]) -> str:
        """Render messages by the chat template, up to where the assistant begins to write."""
        with self._lock:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without control tokens."""
        with self._lock:
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer brings a chat template."""
        return bool(self._tokenizer.chat_template)

    @property
    def bos_token(self) -> str | None:
        """The text of the BOS token, or None."""
        token: str | None = self._tokenizer.bos_token
        return token

    @property
    def model_max_length(self) -> int:
        """The tokenizer's own length limit; a huge number when it has none."""
        return int(self._tokenizer.model_max_length)

    def _encode(self, texts: list[str]) -> list[Encoding]:
        if not texts:
            return []
        with self._lock:
            # split_special_tokens keeps markers plain; it is set on every call because it is a
            # state of the tokenizer, which `template` switches off again.
            batch = self._tokenizer(
                texts, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
            )
        offsets = [tuple((int(a), int(b)) for a, b in row) for row in batch["offset_mapping"]]
        return [Encoding(tuple(ids), spans) for ids, spans in zip(batch["input_ids"], offsets, strict=True)]

    def _without_control(self, text: str, encoding: Encoding) -> Encoding:
        """Encode again with a cut inside every marker that still became a control id.

        Markers that are added but not special escape ``split_special_tokens``. A cut after the first
        character of such a marker makes it unrecognisable and moves no offset.
        """
        at = next(i for i, token in enumerate(encoding.ids) if token in self.control_ids)
        start, end = encoding.offsets[at]
        if end - start < 2:
            raise UnsupportedModelError(
                f"{self._name}: the tokenizer turns the plain text {text[start:end]!r} into the control token "
                f"{encoding.ids[at]}, which a document could abuse"
            )
        cut = start + 1
        parts = []
        for piece, shift in ((text[:cut], 0), (text[cut:], cut)):
            part = self._encode([piece])[0]
            if not self.control_ids.isdisjoint(part.ids):
                part = self._without_control(piece, part)
            parts.append(Encoding(part.ids, tuple((a + shift, b + shift) for a, b in part.offsets)))
        return Encoding(parts[0].ids + parts[1].ids, parts[0].offsets + parts[1].offsets)

    def _check_range(self, ids: Sequence[int]) -> None:
        if ids and max(ids) >= self._vocabulary:
            raise UnsupportedModelError(
                f"{self._name}: the tokenizer gave id {max(ids)} but the model embeds only {self._vocabulary} tokens; "
                "tokenizer and model do not belong together, or model.resize_token_embeddings was not called"
            )


def _control_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that content must never produce: every added or special token.

    The unknown token is content where it has no other role: it stands for a character that the
    vocabulary lacks. So are added tokens of nothing but space, which some families have for line breaks
    in a row (Gemma): no text could be read without them, and they tell the model nothing else.
    """
    added = tokenizer.added_tokens_decoder
    space = {token for token, text in added.items() if not text.special and not text.content.strip()}
    control = set(added) - space | set(tokenizer.all_special_ids)
    roles = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id not in roles:
        control.discard(tokenizer.unk_token_id)
    return frozenset(control)
