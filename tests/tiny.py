"""Tiny random models of several families, with byte-level tokenizers, built in a moment and offline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CORPUS = [
    "The ferry leaves the harbour at nine and the tram runs every hour over the hill.",
    "Kettles boil water at one hundred degrees. Who wrote the book about the red house?",
    "Title: Documents answer this question in a few words. Question: Here are some documents.",
    "You answer questions using documents. system user assistant the hi ll is green, the hill is green",
]

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "attention_dropout": 0.0,
}


def tiny_tokenizer(*, chat: bool = True, pad: bool = True, added: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a few hundred merges."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<pad>" if pad else None,
    )
    if added:
        tokenizer.add_tokens(list(added))
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return tokenizer


def tiny_config(family: str, vocabulary: int) -> Any:
    """A configuration of a family: llama, mistral (sliding window), qwen2, gemma3, gpt2 or opt."""
    shared = {**COMMON, "vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    if family == "gpt2":
        return GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=3, n_head=4, n_positions=512, bos_token_id=1, eos_token_id=2
        )
    if family == "opt":
        if int(transformers.__version__.partition(".")[0]) < 5:
            pytest.skip("OPT of transformers 4 does not take positions, and is refused")
        return OPTConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=512,
            word_embed_proj_dim=32,
            pad_token_id=3,
        )
    if family == "mistral":
        return MistralConfig(**shared, sliding_window=60)
    if family == "gemma3":
        return Gemma3TextConfig(**shared, head_dim=8, sliding_window=60, query_pre_attn_scalar=8)
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[family](**shared)


def tiny_model(family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model whose attention is far from uniform, so that documents matter."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, len(tiny_tokenizer())))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    torch.set_rng_state(state)
    return model.to(dtype).eval()


def tiny(family: str = "llama", **options: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A ``(model, tokenizer)`` pair."""
    return tiny_model(family, **options), tiny_tokenizer()


DOCUMENTS = [
    "The ferry leaves the harbour at nine.",
    "Kettles boil water at one hundred degrees, unless the kettle stands on a hill.",
    "The tram runs every hour over the green hill. Nobody knows why it does.",
    "The red house is old.",
    "A book about the ferry and the tram was written in the red house by the harbour.",
]
QUERY = "When does the ferry leave the harbour?"
