"""Wordings of the prompt that a result should not hang on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradrerank.lm.prompt import PromptTexts

# By name the arguments of GradReranker that make the prompt: the default, one without a chat template, and one
# whose every word is another.
WORDINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "plain": {"use_chat_template": False},
    "passages": {
        "prompt": PromptTexts(
            system="You are a helpful assistant.",
            introduction="Passages:\n",
            question="Answer the question with the passages above.\nQuestion:",
            query="A question that these passages answer:",
        )
    },
}
