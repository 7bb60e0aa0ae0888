"""Gives another form, while an export runs, to what it would stop at or get wrong.

- A BatchNorm without momentum reads its count as a number.
- An autograd.Function of the user's, or a function that reads the values of its tensors, becomes one operation that calls
  it, as `whole_calls.py` says.
- A SyncBatchNorm looks for the process group that runs at the time. It is traced as a plain one and marked; the plan
  says who its peers are.
- Distributions check the values of their parameters, and are not asked to.
- Axes that are a range of numbers, made a tensor and a list again as in monai's losses, are known without the tensor.
- Of the frames under which an operation ran, the user's alone are noted: to note all takes a tenth of an export.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from traceback import FrameSummary, StackSummary
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from planner.capture.traced_graph import SYNCHRONISED, Traced
from planner.capture.whole_calls import WholeCalls
from planner.errors import BadInput
from planner.workload import is_users

LEVELS = ("grad_increment_nesting", "jvp_increment_nesting")  # of torch.func, by which all gradients begin


@contextlib.contextmanager
def exportable(module: nn.Module) -> Iterator[Callable[[Traced], None]]:
    """Makes a module exportable while it is entered.

    Yields: a function that puts the real operations back into the graph that was traced meanwhile.
    Raises: BadInput for a module that no export can take in any form, with what to hand over instead.
    """
    with (
        _cumulative(module) as names,
        _synchronised(module) as shared,
        WholeCalls() as functions,
        _listed_ranges(),
        _refusing_gradients(),
        _unvalidated(),
        _refusing_last_gradients(module),
        _short_traces(),
    ):

        def restore(traced: Traced) -> None:
            _allow_cudnn(traced)
            _mark_synchronised(traced, shared)
            _restore_averages(traced, names)
            functions.restore(traced)

        yield restore


INSIDE = "a loss of outputs; or the call within a module that is taken as it is, by its path in opaque = ['path.of.a.module'] of a module file"


@contextlib.contextmanager
def _refusing_gradients() -> Iterator[None]:
    """Refuses gradients that the user's code asks for, which a graph of forwards alone has no place for.

    Those of torch.func all begin with a level of their own, under which a trace would note what holds inside alone.
    """
    original: Callable[..., object] = torch.autograd.grad
    levels = {name: getattr(eager_transforms, name) for name in LEVELS}

    def asked(*given: object, **named: object) -> object:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("torch."):
            return original(*given, **named)
        raise BadInput(
            "torch.autograd.grad is called, as for a gradient penalty; gradients are known after the last stage alone",
            allowed=INSIDE,
        )

    def transformed(*_: object) -> NoReturn:
        raise BadInput(
            "forward() takes a gradient by torch.func; gradients are known after the last stage alone",
            allowed=f"the gradient as a formula; {INSIDE}",
        )

    try:
        torch.autograd.grad = asked  # type: ignore[assignment]
        for name in LEVELS:
            setattr(eager_transforms, name, transformed)
        yield
    finally:
        torch.autograd.grad = original  # type: ignore[assignment]
        for name, level in levels.items():
            setattr(eager_transforms, name, level)


@contextlib.contextmanager
def _unvalidated() -> Iterator[None]:
    """Leaves out the checks of distributions, which read the values of their parameters and compute nothing."""
    kind, checked = torch.distributions.Distribution, torch.distributions.Distribution._validate_args
    try:
        kind.set_default_validate_args(False)
        yield
    finally:
        kind.set_default_validate_args(checked)


@contextlib.contextmanager
def _refusing_last_gradients(module: nn.Module) -> Iterator[None]:
    """Refuses reads of a parameter's gradient, which an earlier step has left and no stage of a plan has.

    Writes are refused, too: the micro-batches before would feel them.
    """
    plain: Any = Tensor.grad

    def refuse(tensor: Tensor, said: str) -> None:
        by_torch = str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.")
        named = (f"parameter '{name}'" for name, x in module.named_parameters() if x is tensor)
        if not by_torch and (name := next(named, "")):
            raise BadInput(
                said.format(name), allowed="what it needs of a gradient, in the workload's optimizer"
            )

    def read(tensor: Tensor) -> object:
        refuse(tensor, "forward() reads the gradient of {}, which the step before has left")
        return plain.__get__(tensor)

    def written(tensor: Tensor, value: Tensor | None) -> None:
        refuse(tensor, "forward() assigns the gradient of {}, which a plan would not do")
        plain.__set__(tensor, value)

    try:
        setattr(Tensor, "grad", property(read, written, plain.__delete__))  # noqa: B010
        yield
    finally:
        del Tensor.grad  # what is inherited is there again


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


@contextlib.contextmanager
def _short_traces() -> Iterator[None]:
    """Has the tracer note the frames of an operation that are the user's."""
    proxies: Any = fx.proxy
    usual = proxies.CapturedTraceback
    try:
        proxies.CapturedTraceback = _UsersFrames
        yield
    finally:
        proxies.CapturedTraceback = usual


class _UsersFrames:
    """Stands in for the trace that torch takes of all frames."""

    @classmethod
    def extract(cls) -> _UsersFrames:
        return cls()

    def summary(self) -> StackSummary:
        """Returns the user's frames, and those of forward passes, from the first of which the tracer takes them."""
        found: list[FrameSummary] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward" or is_users(code.co_filename):
                found.append(FrameSummary(code.co_filename, frame.f_lineno, code.co_name, lookup_line=False))
            frame = frame.f_back
        return StackSummary.from_list(found[::-1])
