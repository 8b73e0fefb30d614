"""A name for a model's weights, so that caches of other weights are never taken for its own."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

# Elements of each weight that are looked at in every call, to notice changes that no counter counts.
_SAMPLES = 8


class Fingerprint:
    """The fingerprint of a model, taken again when its weights were changed in place.

    Args:
        model: The model, or a view of it.
        lasting: Whether the name must mean the same to other models and processes, for a store that is
            shared or on disk. It then comes from every byte of the weights, which are read for it once.
            Otherwise it is a random one.
    """

    def __init__(self, model: PreTrainedModel, *, lasting: bool) -> None:
        self._model = model
        self._lasting = lasting
        self._taken: tuple[bytes, str] | None = None
        self._looked_at: dict[int, tuple[Tensor, Tensor]] = {}

    def current(self) -> str:
        """The fingerprint of the weights as they are now.

        In-place updates are seen by the version counters of the weights, which views share, and those
        through ``.data``, which count nothing, by a sample of each weight.

        Returns:
            Hexadecimal digits. Lasting ones depend on the configuration, the releases of torch and
            transformers, and name, shape, type and bytes of every weight.
        """
        state = self._state()
        if self._taken is None or self._taken[0] != state:
            self._taken = (state, self._digest() if self._lasting else uuid.uuid4().hex)
        return self._taken[1]

    def _state(self) -> bytes:
        """Cheap to take, and another one after any usual update."""
        samples, versions = [], []
        looked_at: dict[int, tuple[Tensor, Tensor]] = {}
        with torch.inference_mode(False), torch.no_grad():
            for weight in self._model.parameters():
                place = weight.data_ptr()
                known = self._looked_at.get(place)
                # A view of the same weight shows its numbers of now; another weight may have moved to its place.
                sample = known[1] if known is not None and known[0] is weight else _sample(weight)
                if weight.is_contiguous():
                    looked_at[place] = (weight, sample)
                samples.append(sample.float())
                versions.append(weight._version)
            sampled = torch.cat([sample.to(samples[0].device) for sample in samples]).cpu()
        self._looked_at = looked_at
        return sampled.numpy().tobytes() + repr(versions).encode()

    def _digest(self) -> str:
        import transformers

        config = self._model.config.to_diff_dict()
        config.pop("_name_or_path", None)
        described = repr((torch.__version__, transformers.__version__, sorted(config.items(), key=str)))
        digest = hashlib.sha256(described.encode())
        with torch.inference_mode(False), torch.no_grad():
            for name, weight in self._model.named_parameters():
                digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
                plain = weight.detach().cpu().contiguous().view(-1)
                digest.update(memoryview(plain.view(torch.uint8).numpy()))  # type: ignore[arg-type]
        return digest.hexdigest()


def _sample(weight: Tensor) -> Tensor:
    """Some elements of a weight, a view of it where it is contiguous."""
    flat = weight.detach().view(-1) if weight.is_contiguous() else weight.detach().flatten()
    return flat[:: max(1, len(flat) // _SAMPLES)][:_SAMPLES]
