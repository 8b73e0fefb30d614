"""Whether attention can be gated in a model: tried, not guessed from its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradrerank.errors import GradRerankError, UnsupportedModelError
from gradrerank.lm.gates import Reading

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator

# Largest difference of a logit, relative to the largest logit, between two rows of one batch that must agree.
_EXACT = 1e-3
# Largest difference of a logit, relative to the largest logit, that rounding explains.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


def check_gates(generator: Generator) -> None:
    """Try three things on short prompts that hold in every model whose attention can be gated.

    No layer but attention mixes tokens, so a token that sees itself only does not feel its neighbours:
    convolutions and recurrences do not pass. The model reads from left to right. And with a single
    document and all gates at 1, prefix, document and question read apart are the ordinary prompt, so
    both give the same logits.

    Args:
        generator: The generator under construction.

    Raises:
        UnsupportedModelError: With the reason.
    """
    refused = f"{generator.name}: attention cannot be gated in {type(generator.plain).__name__}: "
    try:
        with generator.exact_mode(grad=False):
            mixing, looking_ahead, difference = _mixing(generator), _looking_ahead(generator), _difference(generator)
    except GradRerankError as error:
        raise UnsupportedModelError(refused + str(error)) from error
    except Exception as error:
        raise UnsupportedModelError(
            f"{refused}a trial run failed with {type(error).__name__}: {error}. It must be a causal language model of "
            "transformers that takes input_ids and position_ids"
        ) from error
    if not mixing <= _EXACT:
        raise UnsupportedModelError(refused + "layers other than attention carry information from token to token")
    if not looking_ahead <= _EXACT:
        raise UnsupportedModelError(refused + "it reads ahead, so it is not a causal language model")
    if not difference <= _TOLERANCE.get(generator.dtype, 1e-1):
        raise UnsupportedModelError(
            f"{refused}documents read apart give other logits than the ordinary prompt (relative difference "
            f"{difference:.2g})"
        )


def _mixing(generator: Generator) -> float:
    """How far the last token's logits depend on the others when it sees itself only."""
    ids = _two_rows(generator, differ_at=slice(0, -1))
    job = Reading(memory=None, positions=torch.arange(ids.shape[1], device=generator.device), alone=True)
    last = generator.engine.logits(ids, job, torch.tensor([ids.shape[1] - 1], device=generator.device))
    if not job.layer:
        raise UnsupportedModelError("its attention does not go through transformers' AttentionInterface")
    return _relative(last[0], last[1])


def _looking_ahead(generator: Generator) -> float:
    """How far the first logits depend on the last token."""
    ids = _two_rows(generator, differ_at=slice(-1, None))
    logits = generator.plain(input_ids=ids, use_cache=False).logits[:, :-1]
    return _relative(logits[0], logits[1])


def _two_rows(generator: Generator, differ_at: slice) -> torch.Tensor:
    """[2, T] ids of a short text, other ids in the second row where they shall differ."""
    text = generator.layout.documents([(None, "The tram runs over the hill.")])[0].ids[:6]
    ids = torch.tensor([text, text], device=generator.device)
    ids[1, differ_at] = ids[0].flip(0)[differ_at] + 1
    return ids


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().max() / one.float().abs().max().clamp(min=1e-6))


def _difference(generator: Generator) -> float:
    """Largest difference of the logits that predict a short answer, relative to the largest logit."""
    layout = generator.layout
    document = layout.documents([("A title", "A short text.")])[0]
    continuation = layout.answer_continuation("Is it short?", "Yes, it is.")
    new = continuation.question + continuation.target[:-1]
    ordinary = torch.tensor([layout.prefix + document.ids + new], device=generator.device)
    expected = generator.plain(input_ids=ordinary, use_cache=False, logits_to_keep=len(continuation.target)).logits[0]
    memory = generator.reader.assemble(generator.reader.encode([document.ids]))
    return _relative(expected, generator.logits(memory, continuation))
