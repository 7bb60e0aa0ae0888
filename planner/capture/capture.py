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

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from planner.capture.attention import restore_causal_flags
from planner.capture.batch import Batch, Span, example, growing_dims, held, repeated, uneven
from planner.capture.describe import NotAffine, describe
from planner.capture.fake_run import probe
from planner.capture.functional import functionalise
from planner.capture.layers import FREE, Grouping, group
from planner.capture.opaque import Opaque, observe
from planner.capture.slices import Slicing
from planner.capture.trace import depends_on_values, refused, trace
from planner.capture.traced_graph import CannotTrace, Traced, computes_alike, named_leaves
from planner.capture.untraceable import refuse_hooks
from planner.errors import BadInput, during
from planner.model import Buffer, ModelGraph, Parameter, served
from planner.shown import Shown
from planner.workload import Workload

Loss = Callable[..., object]
UNSYMBOLIC = (CannotTrace, NotAffine)


@dataclass(frozen=True, repr=False)
class Captured(Shown):
    """A model as plain data (`graph`), with the traced operations of each layer (`layout`) for stage modules."""

    graph: ModelGraph
    layout: Slicing
    left_out: Mapping[int, str] = field(
        default_factory=dict
    )  # micro-batches asked for and not served, and why

    def ordered(self, names: Sequence[str]) -> Captured:
        """Returns the captured model with its layers in another order.

        Args: `names` has every layer's name once; no layer stands before a layer that it depends on.
        """
        graph = self.graph.ordered(names)
        if graph is self.graph:
            return self
        layout, place = self.layout, [graph.index[name] for name in self.layout.grouping.names]
        moved = {x: i if i == FREE else place[i] for x, i in layout.grouping.layer_of.items()}
        grouping = Grouping(names=list(names), layer_of=moved)
        return Captured(graph, Slicing(layout.traced, grouping, layout.probes))

    def without(self, left: Mapping[int, str]) -> Captured:
        """Returns the captured model with the reasons why it does not serve some micro-batches.

        Args: `left` may have reasons for micro-batches that are served, too.
        """
        return replace(self, left_out={m: why for m, why in left.items() if not self.graph.serves(m)})

    @property
    def saved(self) -> dict[str, str]:
        """Returns the name of each tensor by its name in the state_dict of the user's module."""
        return self.layout.traced.saved

    def batch_values(self, inputs: object, targets: object) -> dict[str, Tensor]:
        """Returns the tensors of a batch by the names of their Values.

        Raises: BadInput where the batch lacks a tensor that the model reads.
        """
        leaves = [*named_leaves("input", inputs), *named_leaves("target", targets)]
        values = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor)}
        for value in self.graph.values:
            if value.role != "hidden" and value.consumers and value.name not in values:
                raise BadInput(f"the batch has no '{value.name}'", allowed=", ".join(values))
        return values

    def initial(self, module: nn.Module) -> dict[str, Tensor]:
        """Returns the parameters, buffers and constants of a module that was built for real, by their names.

        Raises: BadInput where the module lacks one of them, or has it in another shape.
        """
        known = dict(module.named_parameters()) | dict(module.named_buffers())
        found: dict[str, Tensor] = {}
        rows: list[Parameter | Buffer] = [*self.graph.parameters, *self.graph.buffers]
        for row in rows:
            tensor = known.get(row.name)
            if tensor is None:
                tensor = _attribute(module, row.name)
            if tensor is None:
                tensor = self.layout.traced.constants.get(row.name)
            if tensor is None or tuple(tensor.shape) != row.shape:
                raise BadInput(f"the module has no tensor '{row.name}' of shape {row.shape}")
            found[row.name] = tensor.detach()
        return found


def capture(
    source: Workload | nn.Module,
    batch: Batch | tuple[object, object] | None = None,
    loss: Loss | None = None,
    *,
    micro: int | Sequence[int] = 1,
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
    if isinstance(source, Workload):
        opaque = [*opaque, *source.opaque]
        where, mode, module = source.where, *_build(source, for_real=bool(opaque))
        batch, loss = source.batch, source.functions["loss"]
    else:
        where, mode, module = type(source).__name__, None, source
        if batch is None or loss is None:
            raise BadInput("a module needs batch and loss", allowed="capture(module, batch, loss)")
    refuse_hooks(module, where, opaque)
    asked = (micro,) if isinstance(micro, int) else tuple(micro)
    given = _Given(module, repeated(batch) if not callable(batch) else batch, loss, where, mode, opaque)
    with during("capturing the model"):
        return given.serving(asked, one=not isinstance(micro, int) or micro == 1)


@dataclass(frozen=True)
class _Given:
    """What is captured: a module with its batches and loss; `mode` are the fake tensors that it was built on."""

    module: nn.Module
    batch: Batch
    loss: Loss
    where: str
    mode: FakeTensorMode | None
    opaque: Sequence[str]

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
        small, large = (example(self.batch, n, self.mode) for n in span.sizes)
        dims = growing_dims(small, large, self.where, span)
        layers = Opaque(self.module, observe(self.module, self.opaque, [small, large]), span.sizes)
        try:
            traced = trace(self.module, self.loss, large, dims, span.large, layers)
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
                left[micro] = refused(failure, self.where).what
            else:
                rest = f"the model can be captured for one batch size at a time, and {micro} is"
                return found.without(dict.fromkeys(micros, rest) | left)
        said = refused(error, self.where)
        raise BadInput(said.what, where=said.where, allowed=instead or said.allowed) from error

    def _alone(self, micro: int) -> Traced:
        one = example(self.batch, micro, self.mode)
        layers = Opaque(self.module, observe(self.module, self.opaque, [one, one]), (micro, micro))
        return trace(self.module, self.loss, one, None, micro, layers)

    def _not_one(self, traced: Traced) -> str:
        """Returns why a graph does not hold for a batch of one sample; empty where it does.

        An export takes it for granted that a batch is none of one: `if len(x) == 1` and `squeeze()` leave no guard.
        """
        try:
            alone = self._alone(1)
        except CannotTrace as failure:
            return refused(failure, self.where).what
        except BadInput as error:
            return error.what
        return "" if computes_alike(traced, alone, 1) else "with one sample, forward() runs other operations"

    def _refuse_sizes(self) -> None:
        """Raises BadInput for sizes of a batch that do not fit together.

        With one sample such sizes may broadcast, and the model would then compute something else.
        """
        span = Span()
        small, large = (example(self.batch, n, self.mode) for n in span.sizes)
        odd = uneven(small, large, span)
        if not odd:
            return
        try:
            trace(self.module, self.loss, large, None, span.large, Opaque(self.module, {}, span.sizes))
        except CannotTrace as failure:
            error = refused(failure, self.where)
            said = f"batch(n): {odd}; {error.what}"
            raise BadInput(
                said, where=error.where, allowed="sizes that fit together for every n"
            ) from failure

    def _described(self, traced: Traced, sizes: tuple[int, int], span: Span | None = None) -> Captured:
        trainable = {name: parameter.requires_grad for name, parameter in self.module.named_parameters()}
        functional = _with_loss_layer(functionalise(traced, trainable, sizes[0]))
        first = probe(functional, sizes[0], trainable)
        restore_causal_flags(functional, first)
        second = probe(functional, sizes[1], trainable) if traced.symbolic else first
        layout = Slicing(functional, group(functional, first), (first, second))
        graph = describe(layout, self.module)
        if span is not None:
            graph = replace(graph, least_micro=span.least, most_micro=span.most or 0)
        return Captured(graph, layout)


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


def _build(workload: Workload, *, for_real: bool) -> tuple[FakeTensorMode | None, nn.Module]:
    """Builds the module on fake tensors if its code can, else for real."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    if not for_real:
        with contextlib.suppress(BadInput), mode:
            return mode, workload.build()
    with torch.random.fork_rng(devices=[]):
        return None, workload.build()


def _attribute(module: nn.Module, name: str) -> Tensor | None:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, Tensor) else None
