"""Runs the user's own module beside its captured graph, and refuses a graph that trains otherwise.

Some steps on small real batches: losses, gradients and buffers have to agree, and a step may leave nothing to the
next but parameters, buffers, and what the graph writes. So what an export freezes without a word is refused by name:
lists, counters, closures, numpy arrays, iterators, branches that run otherwise while a trace is made. A model too
large for that runs on fake tensors alone, which shows what is left behind, and not what is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from planner.capture.batch import SMALL, Batch, Pair, drawn, example, repeated
from planner.capture.beside import (
    APART,
    ASKS,
    SHARED,
    Beside,
    cure_of,
    overlapping,
    refuse_written,
    sharing,
    too_large,
)
from planner.capture.captured import Captured, Loss
from planner.capture.left_behind import CARRIED, Reachable
from planner.capture.live_bytes import Across
from planner.capture.trace import other_in_fast_path
from planner.capture.traced_graph import call, line_that_names, named_leaves, place_of
from planner.errors import BadInput
from planner.workload import Workload, where_raised

STEPS = 3


class _Unrun(Exception):
    """The module's own first step failed here, or it cannot be built: there is nothing to compare with."""


def check_training(
    captured: Captured,
    source: Workload | nn.Module,
    batch: Batch | Pair | None = None,
    loss: Loss | None = None,
    *,
    samples: int = SMALL,
) -> str:
    """Runs the user's own module for some steps beside its captured graph; the module is afterwards as it was.

    Args: `captured` is what `capture` made of the other arguments; `samples` is the batch of a step. A module that does
        not run with one sample, as a BatchNorm over nothing else, takes two.
    Returns: why the module was not run so, in one line; empty where it was.
    Raises: BadInput with what changes from step to step and where, if the graph trains otherwise.
    """
    build: Callable[[], nn.Module]
    if isinstance(source, Workload) and source.folder is not None:
        return ""  # it was run before its folder was written
    if isinstance(source, Workload):
        where, build, batch, loss = source.where, source.build, source.batch, source.functions["loss"]
    else:
        where, build = type(source).__name__, lambda: source
    if batch is None or loss is None:
        raise BadInput(
            "a module needs batch and loss", allowed="check_training(captured, module, batch, loss)"
        )
    batch = batch if callable(batch) else repeated(batch)
    samples = samples if captured.graph.symbolic_batch else captured.graph.captured_micro
    large = too_large(captured, samples)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if large:
                return _on_fake_tensors(captured, build, batch, loss, where, large)
            watched = _Watched(captured, build(), batch, loss, where)
            with watched.as_it_was():
                _train(watched, samples)
                _refuse_left_to_evaluation(watched, example(watched.batch, samples, None))
                given = example(watched.batch, samples, None)
                return other_in_fast_path(watched.module, watched.loss, given)
    except _Unrun as error:
        if captured.graph.symbolic_batch and samples < SMALL:
            return check_training(captured, source, batch, loss, samples=SMALL)
        return f"the module was not run beside its captured graph: {error}"


@dataclass
class _Watched:
    """The user's module and what it takes, with its captured graph."""

    captured: Captured
    module: nn.Module
    batch: Batch
    loss: Loss
    where: str
    across: Across = field(default_factory=Across)

    def __post_init__(self) -> None:
        self.start = Reachable(self.module, self.loss)
        self.before: Reachable | None = None  # after the last step

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Puts the module into training mode, and everything back at the end."""
        own = [*self.module.parameters(), *self.module.buffers()]
        kept = [(x, x.detach().clone(), x.grad) for x in own]
        modes = [(part, part.training) for part in self.module.modules()]
        try:
            self.module.train()
            for x in own:
                x.grad = None
            yield
        finally:
            self.start.undo()
            with torch.no_grad():
                for x, value, grad in kept:
                    if all(x.stride()) or not x.numel():  # nothing can write into an expanded one
                        x.copy_(value)
                    x.grad = grad
            for part, training in modes:
                part.training = training

    def forward(self, given: Pair) -> list[Tensor]:
        """Runs a forward pass of the module and its loss, and watches it."""
        inputs, targets = given
        changes = {row.name: row.mutated for row in self.captured.graph.buffers}
        changes |= {row.name: row.trainable for row in self.captured.graph.parameters}
        self.across.begin(
            [(x, changes[name]) for name, x in self.captured.initial(self.module).items()], given
        )
        with self.across:
            made = self.loss(call(self.module, inputs), targets)
        return list(made) if isinstance(made, tuple) else [made]  # type: ignore[list-item]

    def held(self) -> dict[str, Tensor]:
        """Returns what parameters, buffers and carried tensors hold now."""
        return {name: x.detach().clone() for name, x in self.captured.initial(self.module).items()}

    def refuse_left(self) -> Reachable:
        """Refuses what the last pass has used of an earlier one, or goes on changing; returns what is reached now."""
        after, crossing = Reachable(self.module, self.loss, to_undo=False), self.across.crossing
        if crossing is not None:
            known = (after.paths | (self.before or self.start).paths).get(crossing.storage, "")
            what = f"'{known}'" if known else "a tensor"
            said = (
                f"writes into {what}"
                if crossing.written
                else f"reads what an earlier step has left in {what}"
            )
            raise BadInput(
                f"forward() {said}, which a plan would not carry",
                where=crossing.line or place_of(self.module, known, self.where),
                allowed=cure_of(known, self.start, after),
            )
        if self.before is not None and (changes := self.before.changes(after)):
            said = f"forward() changes {', '.join(changes[:3])}"
            first = changes[0].split("'")[1]
            raise BadInput(
                f"{said}, which a plan would hold at what it is at the capture",
                where=place_of(self.module, first, self.where),
                allowed=cure_of(first, self.start, after),
            )
        self.before = after
        return after


def _train(watched: _Watched, samples: int) -> None:
    """Trains module and graph for some steps side by side."""
    trained = Beside(watched.captured, watched.module, watched.where, watched.start)
    for step in range(STEPS):
        torch.manual_seed(STEPS + step)
        given = drawn(watched.batch, samples)
        trained.aliased = overlapping([*named_leaves("input", given[0]), *named_leaves("target", given[1])])
        values = watched.captured.batch_values(*pytree.tree_map_only(Tensor, Tensor.clone, given))
        if (
            step == STEPS - 1
        ):  # one pass that nobody watches: what asks for modes may do something else under them
            torch.manual_seed(step)
            inputs, targets = pytree.tree_map_only(Tensor, Tensor.clone, given)
            made = watched.loss(call(watched.module, inputs), targets)
            torch.manual_seed(step)
            trained.compare_losses(
                step,
                made,
                pytree.tree_map_only(Tensor, Tensor.clone, values),
                watched.before or watched.start,
            )
        torch.manual_seed(step)
        own = _own_step(watched, given, step)
        after = watched.refuse_left()
        torch.manual_seed(step)
        trained.compare(step, own, values, after)


def _refuse_left_to_evaluation(watched: _Watched, given: Pair) -> None:
    """Refuses what an evaluation reads of the steps before it, beyond what a plan carries.

    An evaluation that fails says nothing: it may need other inputs, or a loss of its own.
    """
    watched.module.eval()
    try:
        with torch.no_grad():
            watched.forward(given)
    except Exception:  # the user's module ran: it may raise anything
        return
    crossing = watched.across.crossing
    if crossing is not None and not crossing.written:
        known = watched.before.paths.get(crossing.storage, "") if watched.before else ""
        what = f"'{known}'" if known else "a tensor"
        raise BadInput(
            f"in evaluation mode forward() reads what training has left in {what}, which a plan would not carry",
            where=crossing.line or place_of(watched.module, known, watched.where),
            allowed=CARRIED,
        )


def _own_step(watched: _Watched, given: Pair, step: int) -> list[Tensor]:
    try:
        made = watched.forward(given)
        if made[0].requires_grad:
            held = watched.held()
            made[0].backward()  # type: ignore[no-untyped-call]
            refuse_written(held, watched.captured.initial(watched.module), watched.module, watched.where)
    except BadInput:
        raise
    except Exception as error:  # the user's module ran: it may raise anything
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
        if not step and "inplace operation" not in said:  # it may need other samples, or another device
            raise _Unrun(f"its own first step fails here ({said})") from error
        begin = place_of(watched.module, "", watched.where)
        place, ways = where_raised(error, begin), "'.detach()' of what one step leaves to the next"
        raise BadInput(
            f"the module's own training fails in step {step + 1}: {said}", where=place, allowed=ways
        ) from error
    return made


def _built(build: Callable[[], nn.Module], mode: FakeTensorMode) -> nn.Module:
    """Returns the module on fake tensors if its code can build it so, else for real."""
    with suppress(BadInput), mode:
        return build()
    return build()


def _on_fake_tensors(
    captured: Captured, build: Callable[[], nn.Module], batch: Batch, loss: Loss, where: str, large: str
) -> str:
    """Runs forward passes on fake tensors, and refuses what they leave to each other; returns what was not compared."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        module = _built(build, mode)
        if shared := sharing(module):
            raise BadInput(f"{shared} {APART}", where=where, allowed=SHARED)
        if not any(isinstance(x, FakeTensor) for x in module.parameters()):
            with mode, FakeCopyMode(mode):
                module = copy.deepcopy(module)
        watched = _Watched(captured, module, batch, loss, where)
        samples = SMALL if captured.graph.symbolic_batch else captured.graph.captured_micro
        given, operations = example(batch, samples, mode), list[list[str]]()
        module.train()
        for _ in range(STEPS):
            with mode:
                watched.forward(given)
            after = watched.refuse_left()
            operations.append(watched.across.operations)
    except BadInput:
        raise
    except Exception as error:  # the user's module ran: it may raise anything
        raise _Unrun(f"{large}, and it does not run on fake tensors ({type(error).__name__})") from error
    finally:
        if "watched" in locals():
            watched.start.undo()
    if operations[0] != operations[-1]:
        changed = ", ".join(watched.start.changes(after)[:3])
        said = f"forward() changes {changed or 'something'}, and computes something else from then on"
        first = changed.split("'")[1] if changed else ""
        raise BadInput(said, where=place_of(module, first, where), allowed=CARRIED)
    asking = line_that_names(module, ASKS)
    return f"the module ran on fake tensors only, so that no values were compared: {large}" + (
        f"; {asking} asks whether it is traced" if asking else ""
    )
