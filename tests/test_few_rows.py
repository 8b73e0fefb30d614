"""Products of few rows by slices: the numbers of an ordinary linear layer, and where they are not used."""

from __future__ import annotations

import pytest
import torch
from tiny import DOCUMENTS, QUERY, tiny
from torch import nn

from gradrerank.lm.few_rows import FewRowsLinear, slice_few_rows
from gradrerank.lm.generator import Generator


@pytest.fixture(autouse=True)
def two_threads() -> object:
    """Slices are for several threads; a process that has one would pass these tests without them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def layers(bias: bool = False, features: int = 12, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, nn.Module]:
    torch.manual_seed(0)
    plain = nn.Linear(8, features, bias=bias, dtype=dtype).requires_grad_(False)
    sliced = nn.Sequential(nn.Linear(8, features, bias=bias, dtype=dtype).requires_grad_(False))
    sliced[0].load_state_dict(plain.state_dict())
    slice_few_rows(sliced)
    assert type(sliced[0]) is FewRowsLinear
    return plain, sliced[0]


@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 3, 8), (96, 8), (97, 8), (0, 8), (1, 2, 3, 8)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    plain, sliced = layers(bias)
    x = torch.randn(shape, dtype=torch.float64)
    pull = torch.randn(*shape[:-1], 12, dtype=torch.float64)
    slopes = []
    for layer in (plain, sliced):
        own = x.clone().requires_grad_()
        y = layer(own)
        assert y.shape == pull.shape
        torch.testing.assert_close(y, plain(x))
        slopes.append(torch.autograd.grad(y, own, pull)[0])
    torch.testing.assert_close(slopes[1], slopes[0])


def test_a_row_seen_from_a_transposed_gradient_is_right() -> None:
    plain, sliced = layers()
    x = torch.randn(5, 8, dtype=torch.float64)
    pull = torch.randn(12, 5, dtype=torch.float64).t()
    slopes = []
    for layer in (plain, sliced):
        own = x.t().contiguous().t().requires_grad_()
        slopes.append(torch.autograd.grad(layer(own), own, pull)[0])
    torch.testing.assert_close(slopes[1], slopes[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", [12, 13])
def test_what_cannot_be_sliced_is_multiplied_as_ever(dtype: torch.dtype, features: int) -> None:
    plain, sliced = layers(features=features, dtype=dtype)
    x = torch.randn(3, 8, dtype=dtype)
    torch.testing.assert_close(sliced(x), plain(x))


def test_a_weight_that_is_trained_keeps_its_gradient() -> None:
    _, sliced = layers()
    sliced.weight.requires_grad_(True)
    sliced(torch.ones(2, 8, dtype=torch.float64)).sum().backward()
    assert sliced.weight.grad is not None and sliced.weight.grad.abs().sum() > 0


def test_a_weight_of_a_class_of_its_own_is_not_sliced() -> None:
    class Quantised(nn.Parameter):
        pass

    plain, sliced = layers()
    sliced.weight = Quantised(plain.weight, requires_grad=False)
    x = torch.ones(2, 8, dtype=torch.float64)
    assert not sliced._can_be_sliced(x)
    torch.testing.assert_close(sliced(x), plain(x))


def test_layers_of_other_classes_and_replaced_forwards_stay() -> None:
    class Own(nn.Linear):
        pass

    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    tree = nn.Sequential(Own(4, 4), replaced)
    slice_few_rows(tree)
    assert type(tree[0]) is Own and type(tree[1]) is nn.Linear


def test_the_callers_model_keeps_its_layers_and_scores_do_not_depend_on_the_number_of_threads() -> None:
    model, tokenizer = tiny("llama", dtype=torch.float32)
    generator = Generator(model, tokenizer, name="tiny")
    assert not any(isinstance(module, FewRowsLinear) for module in model.modules())
    assert not any(isinstance(module, FewRowsLinear) for module in generator.plain.modules())
    memory = generator.remember(generator.layout.documents([(None, text) for text in DOCUMENTS]))
    continuation = generator.layout.query_continuation(QUERY)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(generator.gate_gradients(memory, continuation, torch.ones(1, len(DOCUMENTS))).gradients)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-6)
