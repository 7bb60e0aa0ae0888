"""Batch normalisation over the micro-batches that all replicas run at the same time, as SyncBatchNorm asks
for.

Micro-batch i of all replicas counts as one batch. Statistics and gradients equal those of one process with
micro-batches as large as all replicas' together. Replicas run the same actions in the same order, so their
sums meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import fx

from planner.capture import SYNCHRONISED, StageModule
from planner.plan import Plan
from runtime.spatial import GroupWire, OverReplicas, SampleGroup, called
from runtime.stage import graph_of, states_of
from runtime.world import World


def marked(module: StageModule) -> list[fx.Node]:
    """Returns the synchronised batch norms of a stage, as nodes of its graph.

    Args: `module` is the stage.
    """
    return [node for node in graph_of(module).graph.nodes if SYNCHRONISED in node.meta]


def states(module: StageModule) -> frozenset[str]:
    """Returns the names of statistics and counters that move once for the micro-batches of all replicas.

    Args: `module` is the stage that holds them.
    """
    names, buffers = states_of(module), dict(module.named_buffers())
    means = [names[x] for node in marked(module) for x in node.all_input_nodes[1:] if names.get(x) in buffers]
    counters = {f"{name.rpartition('.')[0]}.num_batches_tracked".removeprefix(".") for name in means}
    return frozenset(means) | counters


def peers(plan: Plan, every: Sequence[StageModule], world: World) -> SampleGroup | None:
    """Returns the group of this rank's replicas, None where no batch norm is synchronised.

    All ranks call this, because communicators are made in one order.
    Args: `every` has the modules of all stages.
    """
    if plan.axes.data == 1 or not any(marked(module) for module in every):
        return None
    mine: dist.ProcessGroup | None = None
    for pipeline in sorted({place.pipeline for place in plan.places}):
        members = sorted((p for p in plan.places if p.pipeline == pipeline), key=lambda p: p.data)
        group = world.new_group([place.rank for place in members])
        mine = mine if group is None else group
    assert mine is not None
    return SampleGroup((plan.axes.data,), GroupWire(mine))


def synchronise(modules: Mapping[int, StageModule], mesh: SampleGroup) -> None:
    """Replaces the marked batch norms of stages by ones that sum over all replicas.

    Args: `modules` are changed in place; `mesh` is the group of replicas.
    """
    for module in modules.values():
        run = graph_of(module)
        for count, node in enumerate(marked(module)):
            name = f"synchronised_{count}"
            assert callable(node.target)
            setattr(run, name, OverReplicas(node.target, mesh))
            with run.graph.inserting_before(node):
                held = run.graph.create_node("get_attr", name)
                new = run.graph.call_function(called, (held, *node.args))
            node.replace_all_uses_with(new)
            run.graph.erase_node(node)
        run.recompile()
