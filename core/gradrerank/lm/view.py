"""A private view of a model: its own module tree over the same weights.

Everything that scoring needs to set on a model (evaluation mode, another attention, no gradient for
the weights) is set on the view. The model that the caller holds stays exactly as it was, and may be
trained or used by other threads meanwhile.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def private_view(model: PreTrainedModel, *, attention: str | None = None) -> PreTrainedModel:
    """Copy the module tree and share the storage of all weights.

    Args:
        model: Any model; not changed. Weights that were made inside ``torch.inference_mode`` cannot
            take part in a backward pass, so those are copied once.
        attention: Name of the attention implementation that the view uses; None keeps the model's.

    Returns:
        The view, in evaluation mode, without gradients for its weights.
    """
    with torch.inference_mode(False), torch.no_grad():
        memo: dict[int, Any] = {}
        for parameter in model.parameters():
            memo[id(parameter)] = _frozen(parameter)
        for buffer in model.buffers():
            memo[id(buffer)] = buffer.clone() if buffer.is_inference() else buffer.detach()
        view = copy.deepcopy(model, memo)
    view.eval()
    for module in view.modules():
        # The caller's hooks watch or change the caller's own passes, not ours.
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        module._forward_hooks_with_kwargs.clear()
        module._forward_pre_hooks_with_kwargs.clear()
        module._forward_hooks_always_called.clear()
    view.config.return_dict = True
    view.config.output_attentions = False
    view.config.output_hidden_states = False
    if attention is not None:
        view.set_attn_implementation(attention)
    return view


def _frozen(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.is_inference():
        return nn.Parameter(parameter.clone(), requires_grad=False)
    if not parameter.requires_grad:
        # The very object: quantised weights are parameters of a class of their own.
        return parameter
    return nn.Parameter(parameter.detach(), requires_grad=False)
