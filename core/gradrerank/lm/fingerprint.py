"""A name for a model's weights, so that caches of other weights are never taken for its own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Elements of each weight that are hashed one by one, beside its sums.
_SAMPLES = 64


class Fingerprint:
    """The fingerprint of a model, taken again when its weights were changed in place.

    In-place updates are seen by the version counters of the weights, which views share.

    Args:
        model: The model, or a view of it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._taken: tuple[int, str] | None = None

    def current(self) -> str:
        """The fingerprint of the weights as they are now.

        Returns:
            Hexadecimal digits that depend on the configuration, the release of transformers, and for
            every weight on its name, shape, type, sum, norm and a sample of its elements. It is the same
            in every process, and on every device up to the rounding of the sums.
        """
        version = sum(p._version for p in self._model.parameters())
        if self._taken is None or self._taken[0] != version:
            self._taken = (version, self._take())
        return self._taken[1]

    def _take(self) -> str:
        import transformers

        config = self._model.config.to_diff_dict()
        config.pop("_name_or_path", None)
        described = repr((transformers.__version__, sorted(config.items(), key=str)))
        digest = hashlib.blake2b(described.encode(), digest_size=16)
        with torch.inference_mode(False), torch.no_grad():
            for name, weight in self._model.named_parameters():
                flat = weight.detach().flatten()
                sample = flat[:: max(1, len(flat) // _SAMPLES)][:_SAMPLES].cpu().double()
                digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
                digest.update(sample.numpy().tobytes())
                digest.update(f"{float(flat.float().sum()):.4e} {float(flat.float().norm()):.5e}".encode())
        return digest.hexdigest()
