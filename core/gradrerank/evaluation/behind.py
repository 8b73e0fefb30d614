"""One ordinary prompt that the plain model reads once, to write behind it and to weigh targets behind it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from gradrerank.lm.generator import Generator


class BehindPrompt:
    """What the plain model makes of one prompt.

    A prompt that holds documents is long, and what is written or weighed behind it short: the prompt passes
    through the model when this is made, and never again.

    Args:
        generator: The model.
        prompt: Token ids, at least one.

    Raises:
        ContextOverflowError: When there is no memory for the prompt.

    Example:
        >>> behind = BehindPrompt(generator, layout.ordinary_prompt(query, documents, limit=2048))  # doctest: +SKIP
        >>> behind.write(max_new_tokens=16)                                                         # doctest: +SKIP
        'the River Rhine'
    """

    def __init__(self, generator: Generator, prompt: Sequence[int]) -> None:
        from gradrerank.lm.retrying import naming_lack_of_memory

        self._generator = generator
        with generator.exact_mode(grad=False), naming_lack_of_memory(f"a prompt of {len(prompt)} tokens"):
            read = self._pass(prompt, logits_to_keep=1)
        self._logits: Tensor = read.logits[0]
        self._cache = read[_cache_name(generator)]

    def write(self, max_new_tokens: int) -> str:
        """Write a line, greedily.

        Args:
            max_new_tokens: Most tokens of the line.

        Returns:
            The first line that is not empty, up to the model's end of text; may be empty when there is none.
        """
        decode, ends = self._generator.tokenizer.decode, _ends(self._generator)
        written: list[int] = []
        with self._generator.exact_mode(grad=False):
            cache, logits = deepcopy(self._cache), self._logits
            for _ in range(max_new_tokens):
                if written:
                    logits = self._pass(written[-1:], cache).logits[0]
                token = int(logits[-1].argmax())
                if token in ends:
                    break
                written.append(token)
                # An empty line before the answer is none.
                if "\n" in decode(written).lstrip():
                    break
        return decode(written).strip().partition("\n")[0].strip()

    def losses(self, target: Sequence[int]) -> Tensor:
        """Loss of every token of a target.

        Args:
            target: Token ids, at least one.

        Returns:
            [T] negative log-likelihoods in nats.
        """
        import torch
        from torch.nn import functional

        with self._generator.exact_mode(grad=False):
            logits = self._logits
            if len(target) > 1:
                logits = torch.cat([logits, self._pass(target[:-1], deepcopy(self._cache)).logits[0]])
            labels = torch.tensor(target, device=self._generator.device)
            return functional.cross_entropy(logits.to(self._generator.engine.wide), labels, reduction="none")

    def _pass(self, ids: Sequence[int], cache: Any = None, **options: Any) -> Any:
        """Read tokens behind a cache, which grows by them."""
        import torch

        row = torch.tensor([list(ids)], device=self._generator.device)
        known = {} if cache is None else {_cache_name(self._generator): cache}
        return self._generator.plain(row, use_cache=True, **known, **options)


def _cache_name(generator: Generator) -> str:
    """What this release of transformers calls the cache that a model takes and gives."""
    taken = inspect.signature(generator.plain.forward).parameters
    return "cache" if "cache" in taken else "past_key_values"


def _ends(generator: Generator) -> set[int]:
    """The tokens that end a text."""
    own = generator.plain.generation_config
    end = None if own is None else own.eos_token_id
    return set() if end is None else {end} if isinstance(end, int) else set(end)
