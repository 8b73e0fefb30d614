"""A tiny model with a fault that can be switched on: no memory, or numbers that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor, nn

LACK_OF_MEMORY: dict[str, Callable[[], Exception]] = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "older": lambda: RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
    "cpu": lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    "cublas": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "python": lambda: MemoryError(),
}


class Fault:
    """What is wrong with a model, shared by all views of it.

    ``forward`` and ``backward`` are called with the [rows, tokens, hidden] that pass through the first layer,
    or their gradient, and give what goes on from there.
    """

    def __init__(self) -> None:
        self.forward: Callable[[Tensor], Tensor] = lambda x: x
        self.backward: Callable[[Tensor], Tensor] = lambda x: x
        self.met = 0

    def clear(self) -> None:
        """Nothing is wrong any more."""
        self.__init__()  # type: ignore[misc]

    def limit(self, where: str, tokens: int, error: Callable[[], Exception]) -> None:
        """More tokens at once than these are too many."""

        def check(x: Tensor) -> Tensor:
            if x.shape[0] * x.shape[1] > tokens:
                self.met += 1
                raise error()
            return x

        setattr(self, where, check)

    def spoil(self, where: str, value: float) -> None:
        """Every number becomes this one."""
        setattr(self, where, lambda x: torch.full_like(x, value))

    def __deepcopy__(self, memo: dict[int, Any]) -> Fault:
        return self


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: Fault) -> Tensor:
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.fault.backward(grad), None


class _Faulty(nn.Module):
    def __init__(self, inner: nn.Module, fault: Fault) -> None:
        super().__init__()
        self.inner, self.fault = inner, fault

    def forward(self, x: Tensor) -> Tensor:
        return _Backward.apply(self.inner(self.fault.forward(x)), self.fault)


def faulty() -> tuple[tuple[Any, Any], Fault]:
    """A ``(model, tokenizer)`` pair, and what is wrong with it: nothing yet."""
    model, fault = tiny_model(), Fault()
    last = model.model.layers[-2]
    last.mlp = _Faulty(last.mlp, fault)
    return (model, tiny_tokenizer()), fault
