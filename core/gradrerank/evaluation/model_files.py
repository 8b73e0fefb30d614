"""A model for a measurement, by name, folder or GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def model_at(
    name: str | None, dtype: str | None = None, device: str | None = None
) -> tuple[str | None | tuple[PreTrainedModel, PreTrainedTokenizerBase], dict[str, Any]]:
    """What to give to :class:`~gradrerank.GradReranker` for a model, and the options that go with it.

    Args:
        name: A hub name or folder, which stays as it is, or a file that ends in ``.gguf``, whose weights are
            dequantised; None for the embedded model.
        dtype: Type of the weights; None takes what the package takes, and float32 for a file.
        device: Where it is placed; None is the CPU.

    Returns:
        The ``model`` and further arguments.

    Raises:
        ModelLoadError: When the file is no model that can be read.

    Example:
        >>> model_at("gpt2", "bfloat16")
        ('gpt2', {'dtype': 'bfloat16', 'device': None})
    """
    if name is None or not name.endswith(".gguf"):
        return name, {"dtype": dtype, "device": device}
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gradrerank.errors import ModelLoadError

    path = Path(name)
    try:
        # A folder on this machine, which is no download that a revision could pin.
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)  # nosec B615
        tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)  # nosec B615
        return (model.to(device or "cpu", getattr(torch, dtype or "float32")), tokenizer), {}
    except Exception as error:
        raise ModelLoadError(f"model {name!r} could not be loaded: {error}") from error
