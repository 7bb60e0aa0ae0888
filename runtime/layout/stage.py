"""A captured stage on one rank of a group: its graph rewritten, and of its parameters only the parts it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from planner.capture import Captured, StageModule, name_of, with_names
from planner.layout import STATE_PREFIX, GroupLayout, LocalGraph, Mesh, Wish, cut_of
from runtime.layout.moves import CutGroup, region
from runtime.layout.rewrite import localise
from runtime.spatial import matched

STATE = STATE_PREFIX


def local_graph(captured: Captured, mesh: Mesh, wishes: Sequence[Wish]) -> LocalGraph:
    """Returns a captured model as the ranks of a group compute it, for the micro-batch that was captured.

    Args: `mesh` has the parts along each axis; `wishes` say which modules take which factor.
    Raises: NoRule for what cannot be done exactly, BadInput for a wish that no module can grant.
    """
    return cut_of(with_names(captured.graph, captured.layout), captured.layout.probes[0].n, mesh, wishes)


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
