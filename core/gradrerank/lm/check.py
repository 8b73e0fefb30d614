"""Whether attention can be gated in a model: tried, not guessed from its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradrerank.errors import UnsupportedModelError

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator

# Largest difference of a logit, relative to the largest logit, that rounding explains.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


def check_gates(generator: Generator) -> None:
    """Compare the gated reading of one short prompt with the model's own.

    With a single document and all gates at 1, prefix, document and question read apart are the
    ordinary prompt, so both must give the same logits. Where they do not, something in the model
    (another kind of layer, positions counted in another way) escapes the gates.

    Args:
        generator: The generator under construction.

    Raises:
        UnsupportedModelError: With the reason.
    """
    try:
        difference = _difference(generator)
    except Exception as error:
        raise UnsupportedModelError(
            f"{generator.name}: attention cannot be gated in {type(generator.plain).__name__}: {error}"
        ) from error
    if not difference <= _TOLERANCE.get(generator.dtype, 1e-1):
        raise UnsupportedModelError(
            f"{generator.name}: attention cannot be gated in {type(generator.plain).__name__}: documents read apart "
            f"give other logits than the ordinary prompt (relative difference {difference:.2g})"
        )


def _difference(generator: Generator) -> float:
    """Largest difference of the logits that predict a short answer, relative to the largest logit."""
    layout = generator.layout
    document = layout.documents([("A title", "A short text.")])[0]
    continuation = layout.answer_continuation("Is it short?", "Yes, it is.")
    new = continuation.question + continuation.target[:-1]
    with generator.exact_mode(grad=False):
        ordinary = torch.tensor([layout.prefix + document.ids + new], device=generator.device)
        expected = (
            generator.plain(input_ids=ordinary, use_cache=False, logits_to_keep=len(continuation.target))
            .logits[0]
            .float()
        )
        memory = generator.reader.assemble(generator.reader.encode([document.ids]))
        found = generator.logits(memory, continuation).float()
        return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
