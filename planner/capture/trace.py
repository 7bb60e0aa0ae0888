"""Traces a module and its loss to one flat graph of ATen operations, by torch.export.

The flat graph has no nested graphs. What ran under `no_grad` or `autocast` carries that as its context, which is
entered again where stages are cut. Each operation knows the module path that it ran under.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from planner.capture.batch import fixed_at, symbols, watching_fixed
from planner.capture.export_workarounds import exportable
from planner.capture.fake_run import forgetting
from planner.capture.flatten import flatten
from planner.capture.left_behind import Reachable
from planner.capture.opaque import Opaque
from planner.capture.refusals import refuse_changes, refusing_hooks
from planner.capture.state_use import assigned_tensors, held_tensors
from planner.capture.traced_graph import CannotTrace, Traced, call, place_of, same_graph
from planner.capture.untraceable import (
    Attributes,
    assign,
    changed,
    plain_attributes,
    refusing_draws,
    watching_switches,
)
from planner.errors import BadInput
from planner.workload import is_users

FAST = 1e-3  # relative, of the loss by torch's fast path


class _Loss(nn.Module):
    """The loss as a module of its own, so that its operations are known from those of the model."""

    def __init__(self, function: Callable[[object, object], object]) -> None:
        super().__init__()
        self.function = [function]  # in a list: a loss that is a module keeps its tensors to itself

    def forward(self, outputs: object, targets: object) -> object:
        made = self.function[0](outputs, targets)
        if isinstance(made, Mapping):
            raise BadInput(
                "loss() gives a dictionary", where="loss", allowed="one tensor, or a pair (sum, count)"
            )
        return made


class _Attributes:
    """The plain attributes of modules before and after a forward pass, and the states that it has assigned.

    An export puts the attributes of modules back, but not the plain ones.
    """

    before: Attributes
    after: Attributes
    assigned: dict[str, bool]  # whether the value that a buffer or attribute was assigned has a gradient
    sizes: list[torch.SymInt]  # of the batch, where they are symbols
    reads: Sequence[str] = ()  # lines that read '.data'


class _Whole(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[[object, object], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = _Loss(loss)
        self.seen = _Attributes()

    def forward(self, inputs: object, targets: object) -> object:
        with watching_switches(self.model) as self.seen.reads, refusing_draws(self.model):
            self.seen.sizes = symbols(inputs, targets)
            self.seen.before, held = plain_attributes(self.model), held_tensors(self.model)
            outputs = call(self.model, inputs)
            self.seen.after = plain_attributes(self.model)
            made = self.loss(outputs, targets)
            assigned = assigned_tensors(self.model, held)
            self.seen.assigned = {name: x.requires_grad for name, x in assigned.items()}
            return made, list(assigned.values())


def trace(
    module: nn.Module,
    loss: Callable[[object, object], object],
    examples: tuple[object, object],
    dims: object | None,
    micro: int,
    opaque: Opaque,
    *,
    training: bool = True,
) -> Traced:
    """Returns the flat graph of a module and its loss.

    Args: `dims` are the dynamic shapes of `examples`, a pair (inputs, targets); None captures for their size alone.
        `micro` is their batch; calls within `opaque` become one operation each; the module is in training mode, or
        else in evaluation mode.
    Raises: CannotTrace where the export fails; BadInput where the module changes plain attributes with every pass.

    Where a forward pass changes plain attributes, a second pass has to give the same graph and leave them as the first
    did. Otherwise the graph would hold one value of what goes on changing.
    """
    traced, seen = _trace(module, loss, examples, dims, micro, opaque, training)
    changes = changed(seen.before, seen.after)
    if changes:
        try:
            assign(module, seen.after, changes)
            again, seen_again = _trace(module, loss, examples, dims, micro, opaque, training)
        finally:
            assign(module, seen.before, changes)
        moving = changed(seen_again.before, seen_again.after)
        refuse_changes(moving or ([] if same_graph(traced, again) else changes), module)
    return traced


def _trace(
    module: nn.Module,
    loss: Callable[[object, object], object],
    examples: tuple[object, object],
    dims: object | None,
    micro: int,
    opaque: Opaque,
    training: bool,
) -> tuple[Traced, _Attributes]:
    whole, kept, given = _Whole(module, loss), Reachable(module, loss), list[warnings.WarningMessage]()
    _refuse_learning(kept.of_loss)
    fixed: list[tuple[object, str]] = []
    try:
        with (
            _mode(whole, training),
            contextlib.nullcontext() if training else _without_gradients(module),
            forgetting(),
            watching_fixed() as fixed,
            exportable(module) as restore,
            opaque,
            refusing_hooks(),
            quiet(given),
        ):
            program = torch.export.export(whole, examples, dynamic_shapes=dims, strict=False)  # type: ignore[arg-type]
    except Exception as error:  # the user's module ran in there: it may raise anything
        narrow = "Constraints violated" in str(error)
        sizes = whole.seen.sizes if narrow else ()
        loose = kept.unregistered(module)
        unnamed = next(iter(whole.seen.reads), "") or (place_of(module, loose[0], "") if loose else "")
        raise CannotTrace(sizes, fixed_at(sizes, fixed), unnamed) from error
    finally:
        kept.undo()
    _tell(given)
    assigned = whole.seen.assigned
    traced = flatten(program, module, examples, symbolic=dims is not None, micro=micro, assigned=assigned)
    restore(traced)
    opaque.restore(traced)
    return traced, whole.seen


@contextlib.contextmanager
def _without_gradients(module: nn.Module) -> Iterator[None]:
    """Turns gradients off, as an evaluation does; torch's fast path stays off where a weight is trained."""
    usual = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(
            usual and not any(x.requires_grad for x in module.parameters())
        )
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(usual)


def _refuse_learning(paths: list[str]) -> None:
    """Raises BadInput where a loss holds parameters that train: a plan would train those of the model alone."""
    if paths:
        raise BadInput(
            f"the loss holds '{paths[0]}', a parameter that trains, and a plan trains those of the model",
            where="loss",
            allowed="the parameter in the model, and among its outputs for the loss; or requires_grad_(False)",
        )


@contextlib.contextmanager
def _mode(whole: nn.Module, training: bool) -> Iterator[None]:
    before = {part: part.training for part in whole.modules()}
    attributes = {} if training else plain_attributes(whole)
    try:
        with contextlib.nullcontext() if training else _NoOperations():  # type: ignore[no-untyped-call]
            whole.train(training)
        if training and isinstance(model := whole.model, nn.Module) and before[model]:
            _refuse_mixed(model, before)
        yield
    finally:
        for part, trained in before.items():
            part.training = trained
        if not training:
            assign(whole, attributes, changed(attributes, plain_attributes(whole)))


def _refuse_mixed(model: nn.Module, before: Mapping[nn.Module, bool]) -> None:
    """Raises BadInput where a part of a model that trains was put into evaluation mode, which a trace would end."""
    for name, part in model.named_modules():
        if part.training and not before.get(part, True):
            raise BadInput(
                f"module '{name}' is in evaluation mode and the model is not; a plan trains it in training mode",
                allowed="its own train() that keeps it in evaluation mode, or the model in one mode",
            )


class _NoOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses any computation, as of a module whose `eval()` merges weights: ranks would go on with those they hold."""

    def __torch_dispatch__(
        self, function: OpOverload, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise BadInput(
            f"eval() of the model computes with its tensors ({function}), which a plan would not do",
            allowed="the same in forward(), under `if not self.training`",
        )


UNTRAINED = (
    "not properly registered as a parameter"  # of torch.export, about a tensor that it takes for a constant
)
_told: set[tuple[str, int, str]] = set()  # warnings that were given: a second trace does not give them again


@contextlib.contextmanager
def quiet(given: list[warnings.WarningMessage]) -> Iterator[None]:
    """Silences an export, which prints graphs when it fails; its warnings are put into `given`."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings(record=True) as found, contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            yield
    finally:
        logging.disable(before)
    given.extend(found)


def _tell(given: list[warnings.WarningMessage]) -> None:
    """Warns again of what concerns the user's model, once a line.

    Attributes that a forward pass assigns are no warning: they are carried or refused.
    """
    for each in given:
        key = (each.filename, each.lineno, str(each.message))
        if key not in _told and (is_users(each.filename) or UNTRAINED in key[2]):
            _told.add(key)
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def other_in_fast_path(module: nn.Module, loss: Callable[..., object], given: tuple[object, object]) -> str:
    """Returns a line where torch's fast path, which only an evaluation without gradients takes, gives another loss.

    Args: `given` is a batch, which stays as it is; the module is left in evaluation mode.
    """
    if not any(isinstance(part, nn.TransformerEncoder) for part in module.modules()):
        return ""
    module.eval()
    usual, found = torch.backends.mha.get_fastpath_enabled(), []
    try:
        for fast in (True, False):
            torch.backends.mha.set_fastpath_enabled(fast)
            inputs, targets = pytree.tree_map_only(Tensor, Tensor.clone, given)
            torch.manual_seed(0)
            with torch.no_grad():
                made = loss(call(module, inputs), targets)
            found.append(float(made[0] if isinstance(made, tuple) else made))  # type: ignore[arg-type]
    except Exception:  # the user's module ran in evaluation mode: it may raise anything
        return ""
    finally:
        torch.backends.mha.set_fastpath_enabled(usual)
    if abs(found[0] - found[1]) <= FAST * abs(found[1]):
        return ""
    return (
        f"module.eval() gives the loss {found[0]:.6g} by torch's fast path of nn.TransformerEncoder, which makes padded "
        f"places zero, and {found[1]:.6g} without it. Evaluations here take no fast path. Give enable_nested_tensor=False "
        "to nn.TransformerEncoder for the same numbers everywhere"
    )
