"""How much fits: tokens of a context, bytes of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
import torch

from gradrerank.errors import ContextOverflowError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Tokenizers without a limit of their own report a huge number.
_SANE = 10_000_000


def context_limit(config: PretrainedConfig, tokenizer_limit: int, user_limit: int | None) -> int:
    """Most tokens of a prompt: the smallest of the limits that are set.

    Args:
        config: The model's configuration; ``max_position_embeddings`` is read where there is one.
        tokenizer_limit: ``model_max_length`` of the tokenizer; ignored when it is a placeholder.
        user_limit: The caller's own limit, or None.

    Returns:
        Number of tokens.
    """
    own: Any = getattr(config.get_text_config(), "max_position_embeddings", None)
    limits = [limit for limit in (own, tokenizer_limit, user_limit) if limit is not None and 0 < limit < _SANE]
    return int(min(limits, default=_SANE))


def check_memory(n_tokens: int, n_documents: int, bytes_per_token: int, device: torch.device) -> None:
    """Refuse documents whose caches cannot fit, before the first of them is read.

    Args:
        n_tokens: Tokens whose caches will be held at once.
        n_documents: Number of documents, for the message.
        bytes_per_token: Bytes of keys and values of one token in all layers.
        device: Where the caches will lie.

    Raises:
        ContextOverflowError: With the sizes and what to do.
    """
    needed, free = n_tokens * bytes_per_token, _free_bytes(device)
    if free is not None and needed > free:
        raise ContextOverflowError(
            f"{n_documents} documents need {needed / 2**30:.1f} GiB of key-value caches and {free / 2**30:.1f} GiB are "
            f"free on {device}: pass fewer documents, docs_per_source, max_document_tokens, or a smaller dtype"
        )


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return None
