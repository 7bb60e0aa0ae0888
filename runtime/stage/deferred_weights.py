"""The weight store: linear, convolution and embedding layers that owe their weight gradient until it is asked for.

Each autograd Function here returns the gradient of its input and files what the weight gradient needs; `pay`
works it out later and adds it to `.grad`. A backward that is not split owes nothing: each is paid where it
arises. Every other parameter (norms, biases of other layers) gets its gradient with the input half, which
costs little; so does a bias that was made of others. The formulas are those of torch's own backward, so that a split backward equals a whole one to
the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

Debt = Callable[[], None]


@dataclass
class WeightStore:
    """The list of debts that an input half runs up; `current` belongs to one micro-batch."""

    current: list[Debt] = field(default_factory=list)
    told: list[Callable[[Tensor], None]] = field(
        default_factory=list
    )  # of each parameter that a debt was paid to
    _at_once: bool = False

    def owe(self, debt: Debt) -> None:
        """Files a debt, or pays it at once where the backward is whole.

        Args: `debt` adds one weight gradient when it is called.
        """
        if self._at_once:
            debt()
        else:
            self.current.append(debt)

    @contextmanager
    def paying_at_once(self) -> Iterator[None]:
        """Returns a context in which debts are paid where they arise, for a whole backward."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def pay(self, parameter: Tensor | None, grad: Tensor | None) -> None:
        """Adds what a debt has worked out to a parameter's `.grad`, and tells who asked to be told.

        Args: as of `add_grad`.
        """
        add_grad(parameter, grad)
        if parameter is not None and grad is not None:
            for tell in self.told:
                tell(parameter)

    def like(self, used: Tensor) -> Tensor:
        """Returns what stands in a debt for a weight of which only the shape counts.

        Args: `used` is the weight, which a debt must not keep where parameters are here only while they are used.
        """
        return used.new_empty(()).expand(used.shape) if self.told else used

    def collect(self) -> list[Debt]:
        """Returns the debts filed since the last call, and forgets them."""
        debts, self.current = self.current, []
        return debts


def pay(debts: list[Debt]) -> None:
    """Works out all debts in order and lets each go at once, so that its tensors are freed.

    Args: `debts` is emptied.
    """
    with torch.no_grad():
        while debts:
            debts.pop(0)()  # what a debt holds is freed as soon as it is paid


def add_grad(parameter: Tensor | None, grad: Tensor | None) -> None:
    """Adds a gradient to a parameter's `.grad`, in the parameter's type.

    Args: nothing happens where either is None.
    Raises: AssertionError where `parameter` is no leaf, since the gradient would be lost.
    """
    if parameter is None or grad is None:
        return
    if not parameter.is_leaf:
        raise AssertionError("a gradient is owed to what is no parameter, where it would be lost")
    grad = grad.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad.add_(grad)
    arrived: Callable[[Tensor], None] | None = getattr(parameter, _ARRIVED, None)
    if arrived is not None:
        arrived(parameter)


_ARRIVED = "gradient_arrived"  # an attribute of parameters


def on_gradient(parameter: Tensor, arrived: Callable[[Tensor], None]) -> None:
    """Has a function called with a parameter whenever a gradient was added to its `.grad`, here or by autograd."""
    setattr(parameter, _ARRIVED, arrived)
    parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]


class _Context(FunctionCtx):
    store: WeightStore
    parameters: tuple[Tensor, Tensor | None]  # the weight and bias that own `.grad`
    made_bias: bool  # the bias owns none: its gradient goes on with that of the input
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    settings: tuple[list[int], list[int], list[int], bool, list[int], int]
    padding_index: int
    scale_by_frequency: bool


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        store: WeightStore,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype | None,
        made_bias: bool,
    ) -> Tensor:
        ctx.store, ctx.parameters, ctx.made_bias = store, (weight, bias), made_bias
        used = _cast(weight, dtype)
        ctx.save_for_backward(x, used)
        return F.linear(x, used, None if bias is None else _cast(bias, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, used = ctx.saved_tensors
        (weight, bias), store = ctx.parameters, ctx.store
        dx = dy.reshape(-1, dy.shape[-1]).mm(used).reshape(x.shape) if ctx.needs_input_grad[1] else None

        def of_bias(rows: Tensor) -> Tensor:
            # torch adds the bias to rows where it can flatten the input, else to the output as it lies in memory
            bias_rows = rows if x.is_contiguous() or x.ndim == 2 else dy
            return bias_rows.sum(tuple(range(bias_rows.ndim - 1)))

        def debt() -> None:
            dy_rows = dy.reshape(-1, dy.shape[-1])  # here, since it may be a copy, and one of them is enough
            if weight.requires_grad:
                store.pay(weight, dy_rows.t().mm(x.reshape(-1, x.shape[-1])))
            if bias is not None and bias.requires_grad and not made:
                store.pay(bias, of_bias(dy_rows))

        made = ctx.made_bias
        store.owe(debt)
        db = of_bias(dy.reshape(-1, dy.shape[-1])) if made and ctx.needs_input_grad[3] else None
        return None, dx, None, db, None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        store: WeightStore,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype | None,
        settings: tuple[list[int], list[int], list[int], bool, list[int], int],
        made_bias: bool,
    ) -> Tensor:
        ctx.store, ctx.parameters, ctx.settings, ctx.made_bias = store, (weight, bias), settings, made_bias
        used = _cast(weight, dtype)
        ctx.save_for_backward(x, used)
        bias = None if bias is None else _cast(bias, dtype)
        return torch.ops.aten.convolution.default(x, used, bias, *settings)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, used = ctx.saved_tensors
        (weight, bias), store = ctx.parameters, ctx.store
        sizes = None if bias is None else list(bias.shape)
        settings, shaped = ctx.settings, store.like(used)

        def half(of: Tensor, mask: list[bool]) -> list[Tensor | None]:
            return list(torch.ops.aten.convolution_backward.default(dy, x, of, sizes, *settings, mask))

        def debt() -> None:
            trained = bias is not None and bias.requires_grad and not made
            _, weight_grad, bias_grad = half(shaped, [False, weight.requires_grad, trained])
            if weight.requires_grad:
                store.pay(weight, weight_grad)
            if trained:
                store.pay(bias, bias_grad)

        made = ctx.made_bias
        store.owe(debt)
        passed = [ctx.needs_input_grad[1], False, made and ctx.needs_input_grad[3]]
        dx, _, db = half(used, passed) if any(passed) else [None] * 3
        return None, dx, None, db, None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, store: WeightStore, weight: Tensor, indices: Tensor, padding: int, by_frequency: bool
    ) -> Tensor:
        ctx.store, ctx.parameters = store, (weight, None)
        ctx.padding_index, ctx.scale_by_frequency = padding, by_frequency
        ctx.save_for_backward(indices)
        return torch.ops.aten.embedding.default(weight, indices, padding, by_frequency)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        (weight, _), store = ctx.parameters, ctx.store

        def debt() -> None:
            grad = torch.ops.aten.embedding_dense_backward.default(
                dy, indices, weight.shape[0], ctx.padding_index, ctx.scale_by_frequency
            )
            store.pay(weight, grad)

        store.owe(debt)
        return None, None, None, None, None


def _autocast(x: Tensor) -> tuple[Tensor, torch.dtype | None]:
    """Returns the input as autocast casts it, and the type for the weight; the weight is cast inside the Function."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, None
    dtype = torch.get_autocast_dtype(kind)
    return _cast(x, dtype), dtype


def _cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Returns a tensor as autocast casts it, which leaves double precision as it is."""
    return x if dtype is None or x.dtype is torch.float64 else x.to(dtype)


def linear(
    store: WeightStore, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, made_bias: bool = False
) -> Tensor:
    """Computes a linear layer whose weight gradient is owed.

    Args: `store` takes the debt; `made_bias` says that the bias is no parameter, so that its gradient goes on at once;
        the others are those of torch's `linear`.
    """
    x, dtype = _autocast(x)
    with torch.autocast(x.device.type, enabled=False):
        y: Tensor = _Linear.apply(store, x, weight, bias, dtype, made_bias)  # type: ignore[no-untyped-call]
    return y


def convolution(
    store: WeightStore,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    made_bias: bool = False,
) -> Tensor:
    """Computes a convolution whose weight gradient is owed.

    Args: `store` takes the debt; the others are those of `aten.convolution`; `x` may be one sample without a
        batch; `made_bias` is as for `linear`.
    """
    x, dtype = _autocast(x)
    settings = (list(stride), list(padding), list(dilation), transposed, list(output_padding), groups)
    alone = x.ndim == weight.ndim - 1  # a sample without the dim of the batch
    with torch.autocast(x.device.type, enabled=False):
        batch = x.unsqueeze(0) if alone else x
        y: Tensor = _Convolution.apply(store, batch, weight, bias, dtype, settings, made_bias)  # type: ignore[no-untyped-call]
    return y.squeeze(0) if alone else y


def embedding(
    store: WeightStore, weight: Tensor, indices: Tensor, padding: int = -1, by_frequency: bool = False
) -> Tensor:
    """Looks up rows of an embedding whose weight gradient is owed.

    Args: `store` takes the debt; the others are those of `aten.embedding`.
    """
    return _Embedding.apply(store, weight, indices, padding, by_frequency)  # type: ignore[no-any-return, no-untyped-call]
