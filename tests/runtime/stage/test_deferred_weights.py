"""Layers that owe their weight gradient against torch's own, to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.stage import WeightStore
from runtime.stage import deferred_weights as weight_store


def both(function: object, stored: object, tensors: list[Tensor]) -> None:
    results = []
    for run in (function, stored):
        leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        y = run(*leaves)  # type: ignore[operator]
        torch.manual_seed(1)
        y.backward(torch.randn_like(y))
        results.append((y, leaves))
    (y, want), (z, have) = results
    assert torch.equal(y, z)
    for a, b in zip(want, have, strict=True):
        assert a.grad is None or torch.equal(a.grad, b.grad)


def stored(store: WeightStore, call: object) -> object:
    """Runs the call, and pays when its backward has gone through."""

    def run(*tensors: Tensor) -> Tensor:
        y = call(*tensors)  # type: ignore[operator]

        class Pay:
            pass

        original = y.backward

        def backward(grad: Tensor) -> None:
            original(grad)
            weight_store.pay(store.collect())

        y.backward = backward
        return y

    return run


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (2, 2, 3, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    store = WeightStore()
    tensors = [torch.randn(shape), torch.randn(5, 8)] + ([torch.randn(5)] if bias else [])
    both(F.linear, stored(store, lambda *t: weight_store.linear(store, *t)), tensors)


def test_autocast_leaves_double_precision_alone() -> None:
    torch.manual_seed(0)
    store = WeightStore()
    tensors = [torch.randn(3, 8).double(), torch.randn(5, 8).double(), torch.randn(5).double()]
    with torch.autocast("cpu", torch.bfloat16):
        both(F.linear, stored(store, lambda *t: weight_store.linear(store, *t)), tensors)
        with pytest.raises(RuntimeError, match="dtype"):
            weight_store.linear(store, torch.randn(3, 8), tensors[1], tensors[2])


def test_linear_on_a_transposed_input() -> None:
    torch.manual_seed(0)
    store = WeightStore()
    call = stored(store, lambda x, w, b: weight_store.linear(store, x.transpose(0, 1), w, b))
    both(
        lambda x, w, b: F.linear(x.transpose(0, 1), w, b),
        call,
        [torch.randn(4, 3, 8), torch.randn(5, 8), torch.randn(5)],
    )


def test_linear_under_a_gradient_in_another_memory_order() -> None:
    torch.manual_seed(0)
    store = WeightStore()
    call = stored(store, lambda x, w, b: weight_store.linear(store, x, w, b).transpose(1, 2).exp())
    both(
        lambda x, w, b: F.linear(x, w, b).transpose(1, 2).exp(),
        call,
        [torch.randn(4, 37, 8), torch.randn(5, 8), torch.randn(5)],
    )


@pytest.mark.parametrize(
    ("dims", "transposed", "groups"), [(1, False, 1), (2, False, 2), (3, False, 1), (2, True, 1)]
)
def test_convolution(dims: int, transposed: bool, groups: int) -> None:
    torch.manual_seed(0)
    store = WeightStore()
    settings = ([2] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups)
    tensors = [torch.randn(2, 4, *[7] * dims), torch.randn(4, 4 // groups, *[3] * dims), torch.randn(4)]
    both(
        lambda x, w, b: torch.convolution(x, w, b, *settings),
        stored(store, lambda x, w, b: weight_store.convolution(store, x, w, b, *settings)),
        tensors,
    )


@pytest.mark.parametrize(("dims", "transposed"), [(1, False), (2, False), (3, True)])
def test_convolution_of_one_sample_without_a_batch(dims: int, transposed: bool) -> None:
    torch.manual_seed(0)
    store = WeightStore()
    plain = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    settings = ([1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, 1)
    both(
        lambda x, w, b: plain(x, w, b, padding=1),
        stored(store, lambda x, w, b: weight_store.convolution(store, x, w, b, *settings)),
        [torch.randn(4, *[5] * dims), torch.randn(4, 4, *[3] * dims), torch.randn(4)],
    )


def test_a_gradient_owed_to_what_is_no_parameter_is_an_error_of_ours() -> None:
    store = WeightStore()
    x, w, b = (torch.randn(shape, requires_grad=True) for shape in ((2, 3), (4, 3), (4,)))
    for weight, bias in ((w * 2, b), (w, b * 2)):
        weight_store.linear(store, x, weight, bias).sum().backward()
        with pytest.raises(AssertionError, match="no parameter"):
            weight_store.pay(store.collect())


def test_the_gradient_of_a_bias_that_was_made_goes_on_at_once() -> None:
    torch.manual_seed(0)
    store = WeightStore()
    both(
        lambda x, w, b: F.linear(x, w, b * 2),
        stored(store, lambda x, w, b: weight_store.linear(store, x, w, b * 2, made_bias=True)),
        [torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)],
    )
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    both(
        lambda x, w, b: F.conv2d(x, w, b * 2, padding=1),
        stored(
            store, lambda x, w, b: weight_store.convolution(store, x, w, b * 2, *settings, made_bias=True)
        ),
        [torch.randn(4, 4, 5, 5), torch.randn(4, 4, 3, 3), torch.randn(4)],
    )


def test_embedding_with_a_padding_index() -> None:
    torch.manual_seed(0)
    store = WeightStore()
    indices = torch.tensor([[1, 0, 3], [3, 3, 2]])
    both(
        lambda w: F.embedding(indices, w, padding_idx=0),
        stored(store, lambda w: weight_store.embedding(store, w, indices, 0)),
        [torch.randn(5, 8)],
    )


def test_under_autocast_the_products_are_in_bfloat16_and_the_gradients_in_float32() -> None:
    torch.manual_seed(0)
    store = WeightStore()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        both(
            F.linear,
            stored(store, lambda *t: weight_store.linear(store, *t)),
            [torch.randn(4, 8), torch.randn(5, 8), torch.randn(5)],
        )


def test_a_frozen_weight_owes_nothing_and_its_bias_still_does() -> None:
    store = WeightStore()
    x, w, b = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3), torch.randn(4, requires_grad=True)
    weight_store.linear(store, x, w, b).sum().backward()
    weight_store.pay(store.collect())
    assert w.grad is None and b.grad is not None and x.grad is not None


def test_nothing_is_owed_before_the_backward_and_nothing_after_paying() -> None:
    store = WeightStore()
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    y = weight_store.linear(store, x, w)
    assert store.current == []
    y.sum().backward()
    assert len(store.current) == 1 and w.grad is None and x.grad is not None
    weight_store.pay(store.collect())
    assert store.current == [] and w.grad is not None


def test_a_backward_that_is_not_split_owes_nothing_from_one_layer_to_the_next() -> None:
    store = WeightStore()
    x, first, second = (torch.randn(3, 3, requires_grad=True) for _ in range(3))
    middle = weight_store.linear(store, x, first)
    middle.register_hook(lambda _: paid.append(second.grad is not None))
    y, paid = weight_store.linear(store, middle, second), list[bool]()
    with store.paying_at_once():
        y.sum().backward()
    assert paid == [True] and store.current == [] and first.grad is not None
    weight_store.linear(store, x, first).sum().backward()
    assert len(store.current) == 1
