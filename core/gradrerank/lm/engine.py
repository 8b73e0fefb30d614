"""The frozen model itself: its private views, and one forward pass through them."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradrerank.lm import gates as gated
from gradrerank.lm.few_rows import slice_few_rows
from gradrerank.lm.fingerprint import Fingerprint
from gradrerank.lm.gates import EverythingRecorded, Reading
from gradrerank.lm.view import private_view

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Engine:
    """A model behind two private views: one as it is, one with gated attention.

    Args:
        model: A causal LM of transformers; left exactly as it is.
        name: Name for messages.
        lasting: Whether names of caches must mean the same elsewhere; see :class:`Fingerprint`.
    """

    def __init__(self, model: PreTrainedModel, name: str, *, lasting: bool) -> None:
        gated.register()
        self.name = name
        self.plain = private_view(model)
        self._gated = private_view(model, attention=gated.ATTENTION_NAME)
        slice_few_rows(self._gated)
        self._fingerprint = Fingerprint(self.plain, lasting=lasting)

    @property
    def device(self) -> torch.device:
        """Device of the model's input embedding."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the model's input embedding."""
        return self.embedding.dtype

    @property
    def wide(self) -> torch.dtype:
        """The type in which losses and gates are computed: float32, or the model's own if wider."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden] weight of the input embedding."""
        weight: Tensor = self.plain.get_input_embeddings().weight  # type: ignore[assignment]
        return weight

    @property
    def n_heads(self) -> int:
        """Number of query heads of each layer."""
        heads: int = self.plain.config.get_text_config().num_attention_heads
        return heads

    def fingerprint(self) -> str:
        """Names everything about the model that changes the numbers in a cache."""
        return self._fingerprint.current()

    def exact_mode(self, *, grad: bool) -> AbstractContextManager[Any]:
        """Gradient mode for one computation, whatever mode the caller's thread is in.

        Inference mode must be left, since its tensors cannot be saved for a backward pass, and
        autocast would make the numbers depend on the caller.
        """
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad() if grad else torch.no_grad())
        stack.enter_context(torch.autocast(self.device.type, enabled=False))
        return stack

    def record(self, ids: Tensor, job: Reading) -> None:
        """Read new tokens for their keys and values alone, and stop when the last layer has them.

        Args:
            ids: [rows, T] token ids.
            job: What the attention layers do; afterwards it holds keys and values of every layer.
        """
        base: Any = self._gated.base_model
        with gated.reading(job):
            try:
                base(input_ids=ids, position_ids=job.positions.expand(len(ids), -1), use_cache=False)
            except EverythingRecorded:
                # What the last layer makes of its keys and values is not read by anyone.
                return

    def logits(self, ids: Tensor, job: Reading, keep: Tensor) -> Tensor:
        """Read new tokens and project some positions on the vocabulary.

        Args:
            ids: [rows, T] token ids.
            job: What the attention layers do.
            keep: [K] positions in 0..T-1 to project.

        Returns:
            [rows, K, vocabulary] logits in the model's dtype.
        """
        positions = job.positions.expand(len(ids), -1)
        with gated.reading(job):
            output = self._gated(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep)
        logits: Tensor = output.logits
        return logits
