"""Products of few rows with a large frozen weight, split so that every processor core takes part.

A question is some twenty tokens, so a pass over it reads every weight for twenty rows: libraries for matrix
products leave cores idle there. A product over slices of the weight, which is a batch of products, keeps them
busy. Nothing is copied or packed, and the numbers differ by rounding alone. How much it gains:
``benchmarks/speed.py rows``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# Slices of a weight, and the most rows for which they pay.
_SLICES = 4
_MOST_ROWS = 96


class SlicedProduct(torch.autograd.Function):
    """``x @ weight.T``, and the gradient in x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply.

        Args:
            ctx: Where autograd keeps what the backward pass needs.
            x: [M, a].
            weight: [b, a], with b divisible by the number of slices.

        Returns:
            [M, b].
        """
        slices = weight.view(_SLICES, -1, weight.shape[1])
        ctx.save_for_backward(slices)
        product = torch.bmm(x.expand(_SLICES, -1, -1), slices.transpose(1, 2))
        return product.transpose(0, 1).reshape(len(x), -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The gradient in x, [M, a], summed over the slices.

        Args:
            ctx: What the forward pass kept.
            grad: [M, b].
        """
        (slices,) = ctx.saved_tensors
        return torch.bmm(grad.view(len(grad), _SLICES, -1).transpose(0, 1), slices).sum(0), None


class FewRowsLinear(nn.Linear):
    """A frozen linear layer that takes few rows on several cores by slices, and all else as ever."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        rows = x.numel() // max(1, x.shape[-1])
        if not (1 <= rows <= _MOST_ROWS and torch.get_num_threads() > 1 and self._can_be_sliced(x)):
            return super().forward(x)
        flat: Tensor = SlicedProduct.apply(x.reshape(rows, -1), self.weight)  # type: ignore[no-untyped-call]
        product = flat.view(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias

    def _can_be_sliced(self, x: Tensor) -> bool:
        weight = self.weight
        return (
            # Quantised weights are parameters of a class of their own, which may know no slices.
            type(weight) is nn.Parameter
            and x.dtype == weight.dtype
            and x.dtype in (torch.float32, torch.float64)
            and x.device.type == weight.device.type == "cpu"
            and not weight.requires_grad
            and weight.is_contiguous()
            and len(weight) % _SLICES == 0
        )


def slice_few_rows(view: nn.Module) -> None:
    """Let the linear layers of a private view take few rows by slices.

    Args:
        view: A view that nobody else holds. Layers of other classes, and those whose ``forward`` somebody
            replaced, stay as they are.
    """
    for module in view.modules():
        if type(module) is nn.Linear and "forward" not in vars(module):
            module.__class__ = FewRowsLinear
