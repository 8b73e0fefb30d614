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
_LIMITS = ("max_position_embeddings", "attention_chunk_size", "keep_window_size")
_ORIGINAL = "original_max_position_embeddings"


def context_limit(config: PretrainedConfig, tokenizer_limit: int, user_limit: int | None) -> int:
    """Most tokens of a prompt: the smallest of the limits that are set.

    Documents are read apart, so nothing may depend on how long the whole prompt is. Rotations that do
    (dynamic, longrope) are the same up to the length that they were made for, and attention in chunks
    or over chosen keys is ordinary attention up to their size: those lengths are limits here.

    Args:
        config: The model's configuration.
        tokenizer_limit: ``model_max_length`` of the tokenizer; ignored when it is a placeholder.
        user_limit: The caller's own limit, or None.

    Returns:
        Number of tokens.
    """
    own: Any = config.get_text_config()
    rope: Any = getattr(own, "rope_parameters", None) or getattr(own, "rope_scaling", None) or {}
    found = [getattr(own, name, None) for name in _LIMITS] + [tokenizer_limit, user_limit]
    if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
        found += [rope.get(_ORIGINAL), getattr(own, _ORIGINAL, None)]
    if getattr(own, "attn_temperature_tuning", False):
        found.append(getattr(own, "floor_scale", None))
    limits = [limit for limit in found if limit is not None and 0 < limit < _SANE]
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
