"""A captured stage on one rank of a group: its graph rewritten, and of its parameters only the parts it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from planner.capture import Captured, StageModule, name_of, operations_of
from planner.layout import GroupLayout, LocalGraph, Mesh, Wish, granted, propagate, unmet
from runtime.layout.moves import CutGroup, region
from runtime.layout.rewrite import localise
from runtime.spatial import matched

STATE = "state:"  # before the name of a parameter or buffer, among the tensors of a `LocalGraph`


def local_graph(captured: Captured, mesh: Mesh, wishes: Sequence[Wish]) -> LocalGraph:
    """Returns a captured model as the ranks of a group compute it.

    Args: `mesh` has the parts along each axis; `wishes` say which modules take which factor.
    Raises: NoRule for what cannot be done exactly, BadInput for a wish that no module can grant.
    """
    operations = operations_of(captured.layout)
    trained = {f"{STATE}{row.name}" for row in captured.graph.parameters if row.trainable}
    leaving = {value.name for value in captured.graph.values}
    graph = propagate(operations, mesh, granted(wishes, operations), trained, _resolved(captured) & leaving)
    unmet(wishes, graph.taken, operations)
    return graph


def _resolved(captured: Captured) -> set[str]:
    """Returns the names of what a model hands out: its loss, and what else is asked of it."""
    layout = captured.layout
    return {layout.crossing[node] for node in layout.traced.outputs}


def cut_stage(module: StageModule, graph: LocalGraph, group: CutGroup) -> None:
    """Rewrites a stage for one rank of a group, in place; its tensors must have been loaded whole.

    Args: `graph` is of the whole model.
    """
    held = held_of(module, graph)
    for name, layout in held.items():
        slot = next(x for x in module._states if name_of(x) == name)
        tensor = getattr(module, slot)
        if any(layout.cuts):
            own = region(tensor.detach(), layout, group).clone()
            parameter = torch.nn.Parameter(own, tensor.requires_grad)
            setattr(module, slot, parameter if isinstance(tensor, torch.nn.Parameter) else own)
    localise(module._run, nodes_of(module), graph, group)


def held_of(module: StageModule, graph: LocalGraph) -> Mapping[str, GroupLayout]:
    """Returns how a stage's own tensors are held, by the user's names."""
    names = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    return {name: graph.states[STATE + name] for name in names if STATE + name in graph.states}


def nodes_of(module: StageModule) -> dict[str, fx.Node]:
    """Returns the nodes of a stage's graph by the names of the tensors that they make.

    Args: `module` must not have been rewritten.
    """
    layout, taken = module._layout, module._slice
    sources, nodes = layout.traced.sources, matched(module)
    found = {}
    for node in (*taken.reads, *taken.states, *taken.nodes):
        if node.name not in nodes:
            continue
        name = layout.crossing.get(node, f"%{node.name}")
        if node in sources:
            given = sources[node].kind in ("input", "target")
            name = sources[node].name if given else STATE + sources[node].name
        found[name] = nodes[node.name]
    return found
