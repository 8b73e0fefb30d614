"""Which layers and heads carry a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradrerank.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor


def check_layers_and_heads(layers: Sequence[int] | None, heads: Sequence[tuple[int, int]] | None) -> None:
    """Check what can be checked without a model.

    Args:
        layers: Layers that carry the score, None for all.
        heads: Heads as pairs ``(layer, head)``, None for all of the layers.

    Raises:
        InvalidArgumentError: When one is neither a sequence nor None, or names nothing.
    """
    for name, value in (("layers", layers), ("heads", heads)):
        if not isinstance(value, Sequence | None):
            raise InvalidArgumentError(f"{name} must be a sequence or None, got {value!r}")
        if value is not None and not len(value):
            raise InvalidArgumentError(f"{name} must name at least one, or be None for all, got an empty sequence")


def chosen_heads(
    layers: Sequence[int] | None, heads: Sequence[tuple[int, int]] | None, n_layers: int, n_heads: int
) -> Tensor:
    """The heads that carry the score.

    Args:
        layers: Layers that carry the score, None for all.
        heads: Heads as pairs ``(layer, head)``, None for all of the layers.
        n_layers: Layers of the model.
        n_heads: Heads of each layer.

    Returns:
        [n_layers, n_heads], true where a head counts; in at least one place.

    Raises:
        InvalidArgumentError: When one is named that the model has not, or both have none in common.
    """
    import torch

    chosen = _chosen_layers(layers, heads, n_layers)
    mask = torch.zeros(n_layers, n_heads, dtype=torch.bool)
    if heads is None:
        mask[chosen] = True
        return mask
    for layer, head in heads:
        if not 0 <= head < n_heads:
            raise InvalidArgumentError(f"heads names {(layer, head)}, but a layer has heads 0 to {n_heads - 1}")
        mask[layer, head] = layer in chosen
    return mask


def _chosen_layers(layers: Sequence[int] | None, heads: Sequence[tuple[int, int]] | None, n_layers: int) -> list[int]:
    chosen = {layer for layer, _ in heads} if heads is not None else set(range(n_layers))
    if layers is not None:
        chosen &= set(layers)
        out = sorted(set(layers) - set(range(n_layers)))
        if out:
            raise InvalidArgumentError(f"layers names {out}, but the model has layers 0 to {n_layers - 1}")
    if not chosen or max(chosen) >= n_layers or min(chosen) < 0:
        raise InvalidArgumentError(
            f"heads and layers must share a layer between 0 and {n_layers - 1}, got heads={heads!r} and "
            f"layers={layers!r}"
        )
    return sorted(chosen)
