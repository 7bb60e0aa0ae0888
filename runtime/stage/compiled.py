"""Compiled stages: of blocks that repeat, as those of a transformer do, one is compiled and serves for all.

Weights are arguments of a stage's graph, not parts of it. So two blocks of the same operations and shapes are
one program with other arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from planner.capture import LAYER, StageModule
from runtime.stage.graph_edits import graph_of

Form = tuple[object, ...]


def compile_stage(module: StageModule, signatures: Sequence[str]) -> None:
    """Compiles a stage in place; all other edits to its graph must have been done.

    Each size of micro-batch is compiled for itself.
    Args: `signatures` has one text a layer of the stage, equal for layers of the same operations and shapes.
    """
    run = graph_of(module)
    units = _units(run, blocks(signatures))
    if len({*units.values()}) == 1 or _has_contexts(run):
        module._run = torch.compile(run, dynamic=False)  # type: ignore[assignment]
        return
    parts = split_module(run, None, lambda node: units[node])  # type: ignore[arg-type]
    known: dict[Form, object] = {}
    for name, part in list(parts.named_children()):
        assert isinstance(part, fx.GraphModule)
        form = _form(part)
        known.setdefault(form, torch.compile(part, dynamic=False))
        setattr(parts, name, known[form])
    parts._orig_mod = run
    module._run = parts


def blocks(signatures: Sequence[str]) -> list[int]:
    """Returns the number of the unit that each layer belongs to.

    Each copy of a repeated run of layers is a unit, and so is what lies between such runs.
    Args: `signatures` has one text a layer, in order.
    Returns: one number a layer, counted from 0.
    """
    found: list[int] = []
    unit, i = -1, 0
    between = False
    while i < len(signatures):
        length, copies = _repeat(signatures, i)
        if copies > 1:
            for _ in range(copies):
                unit += 1
                found += [unit] * length
            i += length * copies
        else:
            unit += not between
            found.append(unit)
            i += 1
        between = copies == 1
    return found


def _repeat(signatures: Sequence[str], start: int) -> tuple[int, int]:
    """Returns length and number of the copies that begin here and cover most layers; of equals, the shortest copy."""
    best = (1, 1)
    for length in range(1, (len(signatures) - start) // 2 + 1):
        block = signatures[start : start + length]
        copies = 1
        while signatures[start + copies * length : start + (copies + 1) * length] == block:
            copies += 1
        if copies > 1 and length * copies > best[0] * best[1]:
            best = (length, copies)
    return best


def _units(run: fx.GraphModule, of_layer: Sequence[int]) -> dict[fx.Node, int]:
    """Returns the unit of each node; a node without a layer goes with what follows the layer before it."""
    layers = [node.meta[LAYER] for node in run.graph.nodes if LAYER in node.meta]
    first, unit = min(layers, default=0), 0
    found: dict[fx.Node, int] = {}
    for node in run.graph.nodes:
        unit = max(unit, of_layer[node.meta[LAYER] - first]) if LAYER in node.meta else unit
        found[node] = unit
    return found


def _has_contexts(run: fx.GraphModule) -> bool:
    """Returns whether the graph changes a mode, such as autocast, which may reach over several blocks."""
    return any(
        node.op == "call_function" and getattr(node.target, "__name__", "") in _CONTEXTS
        for node in run.graph.nodes
    )


_CONTEXTS = ("_enter_autocast", "_exit_autocast", "set_grad", "_set_grad_enabled")


def _form(part: fx.GraphModule) -> Form:
    """Returns a form that is equal for graphs that do the same to their arguments; a graph that holds
    objects equals none."""
    number = {node: i for i, node in enumerate(part.graph.nodes)}
    if any(node.op not in ("placeholder", "call_function", "output") for node in part.graph.nodes):
        return (id(part),)
    return tuple(
        (
            node.op,
            "" if node.op == "placeholder" else node.target,
            _text(node.args, number),
            _text(node.kwargs, number),
        )
        for node in part.graph.nodes
    )


def _text(arguments: fx.node.Argument, number: dict[fx.Node, int]) -> str:
    return repr(fx.map_arg(arguments, lambda node: f"\0{number[node]}"))
