"""Writes nodes of a captured graph as the integers that spatial rules read.

An `Operation` has arguments by the names of the schema, and global shapes.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.capture.export_workarounds import average_batch_norm
from planner.capture.fake_run import unknown
from planner.capture.layers import FREE, ROOT
from planner.capture.slices import Slicing
from planner.capture.traced_graph import line_of
from planner.errors import BadInput
from planner.model import ModelGraph
from planner.spatial import (
    GETITEM,
    INPUT,
    NONE,
    OTHERWISE,
    STATE,
    TARGET,
    Given,
    Operation,
    Ref,
    read_operations,
    to_text,
)

Target = OpOverload | Callable[..., Tensor]  # an operation of torch, or `average_batch_norm`


def operations_of(layout: Slicing) -> tuple[Operation, ...]:
    """Returns all operations of a captured model.

    Returns: Values and states come under their own names, everything else under its node's.
    """
    sources, values = layout.traced.sources, layout.probes[0].value
    names: dict[fx.Node, str] = {}
    found = []
    for node in layout.traced.graph.nodes:
        if node in sources:
            kind = sources[node].kind
            state = kind not in ("input", "target")
            names[node] = f"state:{sources[node].name}" if state else sources[node].name
            shapes = _shapes(values[node]) or ((),)
            given = STATE if state else INPUT if kind == "input" else TARGET
            found.append(Operation(names[node], "", given, {}, shapes, samples_of(layout, node)))
            continue
        names[node] = layout.crossing.get(node, f"%{node.name}")
        index = layout.grouping.layer_of.get(node, FREE)
        layer = "" if index == FREE else layout.grouping.names[index]
        operation = operation_of(node, values, layer)
        if operation is not None and not layout.is_size(node):
            renamed = {x.name: names[x] for x in node.all_input_nodes}
            arguments = {name: _renamed(value, renamed) for name, value in operation.arguments.items()}
            samples = samples_of(layout, node)
            found.append(replace(operation, name=names[node], arguments=arguments, samples=samples))
    return tuple(found)


def with_names(model: ModelGraph, layout: Slicing) -> ModelGraph:
    """Returns a model whose operations have the names of their nodes here, where its graph was made anew from data.

    Args: `model` has them as they were captured, with the modules that they are written in.
    Returns: a model without operations where the two do not match.
    Raises: BadInput where its operations do not agree with each other.
    """
    before = read_operations(model)
    after = operations_of(layout) if before else ()
    if [x.operation for x in before] != [x.operation for x in after]:
        return replace(model, operations=())
    names = {old.name: new.name for old, new in zip(before, after, strict=True)}
    lines = []
    for old in before:
        arguments = {key: _renamed(value, names) for key, value in old.arguments.items()}
        lines.append(to_text(replace(old, name=names[old.name], arguments=arguments)))
    return replace(model, operations=tuple(lines))


def check_sizes(layout: Slicing, nodes: Iterable[fx.Node]) -> None:
    """Refuses operations that make a size which only the values of tensors tell.

    Args: `nodes` are of the graph that `layout` slices.
    Raises: BadInput, which names the first of them and the user's line.
    """
    for node in nodes:
        if not unknown(layout.probes[0].value.get(node)):
            continue
        stack, target = node.meta.get("stack"), node.target
        path = "loss()" if node.meta.get("in_loss") else f"module '{stack[-1][0] or ROOT}'" if stack else ""
        name = operation_name(target) if isinstance(target, OpOverload) else str(target)
        raise BadInput(
            f"how much {name} gives depends on the values of tensors, so that no plan can tell what it costs",
            where=", ".join(filter(None, (line_of(node), path))),
            allowed="sizes that shapes tell: in a loss ignore_index, elsewhere a product with the mask or torch.where "
            "in the place of x[mask], nonzero or masked_select",
        )


def samples_of(layout: Slicing, node: fx.Node) -> tuple[int, ...]:
    """Returns the dimension of samples of each tensor that a node makes.

    Returns: NONE for a tensor that does not grow with the batch, OTHERWISE where no single dimension is a multiple of
        it; an empty tuple where the model was captured for one batch, which does not tell.
    """
    low, high = layout.probes
    if low.n == high.n:
        return ()
    few, many = (_shapes(probe.value[node]) or ((),) for probe in layout.probes)
    return tuple(_growing(a, b, low.n, high.n) for a, b in zip(few, many, strict=True))


def _growing(few: tuple[int, ...], many: tuple[int, ...], low: int, high: int) -> int:
    dims = [dim for dim, (a, b) in enumerate(zip(few, many, strict=True)) if a != b]
    if not dims:
        return NONE
    return dims[0] if len(dims) == 1 and few[dims[0]] * high == many[dims[0]] * low else OTHERWISE


def _renamed(value: Given, names: Mapping[str, str]) -> Given:
    if isinstance(value, Ref):
        return Ref(names[value.name])
    return tuple(_renamed(x, names) for x in value) if isinstance(value, tuple) else value


def operation_of(node: fx.Node, values: Mapping[fx.Node, object], layer: str) -> Operation | None:
    """Returns a node as an Operation.

    Args: `values` has what each node gave on fake tensors; `layer` is the node's layer.
    Returns: None for what makes no tensor (sizes, contexts), which every rank computes alike.
    """
    shapes, path = _shapes(values.get(node)), _path(node, layer)
    if node.op != "call_function" or shapes is None:
        return None
    if node.target is operator.getitem:
        arguments = {"self": _given(node.args[0], values), "index": _given(node.args[1], values)}
        return Operation(node.name, layer, GETITEM, arguments, shapes, path=path)
    if not isinstance(node.target, OpOverload) and node.target is not average_batch_norm:
        refs = tuple(Ref(x.name) for x in node.all_input_nodes)
        name = getattr(node.target, "__name__", str(node.target))
        return Operation(node.name, layer, name, {"tensors": refs}, shapes, path=path)
    named = named_arguments(node.target, node.args, node.kwargs)
    arguments = {name: _given(value, values) for name, value in named.items()}
    return Operation(node.name, layer, operation_name(node.target), arguments, shapes, path=path)


def _path(node: fx.Node, layer: str) -> str | None:
    """Returns the path of the module that a node is written in, where that is not its layer's; else None."""
    stack = node.meta.get("stack")
    if not stack or not layer or node.meta.get("in_loss"):
        return None
    path, own = str(stack[-1][0]), layer.partition("#")[0]
    return None if (path or ROOT) == own else path


def operation_name(target: Target) -> str:
    """Returns the name of an operation without its overload, such as "aten.conv3d".

    Args: `target` may also be `average_batch_norm`.
    """
    if not isinstance(target, OpOverload):
        return "aten.batch_norm"  # its running statistics apart, `average_batch_norm` is no other operation
    return target._schema.name.replace("::", ".")


def named_arguments(
    target: Target, args: Iterable[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Returns arguments by the names of the operation's schema.

    Returns: defaults stand where nothing is given.
    """
    if not isinstance(target, OpOverload):
        return dict(inspect.signature(target).bind(*args, **kwargs).arguments)
    given = list(args)
    named: dict[str, object] = {}
    for i, argument in enumerate(target._schema.arguments):
        if i < len(given) and not argument.kwarg_only:
            named[argument.name] = given[i]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    return named


def _given(value: object, values: Mapping[fx.Node, object]) -> Given:
    if isinstance(value, fx.Node):
        held = values.get(value)
        if isinstance(held, int | float | torch.SymInt):
            return int(held) if not isinstance(held, float) else held
        return Ref(value.name)
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, list | tuple):
        return tuple(_given(x, values) for x in value)
    return str(value)  # dtypes, devices and the like: no rule reads them


def _shapes(value: object) -> tuple[tuple[int, ...], ...] | None:
    if isinstance(value, Tensor):
        return (tuple(int(n) for n in value.shape),)
    if isinstance(value, list | tuple) and value and all(isinstance(x, Tensor) for x in value):
        return tuple(tuple(int(n) for n in x.shape) for x in value)
    return None
