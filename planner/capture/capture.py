"""Captures any module as layers: `capture` traces it with its loss, and `cut` makes stage modules of what it gives.

    captured = capture(load("gpt2", {"size": "tiny"}))        # on fake tensors: nothing large is allocated
    captured = capture(module, batch, loss)                    # batch(n) -> (inputs, targets)
    captured.graph                                             # the ModelGraph: layers, Values, parameters
    captured.batch_values(inputs, targets)                     # {"input.0": tensor, ..., "target": tensor}
    captured.initial(module)                                   # every tensor that stages hold, by the user's names

Every rank captures for itself and compares `captured.graph.fingerprint` with the plan's. The module runs in training
mode. The batch is symbolic where the model allows it; else the graph serves the micro-batch `micro` alone. What no
trace can follow may be named as opaque layers, which run as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from planner.capture.attention import restore_causal_flags
from planner.capture.batch import LARGE, SMALL, Batch, Pair, example, growing_dims, repeated, uneven
from planner.capture.captured import Captured, Loss, Origin
from planner.capture.describe import NotAffine, describe
from planner.capture.fake_run import Probe, probe
from planner.capture.functional import functionalise
from planner.capture.layers import group
from planner.capture.opaque import Opaque, observe
from planner.capture.slices import Slicing
from planner.capture.trace import depends_on_values, refused, trace
from planner.capture.traced_graph import CannotTrace, Traced
from planner.capture.travel import from_data
from planner.capture.untraceable import refuse_hooks
from planner.errors import BadInput
from planner.model import ModelGraph
from planner.workload import WEIGHTS, Workload

UNSYMBOLIC = (CannotTrace, NotAffine)
Made = TypeVar("Made")


def capture(
    source: Workload | nn.Module,
    batch: Batch | tuple[object, object] | None = None,
    loss: Loss | None = None,
    *,
    micro: int = 1,
    opaque: Sequence[str] = (),
) -> Captured:
    """Returns a module as layers, traced with its loss.

    Args: `batch` and `loss` come with a workload. For a module they are functions as a workload has them; `batch` may
        also be one example (inputs, targets) with the samples along the first dimension of its tensors. `micro` is the
        only micro-batch that is served where no symbolic one is possible. `opaque` has paths of modules that are taken
        as layers without a look into them.
    Raises: BadInput with the user's line, where the module cannot be captured.
    Example: capture(nn.Linear(8, 1), lambda n: (torch.rand(n, 8), torch.rand(n, 1)), nn.functional.mse_loss)
    """
    if isinstance(source, Workload) and source.folder is not None:
        data = source.folder.data
        return from_data(data["captured"], source.folder.tensors(WEIGHTS), data["evaluation"])
    if isinstance(source, Workload):
        opaque = [*opaque, *source.opaque]
        where = source.where
        batch, loss = source.batch, source.functions["loss"]
    else:
        where = type(source).__name__
        if batch is None or loss is None:
            raise BadInput("a module needs batch and loss", allowed="capture(module, batch, loss)")
    if not callable(batch):
        batch = repeated(batch)
    build = partial(_build, source, for_real=bool(opaque))
    origin = Origin(where=where, build=build, batch=batch, loss=loss, micro=micro, opaque=opaque)
    graph, layout = traced_with(origin, _described)
    return Captured(graph, layout, origin)


def traced_with(origin: Origin, read: Callable[[Traced, nn.Module], Made], *, training: bool = True) -> Made:
    """Traces a model, for all sizes of micro-batches if it can be, and reads the graph.

    Args: `read` takes the graph and the module; the module is in training mode, or else in evaluation mode.
    Returns: what `read` makes of the graph.
    Raises: BadInput with the user's line, where the module cannot be traced in this mode.
    """
    mode, module = origin.build()
    where, batch, loss, micro, opaque = origin.where, origin.batch, origin.loss, origin.micro, origin.opaque
    refuse_hooks(module, where, opaque)
    small, large = example(batch, SMALL, mode), example(batch, LARGE, mode)
    dims = growing_dims(small, large, where)
    try:
        calls = observe(module, opaque, [small, large], training)
        layers = Opaque(module, calls, (SMALL, LARGE), training)
        return read(trace(module, loss, large, dims, LARGE, layers, training=training), module)
    except UNSYMBOLIC as failure:
        reason = failure
    _refuse_sizes(module, loss, small, large, where)
    try:
        one = example(batch, micro, mode)
        layers = Opaque(module, observe(module, opaque, [one, one], training), (micro, micro), training)
        return read(trace(module, loss, one, None, micro, layers, training=training), module)
    except UNSYMBOLIC as failure:
        # One sample may be too few where what is really wrong is something else.
        error = reason if depends_on_values(reason) else failure
        raise refused(error, where) from error


def _refuse_sizes(module: nn.Module, loss: Loss, small: Pair, large: Pair, where: str) -> None:
    """Raises BadInput for sizes of a batch that do not fit together.

    With one sample such sizes may broadcast, and the model would then compute something else.
    """
    odd = uneven(small, large)
    if not odd:
        return
    try:
        trace(module, loss, large, None, LARGE, Opaque(module, {}, (LARGE, LARGE)))
    except CannotTrace as failure:
        error = refused(failure, where)
        said = f"batch(n): {odd}; {error.what}"
        raise BadInput(said, where=error.where, allowed="sizes that fit together for every n") from failure


def _described(traced: Traced, module: nn.Module) -> tuple[ModelGraph, Slicing]:
    functional, probes = probed(traced, module)
    layout = Slicing(functional, group(functional, probes[0]), probes)
    return describe(layout, module), layout


def probed(traced: Traced, module: nn.Module) -> tuple[Traced, tuple[Probe, Probe]]:
    """Makes a graph functional, with the loss as a layer, and runs it on fake tensors.

    Args: `module` tells which parameters need a gradient.
    Returns: the graph, and its runs at two sizes of a batch, or twice the same run where it serves one size.
    """
    trainable = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    sizes = (SMALL, LARGE) if traced.symbolic else (traced.micro, traced.micro)
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


def _build(source: Workload | nn.Module, *, for_real: bool) -> tuple[FakeTensorMode | None, nn.Module]:
    """Builds the module of a workload on fake tensors if its code can, else for real."""
    if isinstance(source, nn.Module):
        return None, source
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    if not for_real:
        with contextlib.suppress(BadInput), mode:
            return mode, source.build()
    with torch.random.fork_rng(devices=[]):
        return None, source.build()
