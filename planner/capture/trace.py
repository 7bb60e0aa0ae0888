"""Traces a module and its loss to one flat graph of ATen operations, by torch.export.

The flat graph has no nested graphs. What ran under `no_grad` or `autocast` carries that as its context, which is
entered again where stages are cut. Each operation knows the module path that it ran under.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

from planner.capture.export_workarounds import exportable
from planner.capture.flatten import flatten, unnamed
from planner.capture.left_behind import Reachable
from planner.capture.opaque import Opaque
from planner.capture.state_use import assigned_tensors, held_tensors
from planner.capture.traced_graph import CannotTrace, Traced, call
from planner.capture.untraceable import (
    Attributes,
    assign,
    changed,
    plain_attributes,
    refuse_changes,
    refusing_draws,
    refusing_hooks,
    same_graph,
    watching_switches,
)
from planner.errors import BadInput
from planner.workload import where_raised


class _Loss(nn.Module):
    """The loss as a module of its own, so that its operations are known from those of the model."""

    def __init__(self, function: Callable[[object, object], object]) -> None:
        super().__init__()
        self.function = [function]  # in a list: a loss that is a module keeps its tensors to itself

    def forward(self, outputs: object, targets: object) -> object:
        return self.function[0](outputs, targets)


class _Attributes:
    """The plain attributes of modules before and after a forward pass, and the states that it has assigned.

    An export puts the attributes of modules back, but not the plain ones.
    """

    before: Attributes
    after: Attributes
    assigned: dict[str, bool]  # whether the value that a buffer or attribute was assigned has a gradient


class _Whole(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[[object, object], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = _Loss(loss)
        self.seen = _Attributes()

    def forward(self, inputs: object, targets: object) -> object:
        with watching_switches(self.model), refusing_draws():
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
) -> Traced:
    """Returns the flat graph of a module and its loss.

    Args: `dims` are the dynamic shapes of `examples`, a pair (inputs, targets); None captures for their size alone.
        `micro` is their batch; calls within `opaque` become one operation each.
    Raises: CannotTrace where the export fails; BadInput where the module changes plain attributes with every pass.

    Where a forward pass changes plain attributes, a second pass has to give the same graph and leave them as the first
    did. Otherwise the graph would hold one value of what goes on changing.
    """
    traced, seen = _trace(module, loss, examples, dims, micro, opaque)
    changes = changed(seen.before, seen.after)
    if changes:
        try:
            assign(module, seen.after, changes)
            again, seen_again = _trace(module, loss, examples, dims, micro, opaque)
        finally:
            assign(module, seen.before, changes)
        moving = changed(seen_again.before, seen_again.after)
        refuse_changes(moving or ([] if same_graph(traced, again) else changes), type(module).__name__)
    return traced


def _trace(
    module: nn.Module,
    loss: Callable[[object, object], object],
    examples: tuple[object, object],
    dims: object | None,
    micro: int,
    opaque: Opaque,
) -> tuple[Traced, _Attributes]:
    whole, kept = _Whole(module, loss), Reachable(module, loss)
    try:
        with _training(whole), exportable(module) as restore, opaque, refusing_hooks(), _quiet():
            program = torch.export.export(whole, examples, dynamic_shapes=dims, strict=False)  # type: ignore[arg-type]
    except Exception as error:  # the user's module ran in there: it may raise anything
        raise CannotTrace from error
    finally:
        kept.undo()
    assigned = whole.seen.assigned
    traced = flatten(program, module, examples, symbolic=dims is not None, micro=micro, assigned=assigned)
    restore(traced)
    opaque.restore(traced)
    return traced, whole.seen


@contextlib.contextmanager
def _training(whole: nn.Module) -> Iterator[None]:
    before = {part: part.training for part in whole.modules()}
    try:
        whole.train()
        yield
    finally:
        for part, training in before.items():
            part.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences an export, which warns of attributes that a forward pass assigns, and prints graphs when it fails."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def refused(failure: Exception, where: str) -> BadInput:
    """Returns a failed export as one message with the user's own line.

    Args: `where` stands in the message where no line is known.
    """
    error = failure.__cause__ or failure
    if isinstance(error, BadInput):
        return (
            error
            if error.where
            else BadInput(error.what, where=where_raised(error, where), allowed=error.allowed)
        )
    text = str(error)
    if "a fake tensor in the exported program constant" in text or "from fake tensor input" in text:
        return unnamed(where_raised(error, where))
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    place, code = where_raised(error, where), ""
    call = re.search(
        r'The following call raised this error:\s+File "(.+?)", line (\d+), in .*\n\s*(.*)', text
    )
    if call is not None:
        place, code = f"{call[1]}:{call[2]}", f" in `{call[3].strip()}`"
    if depends_on_values(failure):
        return BadInput(
            f"what runs depends on the values of tensors{code}, which no plan can follow: {first:.160}",
            where=place,
            allowed="branches and shapes that only settings and the shapes of the inputs decide; or the paths of "
            "such modules, as opaque = ['path.of.a.module'] in the workload",
        )
    given = (
        "inputs as forward() takes them: a tuple by position, a dictionary by the names of its arguments"
        if isinstance(error, TypeError) and "forward()" in first
        else ""
    )
    return BadInput(f"cannot be captured: {type(error).__name__}: {first:.300}", where=place, allowed=given)


def depends_on_values(failure: Exception) -> bool:
    """Returns whether an export failed because sizes or branches depend on the values of tensors.

    Args: `failure` is the CannotTrace, or its cause.
    """
    error = failure.__cause__ or failure
    words = ("data-dependent", "data dependent", "DataDependent", "Could not guard", "unbacked")
    return any(word in f"{type(error).__name__} {error}" for word in words)
