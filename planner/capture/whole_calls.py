"""Takes calls whole while an export runs: each becomes one operation that calls what was called.

- An autograd.Function of the user's would be traced through, its own backward lost.
- A function that reads the values of its tensors would stop the export, as a CTC loss does. On tensors without values
  something of the same shape stands in for it, and keeps as many bytes.
- A reentrant checkpoint is an autograd.Function as well, and would hide parameters. It is left out: the plan decides
  what is recomputed. Within a module that is taken whole every checkpoint is.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import CodeType, FunctionType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import CheckpointFunction

from planner.capture.traced_graph import Traced
from planner.errors import BadInput


def _reduced(losses: Tensor, reduction: object) -> Tensor:
    return losses if reduction in (0, "none") else losses.sum() if reduction in (2, "sum") else losses.mean()


def _ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: object,
    target_lengths: object,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Stands in for torch.ctc_loss: its backward keeps a probability for each step and place in a target."""
    longest = targets.shape[-1]  # of targets that are joined in one dimension it is a bound
    steps, *samples, _ = log_probs.shape
    alpha = log_probs.new_zeros(*samples, steps, 2 * longest + 1)
    losses = log_probs.square().sum((0, -1))
    return _reduced((losses[..., None, None] * alpha).sum((-1, -2)), reduction)


def _gaussian_nll(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Stands in for torch.nn.functional.gaussian_nll_loss, which raises where a variance is below zero."""
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    elif var.ndim < input.ndim:
        var = var.unsqueeze(-1)
    return _reduced(torch.log(var) + (input - target) ** 2 / var, reduction)


def _istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Stands in for torch.istft, which raises where its window leaves samples out."""
    whole = n_fft + (hop_length or n_fft // 4) * (input.shape[-1] - 1)
    samples = length if length is not None else whole - 2 * (n_fft // 2) * center
    energy = input.abs().sum((-1, -2))[..., None]
    made = energy.expand(*energy.shape[:-1], samples).contiguous()
    return torch.complex(made, made) if return_complex else made


# Functions that read values: where each is looked up when it is called, and what stands in for it on tensors without values.
READING: dict[tuple[object, str], Callable[..., Tensor]] = {
    (torch, "ctc_loss"): _ctc,
    (torch.nn.functional, "gaussian_nll_loss"): _gaussian_nll,
    (torch, "istft"): _istft,
}


@dataclass
class _Whole:
    """A function that is taken whole; `standing_in` has the names and defaults of its arguments."""

    function: Callable[..., object]
    standing_in: Callable[..., Tensor]

    def __call__(self, *given: object) -> object:
        known = all(not isinstance(x, FakeTensor) and not x.is_meta for x in given if isinstance(x, Tensor))
        return self.function(*given) if known else self.standing_in(*given)


_numbers = itertools.count()  # torch keeps the name of an operation beyond its library


@dataclass
class _Call:
    """One call: what was given beside tensors, and how its tensors came back."""

    name: str
    function: Callable[..., object]
    given: tuple[object, ...]
    places: list[int]  # of tensors among the arguments
    returned: pytree.TreeSpec | None = None
    others: dict[int, object] = field(default_factory=dict)  # results that are no tensors

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        arguments = list(self.given)
        for place, tensor in zip(self.places, tensors, strict=True):
            arguments[place] = tensor
        leaves, self.returned = pytree.tree_flatten(self.function(*arguments))
        self.others = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def result(self, tensors: list[Tensor]) -> object:
        assert self.returned is not None
        rest = iter(tensors)
        count = len(tensors) + len(self.others)
        leaves = [self.others[i] if i in self.others else next(rest) for i in range(count)]
        return pytree.tree_unflatten(leaves, self.returned)


class WholeCalls:
    """Records each call of an autograd.Function, and of `READING`, as one operation of its own, while it is entered.

    The code of `apply` is exchanged, not `apply`: a model may have bound `MyFunction.apply` to a name long before.
    """

    def __init__(self) -> None:
        self.library = torch.library.Library("shardwright", "FRAGMENT")  # type: ignore[no-untyped-call]
        self.calls: dict[str, _Call] = {}
        self.running = False

    def __enter__(self) -> WholeCalls:
        self.exchanged: FunctionType = vars(torch.autograd.Function)["apply"].__func__
        self.code = self.exchanged.__code__
        self.original = FunctionType(
            self.code, self.exchanged.__globals__, "apply", None, self.exchanged.__closure__
        )
        self.exchanged.__code__ = _standing_in()
        self.exchanged.__kwdefaults__ = {"recorded": self._apply}
        self.exchanged_calls = {place: getattr(*place) for place in READING}
        for place, function in self.exchanged_calls.items():
            setattr(*place, self._taking(place, function))
        return self

    def __exit__(self, *_: object) -> None:
        for place, function in self.exchanged_calls.items():
            setattr(*place, function)
        self.exchanged.__code__, self.exchanged.__kwdefaults__ = self.code, None
        self.library._destroy()  # type: ignore[no-untyped-call]

    def restore(self, traced: Traced) -> None:
        for node in traced.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is not None and schema.name in self.calls:
                node.target = _named(self.calls[schema.name])

    def _apply(self, function: type[torch.autograd.Function], *given: object, **named: object) -> object:
        if function is CheckpointFunction:
            run, _, *arguments = given
            assert callable(run)
            return run(*arguments)
        if self.running or _is_torchs(function):
            return self.original(function, *given, **named)
        if named:  # as torch itself does it: only functions with a setup_context may be called so
            bound = inspect.signature(function.forward).bind(*given, **named)
            bound.apply_defaults()
            given = bound.args
        if any(isinstance(x, torch.SymInt | torch.SymFloat) for x in pytree.tree_leaves(given)):
            raise BadInput(f"{function.__name__}.apply() takes a size that depends on the batch")
        return self._recorded(function.__name__, function.apply, given)

    def _taking(self, place: tuple[object, str], function: Callable[..., object]) -> Callable[..., object]:
        """Returns what records the calls of a function; it looks like that function, which others trace by its name."""
        standing_in = READING[place]
        signature = inspect.signature(standing_in)

        @wraps(function)
        def taken(*given: object, **named: object) -> object:
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            return self._recorded(place[1], _Whole(function, standing_in), bound.args)

        return taken

    def _recorded(self, name: str, function: Callable[..., object], given: tuple[object, ...]) -> object:
        places = [i for i, x in enumerate(given) if isinstance(x, Tensor)]
        call = _Call(name, function, tuple(None if i in places else x for i, x in enumerate(given)), places)
        unique = f"function{next(_numbers)}"
        self.calls[f"shardwright::{unique}"] = call
        self.library.define(f"{unique}(Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"shardwright::{unique}", self._fake(call), lib=self.library)
        return call.result(getattr(torch.ops.shardwright, unique)([given[i] for i in places]))

    def _fake(self, call: _Call) -> Callable[[list[Tensor]], list[Tensor]]:
        def fake(tensors: list[Tensor]) -> list[Tensor]:
            self.running = True
            try:
                with torch.no_grad():
                    made = call.run(tensors)
            finally:
                self.running = False
            return [x.clone() if any(x is y for y in tensors) else x for x in made]

        return fake


def _is_torchs(function: type[torch.autograd.Function]) -> bool:
    """Returns whether a function is one of torch's whose backward autograd can make of its forward.

    Functions that fake a quantisation have a backward of their own.
    """
    return function.__module__.startswith("torch.") and not function.__module__.startswith("torch.ao.")


def _standing_in() -> CodeType:
    """Returns code that may stand in for that of `apply`: it has a cell, as `apply` has one for its `super()`."""
    cell = None

    def apply(*given: object, recorded: Callable[..., object], **named: object) -> object:
        assert cell is not given
        return recorded(*given, **named)

    return apply.__code__


def _named(call: _Call) -> Callable[[list[Tensor]], list[Tensor]]:
    def run(tensors: list[Tensor]) -> list[Tensor]:
        return call.run(tensors)

    run.__name__ = call.name
    return run


@contextmanager
def computing_once() -> Iterator[None]:
    """Leaves out activation checkpointing, since recomputation is the plan's decision.

    In a backward pass the module has no weights: a stage lends them for a call.
    """
    names = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
    usual = {name: getattr(checkpointing, name) for name in names}
    try:
        for name, instead in zip(names, (_around_once, _CalledOnce), strict=True):
            setattr(checkpointing, name, instead)
        yield
    finally:
        for name, own in usual.items():
            setattr(checkpointing, name, own)


def _around_once(*_: object, **__: object) -> Iterator[None]:
    """Stands in for what torch enters before a function that is checkpointed, and leaves after it."""
    yield


class _CalledOnce:
    """Stands in for the function of a reentrant checkpoint."""

    @staticmethod
    def apply(function: Callable[..., object], _: bool, *args: object) -> object:
        return function(*args)
