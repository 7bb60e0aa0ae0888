"""Captures any module as layers: `capture` traces it with its loss, and `cut` makes stage modules of what it gives.

    captured = capture(load("gpt2", {"size": "tiny"}))        # on fake tensors: nothing large is allocated
    captured = capture(module, batch, loss)                    # batch(n) -> (inputs, targets)
    captured.graph                                             # the ModelGraph: layers, Values, parameters
    captured.batch_values(inputs, targets)                     # {"input.0": tensor, ..., "target": tensor}
    captured.initial(module)                                   # every tensor that stages hold, by the user's names

Every rank captures for itself and compares `captured.graph.fingerprint` with the plan's. The module runs in training
mode. The batch is symbolic where the model allows it, for all sizes or a range of them; else the graph serves one
micro-batch alone. What no trace can follow may be named as opaque layers, which run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture.batch import Batch, Span, example, growing_dims, held, repeated, uneven
from planner.capture.captured import Captured, Loss, Metrics, Origin
from planner.capture.describe import NotAffine, describe
from planner.capture.fake_run import Probe, build_fake, is_small, probe
from planner.capture.flatten import UNNAMED
from planner.capture.functional import functionalise
from planner.capture.layers import group
from planner.capture.opaque import Opaque, observe
from planner.capture.refusals import depends_on_values, refuse_hooks, refuse_unready, refused
from planner.capture.slices import Slicing, restore_causal_flags
from planner.capture.trace import trace
from planner.capture.traced_graph import LOSS, CannotTrace, Traced, WholeLoss, computes_alike, parts_of
from planner.capture.travel import from_data
from planner.errors import BadInput, during
from planner.model import served
from planner.workload import WEIGHTS, Workload

UNSYMBOLIC = (CannotTrace, NotAffine)
Made = TypeVar("Made")
Sizes = tuple[int, int]  # two batch sizes that a graph is run at; twice the same where it serves one


def capture(
    source: Workload | nn.Module,
    batch: Batch | tuple[object, object] | None = None,
    loss: Loss | None = None,
    *,
    metrics: Metrics | None = None,
    micro: int | Sequence[int] = (1, 2),
    opaque: Sequence[str] = (),
) -> Captured:
    """Returns a module as layers, traced with its loss.

    Args: `batch` and `loss` come with a workload. For a module they are functions as a workload has them; `batch` may
        also be one example (inputs, targets) with the samples along the first dimension of its tensors. `micro` is the
        micro-batch to be served, or several, of which as many as possible are. `opaque` has paths of modules that
        are taken as layers without a look into them.
    Raises: BadInput with the user's line, where the module cannot be captured.
    Example: capture(nn.Linear(8, 1), lambda n: (torch.rand(n, 8), torch.rand(n, 1)), nn.functional.mse_loss)
    """
    asked = (micro,) if isinstance(micro, int) else tuple(micro)
    if isinstance(source, Workload) and source.folder is not None:
        data = source.folder.data
        found = from_data(data["captured"], source.folder.tensors(WEIGHTS), data["evaluation"])
        return found.without(dict.fromkeys(asked, f"the model is captured for {served(found.graph)}"))
    if isinstance(source, Workload):
        origin = origin_of(source, opaque)
    elif batch is None or loss is None:
        raise BadInput("a module needs batch and loss", allowed="capture(module, batch, loss)")
    else:
        origin = Origin(
            where=type(source).__name__,
            build=partial(build_fake, source, for_real=bool(opaque)),
            batch=batch if callable(batch) else repeated(batch),
            loss=loss,
            opaque=opaque,
            metrics=metrics,
        )
    one = not isinstance(micro, int) or micro == 1
    with during("capturing the model"):
        try:
            return Tracing.of(origin).serving(asked, one=one)
        except BadInput as error:  # of a plain tensor that was built on fake tensors nobody has the values
            if error.what != UNNAMED or not isinstance(source, Workload) or not is_small(origin.build()[1]):
                raise
        for_real = replace(origin, build=partial(build_fake, source, for_real=True))
        return Tracing.of(for_real).serving(asked, one=one)


def origin_of(workload: Workload, opaque: Sequence[str] = ()) -> Origin:
    """Returns what a workload is traced from.

    Args: `opaque` has paths of opaque modules beside those that the workload names.
    """
    opaque = [*opaque, *workload.opaque]
    return Origin(
        where=workload.where,
        build=partial(build_fake, workload, for_real=bool(opaque)),
        batch=workload.batch,
        loss=workload.functions["loss"],
        opaque=opaque,
        metrics=workload.functions.get("metrics"),
    )


@dataclass(frozen=True)
class Tracing:
    """A module that is traced with its batches and loss; `mode` are the fake tensors that it was built on."""

    origin: Origin
    module: nn.Module
    loss: Loss
    mode: FakeTensorMode | None
    training: bool

    @classmethod
    def of(cls, origin: Origin, *, training: bool = True) -> Tracing:
        """Builds the module of an origin, to be traced in training mode or in evaluation mode."""
        mode, module = origin.build()
        refuse_unready(module, origin.where)
        refuse_hooks(module, origin.where, origin.opaque)
        whole = LOSS in origin.opaque and LOSS not in dict(module.named_modules())
        return cls(origin, module, WholeLoss(origin.loss) if whole else origin.loss, mode, training)

    def serving(self, micros: Sequence[int], *, one: bool) -> Captured:
        """Returns the capture that serves most of the micro-batches, with why others are left out.

        Args: `one` says whether a batch of one is looked at, which an export leaves out.
        Raises: BadInput where none can be served.
        """
        first, reason, instead = Span(), None, ""
        for span in [first, *(Span(small=m) for m in micros if m > first.large)][:2]:
            try:
                traced, span = self._traced(span)
                why = self._not_one(traced) if one and span.least == 1 else ""
                found = self._described(traced, span.sizes, replace(span, least=2) if why else span)
            except UNSYMBOLIC as failure:
                reason = reason or failure
                if depends_on_values(failure):
                    break
                continue
            instead = served(found.graph)
            if any(map(found.graph.serves, micros)):
                left = dict.fromkeys(micros, f"the model is captured for {instead}")
                return found.without(left | ({1: why} if why and 1 in left else {}))
        return self._single(micros, reason, instead)

    def _traced(self, span: Span) -> tuple[Traced, Span]:
        """Returns a graph that holds for a range of batch sizes, with that range.

        Raises: CannotTrace where there is none.
        """
        small, large = (example(self.origin.batch, n, self.mode) for n in span.sizes)
        dims = growing_dims(small, large, self.origin.where, span)
        layers = self._opaque([small, large], span.sizes)
        try:
            traced = trace(self.module, self.loss, large, dims, span.large, layers, training=self.training)
        except CannotTrace as failure:
            smaller = span.within(*held(failure.sizes, small, large, span)) if failure.sizes else None
            if smaller is None or smaller == span:
                raise
            return self._traced(smaller)
        return traced, span

    def _single(self, micros: Sequence[int], reason: Exception | None, instead: str) -> Captured:
        """Returns the capture of the first micro-batch for which there is one.

        Args: `reason` is why there is none for several, or `instead` says for which others there is one.
        Raises: BadInput where there is none at all.
        """
        self._refuse_sizes()
        left: dict[int, str] = {}
        for micro in micros:
            try:
                found = self._described(self._alone(micro), (micro, micro))
            except UNSYMBOLIC as failure:
                # One sample may be too few where what is really wrong is something else.
                error = reason if reason is not None and depends_on_values(reason) else failure
                left[micro] = refused(failure, self.origin.where, self.module).what
            else:
                why = getattr(reason, "fixed", "")
                rest = f"the model can be captured for one batch size at a time, and {micro} is{why}"
                return replace(found.without(dict.fromkeys(micros, rest) | left), alone=rest)
        said = refused(error, self.origin.where, self.module)
        raise BadInput(said.what, where=said.where, allowed=instead or said.allowed) from error

    def _alone(self, micro: int) -> Traced:
        one = example(self.origin.batch, micro, self.mode)
        layers = self._opaque([one, one], (micro, micro))
        return trace(self.module, self.loss, one, None, micro, layers, training=self.training)

    def _not_one(self, traced: Traced) -> str:
        """Returns why a graph does not hold for a batch of one sample; empty where it does.

        An export takes it for granted that a batch is none of one: `if len(x) == 1` and `squeeze()` leave no guard.
        """
        try:
            alone = self._alone(1)
        except CannotTrace as failure:
            return refused(failure, self.origin.where, self.module).what
        except BadInput as error:
            return error.what
        other = "with one sample, forward() runs other operations; `--micro 1` alone measures these"
        return "" if computes_alike(traced, alone, 1) else other

    def _refuse_sizes(self) -> None:
        """Raises BadInput for sizes of a batch that do not fit together.

        With one sample such sizes may broadcast, and the model would then compute something else.
        """
        span = Span()
        small, large = (example(self.origin.batch, n, self.mode) for n in span.sizes)
        odd = uneven(small, large, span)
        if not odd:
            return
        try:
            trace(
                self.module,
                self.loss,
                large,
                None,
                span.large,
                Opaque({}, {}, span.sizes, self.training),
                training=self.training,
            )
        except CannotTrace as failure:
            error = refused(failure, self.origin.where, self.module)
            said = f"batch(n): {odd}; {error.what}"
            raise BadInput(
                said, where=error.where, allowed="sizes that fit together for every n"
            ) from failure

    def _opaque(self, batches: Sequence[tuple[object, object]], sizes: Sizes) -> Opaque:
        calls = observe(self.module, self.loss, self.origin.opaque, batches, self.training)
        return Opaque(parts_of(self.module, self.loss), calls, sizes, self.training)

    def _described(self, traced: Traced, sizes: Sizes, span: Span | None = None) -> Captured:
        functional, probes = probed(traced, self.module, sizes)
        layout = Slicing(functional, group(functional, probes[0]), probes)
        graph = describe(layout, self.module)
        if span is not None:
            graph = replace(graph, least_micro=span.least, most_micro=span.most or 0)
        return Captured(graph, layout, self.origin)

    def read(self, span: Span | None, micro: int, read: Callable[[Traced, nn.Module, Sizes], Made]) -> Made:
        """Traces the module for a range of batch sizes if it can be, else for one micro-batch, and reads the graph.

        Args: `span` is None where only `micro` is to be served. `read` takes the graph, the module, and two sizes.
        Raises: BadInput with the user's line, where the module cannot be traced in this mode.
        """
        reason: Exception | None = None
        try:
            if span is not None:
                traced, span = self._traced(span)
                return read(traced, self.module, span.sizes)
        except UNSYMBOLIC as failure:
            reason = failure
        self._refuse_sizes()
        try:
            return read(self._alone(micro), self.module, (micro, micro))
        except UNSYMBOLIC as failure:
            error = reason if reason is not None and depends_on_values(reason) else failure
            raise refused(error, self.origin.where, self.module) from error


def probed(traced: Traced, module: nn.Module, sizes: Sizes) -> tuple[Traced, tuple[Probe, Probe]]:
    """Makes a graph functional, with the loss as a layer, and runs it on fake tensors.

    Args: `module` tells which parameters need a gradient; `sizes` are of the batches to run it at.
    Returns: the graph, and its runs at two sizes of a batch, or twice the same run where it serves one size.
    """
    trainable = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    functional = _with_loss_layer(functionalise(traced, trainable, sizes[0]))
    first = probe(functional, sizes[0], trainable)
    restore_causal_flags(functional, first)
    return functional, (first, probe(functional, sizes[1], trainable) if traced.symbolic else first)


def _with_loss_layer(traced: Traced) -> Traced:
    """Returns the graph with the loss as a layer, also where the model itself has computed the loss."""
    outputs = []
    for node in traced.outputs:
        if not node.meta.get("in_loss"):
            with traced.graph.inserting_after(list(traced.graph.nodes)[-1]):
                copy = traced.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {"val": node.meta["val"], "context": (), "in_loss": True}
            node = copy
        outputs.append(node)
    traced.outputs = tuple(outputs)
    return traced
