"""Gives another form, while an export runs, to what it would stop at or get wrong.

- A BatchNorm without momentum reads its count as a number.
- An autograd.Function of the user's would lose its own backward. It becomes one operation that calls it.
- A reentrant checkpoint is such a function as well, and would hide parameters. It is left out: the plan decides what
  is recomputed.
- A SyncBatchNorm looks for the process group that runs at the time. It is traced as a plain one and marked; the plan
  says who its peers are.
- A CTC loss has results whose shapes depend on values. It becomes one operation that calls torch's own.
- Axes that are a range of numbers, made a tensor and a list again as in monai's losses, are known without the tensor.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from planner.capture.traced_graph import SYNCHRONISED, Traced
from planner.errors import BadInput


@contextlib.contextmanager
def exportable(module: nn.Module) -> Iterator[Callable[[Traced], None]]:
    """Makes a module exportable while it is entered.

    Yields: a function that puts the real operations back into the graph that was traced meanwhile.
    """
    with (
        _cumulative(module) as names,
        _synchronised(module) as shared,
        _Functions() as functions,
        _listed_ranges(),
    ):

        def restore(traced: Traced) -> None:
            _allow_cudnn(traced)
            _mark_synchronised(traced, shared)
            _restore_averages(traced, names)
            functions.restore(traced)

        yield restore


def _allow_cudnn(traced: Traced) -> None:
    """Sets the cuDNN arguments of normalisations back to torch's own setting; an export traces with cuDNN off."""
    for node in traced.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for i, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.name in ("cudnn_enabled", "cudnn_enable") and i < len(node.args):
                node.args = (*node.args[:i], torch.backends.cudnn.enabled, *node.args[i + 1 :])


@contextlib.contextmanager
def _synchronised(module: nn.Module) -> Iterator[frozenset[str]]:
    """Yields the paths of normalisations whose statistics are those of all replicas; they are traced as plain ones."""
    original = nn.SyncBatchNorm.forward
    nn.SyncBatchNorm.forward = nn.modules.batchnorm._BatchNorm.forward  # type: ignore[method-assign]
    try:
        yield frozenset(name for name, part in module.named_modules() if isinstance(part, nn.SyncBatchNorm))
    finally:
        nn.SyncBatchNorm.forward = original  # type: ignore[method-assign]


def _mark_synchronised(traced: Traced, paths: frozenset[str]) -> None:
    for node in traced.graph.nodes:
        stack = node.meta.get("stack")
        if str(node.target) == "aten.batch_norm.default" and stack and stack[-1][0] in paths:
            node.meta[SYNCHRONISED] = True


@contextlib.contextmanager
def _cumulative(module: nn.Module) -> Iterator[dict[float, str]]:
    """Gives every BatchNorm without momentum one that tells the name of its count, while the module is traced.

    Such a BatchNorm reads its count as a number, which would stop an export. Yields the names by momentum.
    """
    norms = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None
    ]
    names = {
        2.0**-60 * (i + 1): f"{name}.num_batches_tracked".strip(".") for i, (name, _) in enumerate(norms)
    }
    try:
        for momentum, (_, part) in zip(names, norms, strict=True):
            part.momentum = momentum
        yield names
    finally:
        for _, part in norms:
            part.momentum = None


def _restore_averages(traced: Traced, names: Mapping[float, str]) -> None:
    counts = {source.name: node for node, source in traced.sources.items() if source.kind == "buffer"}
    for node in traced.graph.nodes:
        if str(node.target) != "aten.batch_norm.default" or node.args[6] not in names:
            continue
        *tensors, training, momentum, eps, _ = node.args
        count = counts.get(names[momentum])
        if count is not None and training:  # else it changes no statistics, and its momentum is not used
            node.target, node.args = average_batch_norm, (*tensors, training, count, eps)


def average_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    count: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Returns what a BatchNorm with momentum=None gives; its running statistics are averages of all batches so far.

    Args: named as those of torch's batch_norm; `count` is the number of batches so far.
    """
    momentum = share_of_latest(count) if training else 0.0
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn)


def share_of_latest(count: torch.Tensor) -> float:
    """Returns the share of the latest batch in the average of `count` batches; 1 for a count without a value.

    Args: `count` is a tensor of one number.
    """
    plain = not count.is_meta and not isinstance(count, FakeTensor)
    return 1.0 / float(count) if plain else 1.0


@contextlib.contextmanager
def _listed_ranges() -> Iterator[None]:
    """Lets `torch.arange(2, 5).tolist()` be known in a trace, as long as nothing was written into the tensor."""
    arange, tolist = torch.arange, FakeTensor.tolist
    ranges = WeakIdKeyDictionary()

    def made(*given: object, **named: object) -> Tensor:
        tensor = arange(*given, **named)  # type: ignore[call-overload]
        if all(type(x) is int for x in given) and not named:
            ranges[tensor] = list(range(*given))  # type: ignore[call-overload]
        return tensor  # type: ignore[no-any-return]

    def listed(tensor: FakeTensor) -> object:
        known = tensor in ranges and tensor._version == 0
        return list(ranges[tensor]) if known else tolist(tensor)

    try:
        torch.arange, FakeTensor.tolist = made, listed  # type: ignore[assignment, method-assign]
        yield
    finally:
        torch.arange, FakeTensor.tolist = arange, tolist  # type: ignore[method-assign]


_numbers = itertools.count()  # torch keeps the name of an operation beyond its library


@dataclass
class _Call:
    """One call of an autograd.Function: what was given beside tensors, and how its tensors came back."""

    function: type[torch.autograd.Function]
    given: tuple[object, ...]
    places: list[int]  # of tensors among the arguments
    returned: pytree.TreeSpec | None = None
    others: dict[int, object] = field(default_factory=dict)  # results that are no tensors

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        arguments = list(self.given)
        for place, tensor in zip(self.places, tensors, strict=True):
            arguments[place] = tensor
        leaves, self.returned = pytree.tree_flatten(self.function.apply(*arguments))  # type: ignore[no-untyped-call]
        self.others = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def result(self, tensors: list[Tensor]) -> object:
        assert self.returned is not None
        rest, places = iter(tensors), range(len(tensors) + len(self.others))
        leaves = [self.others[i] if i in self.others else next(rest) for i in places]
        return pytree.tree_unflatten(leaves, self.returned)


class _Ctc(torch.autograd.Function):
    """Torch's CTC loss, taken whole. On tensors without values it only has the shape and the gradient of a loss."""

    torchs = staticmethod(torch.ctc_loss)

    @staticmethod
    def apply(*given: Any) -> Tensor:
        scores, reduction = given[0], given[5] if len(given) > 5 else 1
        if not (scores.is_meta or isinstance(scores, FakeTensor)):
            return _Ctc.torchs(*given)
        return cast(Tensor, scores.sum() if reduction or scores.ndim == 2 else scores.sum((0, 2)))


class _Functions:
    """Records each call of an autograd.Function as one operation of a library of its own, while it is entered.

    The code of `apply` is exchanged, not `apply`: a model may have bound `MyFunction.apply` to a name long before.
    """

    def __init__(self) -> None:
        self.library = torch.library.Library("shardwright", "FRAGMENT")  # type: ignore[no-untyped-call]
        self.calls: dict[str, _Call] = {}
        self.running = False

    def __enter__(self) -> _Functions:
        self.exchanged: FunctionType = vars(torch.autograd.Function)["apply"].__func__
        self.code = self.exchanged.__code__
        self.original = FunctionType(
            self.code, self.exchanged.__globals__, "apply", None, self.exchanged.__closure__
        )
        self.exchanged.__code__ = _standing_in()
        self.exchanged.__kwdefaults__ = {"recorded": self._apply}
        torch.ctc_loss = wraps(_Ctc.torchs)(partial(self._apply, _Ctc))  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        self.exchanged.__code__, self.exchanged.__kwdefaults__ = self.code, None
        torch.ctc_loss = _Ctc.torchs  # type: ignore[assignment]
        self.library._destroy()  # type: ignore[no-untyped-call]

    def restore(self, traced: Traced) -> None:
        for node in traced.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is not None and schema.name in self.calls:
                node.target = _named(self.calls[schema.name])

    def _apply(self, function: type[torch.autograd.Function], *given: object, **named: object) -> object:
        if function is CheckpointFunction:
            assert callable(given[0])
            return given[0](*given[2:])
        if self.running or _is_torchs(function):
            return self.original(function, *given, **named)
        if named:  # as torch itself does it: only functions with a setup_context may be called so
            bound = inspect.signature(function.forward).bind(*given, **named)
            bound.apply_defaults()
            given = bound.args
        if any(isinstance(x, torch.SymInt | torch.SymFloat) for x in pytree.tree_leaves(given)):
            raise BadInput(f"{function.__name__}.apply() takes a size that depends on the batch")
        places = [i for i, x in enumerate(given) if isinstance(x, Tensor)]
        call = _Call(function, tuple(None if i in places else x for i, x in enumerate(given)), places)
        name = f"function{next(_numbers)}"
        self.calls[f"shardwright::{name}"] = call
        self.library.define(f"{name}(Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"shardwright::{name}", self._fake(call), lib=self.library)
        return call.result(getattr(torch.ops.shardwright, name)([given[i] for i in places]))

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

    run.__name__ = call.function.__name__
    return run
