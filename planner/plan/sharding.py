"""Says what ranks share in each stage of a plan, and what is not allowed of it.

Replicas may share its parameters, in units; the ranks of a group share samples on grids, or tensors that are cut.

A unit is a run of consecutive layers whose parameters are gathered, freed and summed together. By default it is one
repeated block: layers whose names agree up to their first number, such as all of `blocks.3`. Layers without a number
are a unit with those of the same module. Where a stage recomputes its early layers alone, no unit has layers of both
kinds. A parameter that layers of several units use is a unit of its own. Units follow from the plan alone, so every
rank derives the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from math import prod

from planner.errors import Violation
from planner.layout import LocalGraph, Wish, cut_of, refused_cut
from planner.model import ModelGraph
from planner.plan.plan import CutLine, Plan, StagePlan, StageShard
from planner.plan.yaml import wishes_in

STATE = StageShard(what="state")
BY_ELEMENT = (
    "gradients",
    "parameters",
)  # cut between any two elements, so the optimizer must be element-wise


def shard_of(plan: Plan, stage: int) -> StageShard | None:
    """Returns what replicas of a stage share; None where each holds everything.

    Args: `stage` is a number of a stage; `shard_optimizer: true` is read as `{what: state}` of all stages.
    """
    own = plan.stages[stage].shard
    return own if own is not None else STATE if plan.shard_optimizer else None


def shard_ranks(plan: Plan, shard: StageShard) -> int:
    """Returns how many replicas hold one copy among them, where gradients or parameters are shared.

    Args: `shard` has 0 ranks where it means all replicas.
    """
    return shard.ranks or plan.axes.data


def told_shared(plan: Plan) -> str:
    """Returns what replicas share by element, in words; "" where that is nothing."""
    shards = {
        stage.shard for stage in plan.stages if stage.shard is not None and stage.shard.what in BY_ELEMENT
    }
    return " and ".join(sorted(f"{each.what} over {shard_ranks(plan, each)}" for each in shards))


def updaters(plan: Plan, stage: int) -> int:
    """Returns among how many ranks the update of a stage is shared; 1 where each makes all of it.

    Args: `stage` is a number of a stage.
    """
    shard = shard_of(plan, stage)
    if shard is None:
        return 1
    holders = len(plan.schedule.place) * plan.axes.data * plan.axes.spatial
    return shard_ranks(plan, shard) if shard.what in BY_ELEMENT else holders


def shared_by_element(plan: Plan) -> bool:
    """Returns whether replicas share the gradients or the parameters of some stage."""
    return any(stage.shard is not None and stage.shard.what in BY_ELEMENT for stage in plan.stages)


def unit_names(layers: Sequence[str], pattern: str = "") -> list[str]:
    """Returns the unit of each layer.

    Args: `layers` are names in the order of the plan; `pattern` has as many parts as the name of a unit, such as
        `blocks.*`; empty is one repeated block.
    Returns: a name for each layer; layers that no pattern matches are units of those that stand together.

    >>> unit_names(["embedding", "blocks.0.norm", "blocks.0.up", "blocks.1.norm", "head"])
    ['embedding', 'blocks.0', 'blocks.0', 'blocks.1', 'head']
    """
    found: list[str] = []
    for block, run in groupby(layers, lambda name: _block(name, pattern)):
        own = list(run)
        found += [block or own[0]] * len(own)
    return found


def _block(layer: str, pattern: str) -> str:
    parts = layer.partition("#")[0].split(".")
    if pattern:
        name = ".".join(parts[: pattern.count(".") + 1])
        return name if fnmatchcase(name, pattern) else ""
    first = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts) - 2)
    return ".".join(parts[: max(1, first + 1)])


def units_of_parameters(plan: Plan, graph: ModelGraph) -> dict[str, str]:
    """Returns the unit of every parameter that a layer uses.

    Args: `graph` is the model of the plan.
    Returns: names of units by parameter; a parameter of several units has one that joins their names.
    """
    unit_of: dict[str, str] = {}
    for stage in plan.stages:
        names = _units_of(stage)
        unit_of |= dict(zip(stage.layers, names, strict=True))
    return {
        row.name: " + ".join(sorted({unit_of[user] for user in row.users}))
        for row in graph.parameters
        if row.users
    }


def _units_of(stage: StagePlan) -> list[str]:
    """Returns the unit of each layer; one that the end of what is recomputed goes through is two units."""
    names = unit_names(stage.layers, stage.shard.unit if stage.shard else "")
    if stage.recompute_before not in stage.layers[1:]:
        return names
    first = stage.layers.index(stage.recompute_before)
    return [*names[:first], *(f"{name}, kept" for name in names[first:])]


def refused_shards(plan: Plan, graph: ModelGraph, whole: str = "") -> Iterator[Violation]:
    """Yields what cannot be had of the sharing that a plan asks for.

    Args: `graph` is the model; `whole` names an optimizer that needs whole parameters, "" is any other.
    """
    for index, stage in enumerate(plan.stages):
        if stage.shard is not None:
            where = f"stages[{index}].shard"
            told = _of_state if stage.shard.what == "state" else _of_elements
            for message in told(plan, index, stage.shard):
                yield Violation(rule="shard", where=where, message=message)
    if whole and shared_by_element(plan):
        message = (
            "updates parameters as wholes, so that no rank can update a part of one: an element-wise optimizer such "
            "as AdamW, or what: state"
        )
        yield Violation(rule="optimizer", where=whole, message=message)
    yield from _apart(plan, graph)


def _of_state(plan: Plan, index: int, shard: StageShard) -> Iterator[str]:
    if shard.ranks or shard.unit:
        yield "shares optimizer state by whole parameters among all holders: neither ranks nor unit"


def _of_elements(plan: Plan, index: int, shard: StageShard) -> Iterator[str]:
    data, stage = plan.axes.data, plan.stages[index]
    ranks = shard_ranks(plan, shard)
    if ranks < 2 or data % ranks:
        yield (
            f"shares {shard.what} among {ranks} ranks, but the stage has {data} data replicas: a divisor of data from "
            "2 on; pipes and shards of a sample do not share them"
        )
    if plan.axes.spatial > 1:
        yield f"shares {shard.what}, which does not go with samples cut in space: spatial: 1, or what: state"
    if plan.execution == "compiled":
        yield f"shares {shard.what}, which does not go with compiled stages: execution: eager, or what: state"
    units = unit_names(stage.layers, shard.unit)
    if shard.unit and not any(_block(name, shard.unit) for name in stage.layers):
        yield f"has unit '{shard.unit}', which no layer is part of; the stage has {', '.join(units)[:200]}"


def _apart(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields parameters of several stages that these share otherwise: their gradients could not be summed."""
    stage_of = {name: index for index, stage in enumerate(plan.stages) for name in stage.layers}
    for row in graph.parameters:
        stages = sorted({stage_of[user] for user in row.users if user in stage_of})
        if len({shard_of(plan, stage) for stage in stages}) > 1:
            message = f"is in stages {', '.join(map(str, stages))}, which do not share it alike: the same shard in all"
            yield Violation(rule="shard", where=f"'{row.name}'", message=message)


def is_cut(plan: Plan) -> bool:
    """Returns whether some stage of a plan cuts tensors over its group."""
    return any(stage.cut for stage in plan.stages)


def mesh_of(plan: Plan) -> tuple[int, ...]:
    """Returns the ranks along each axis of a plan's group.

    Args: `plan` has the same axes in all stages that cut tensors.
    """
    return next((stage.mesh for stage in plan.stages if stage.cut and stage.mesh), (plan.axes.spatial,))


def wishes_of(plan: Plan) -> tuple[Wish, ...]:
    """Returns the cuts of all stages, each line once with the stages that have it.

    Args: a line that every stage has is for the whole model, also for modules that lie in several stages.
    """
    found: dict[Wish, set[int]] = {}
    for index, stage in enumerate(plan.stages):
        for wish in wishes_in(stage.cut):
            found.setdefault(wish, set()).add(index)
    every = len(plan.stages)
    return tuple(
        wish._replace(stages=() if len(stages) == every else tuple(sorted(stages)))
        for wish, stages in found.items()
    )


def graph_on_group(plan: Plan, graph: ModelGraph, micro: int = 0) -> LocalGraph:
    """Returns the model of a plan as the ranks of its group compute it.

    Args: `graph` is the model, in any order; the plan must be right for it; `micro` is the plan's where it is 0.
    """
    stages = [stage.layers for stage in plan.stages]
    return cut_of(graph, micro or plan.batch.micro, mesh_of(plan), wishes_of(plan), stages)


def refused_cuts(plan: Plan, graph: ModelGraph, whole: str = "") -> Iterator[Violation]:
    """Yields what cannot be had of the cuts that a plan asks for.

    Args: `graph` is the model; `whole` names an optimizer that needs whole parameters, "" is any other.
    """
    if not is_cut(plan):
        return
    found = [*_not_with_cuts(plan), *_meshes(plan)]
    if whole:
        found.append(
            f"{whole} looks at whole parameters, and ranks have parts: an element-wise optimizer such as AdamW"
        )
    if written := [row.name for row in graph.buffers if row.mutated] + [
        x.name for x in graph.parameters if x.written
    ]:
        found.append(
            f"a forward writes '{written[0]}', which ranks of a group with a cut do not keep equal: no cut"
        )
    if not found:
        names = [x.layers for x in plan.stages]
        why = refused_cut(graph, plan.batch.micro, mesh_of(plan), wishes_of(plan), names)
        found += [why] if why else []
    for message in found:
        yield Violation(rule="cut", where="cut", message=message)


def _not_with_cuts(plan: Plan) -> Iterator[str]:
    """Yields decisions that do not go together with tensors in parts."""
    stages = plan.stages
    both = {
        "execution: compiled": plan.execution == "compiled",
        "precision: fp16": plan.precision == "fp16",
        "pruned weights": plan.kept is not None,
        "shares of the batch": bool(plan.batch.shares),
        "ema": plan.ema,
        "update: rolling": plan.schedule.update == "rolling",
        "grids over space": any(x.spatial or x.gather_before or x.regrid for x in stages),
        "parameters, gradients or state shared among replicas": any(
            shard_of(plan, i) for i in range(len(stages))
        ),
        "recompute_before": any(x.recompute_before for x in stages),
    }
    yield from (
        f"tensors in parts do not go with {what}: one of the two" for what, met in both.items() if met
    )


def _meshes(plan: Plan) -> Iterator[str]:
    ranks, meshes = (
        plan.axes.spatial,
        {stage.mesh or (plan.axes.spatial,) for stage in plan.stages if stage.cut},
    )
    for mesh in sorted(meshes):
        if prod(mesh) != ranks or not 1 <= len(mesh) <= len(CutLine.model_fields) - 1:
            shown = " x ".join(map(str, mesh))
            yield f"a mesh of {shown} is {prod(mesh)} ranks on {len(mesh)} axes; the group has {ranks}, on up to 3 axes"
    if ranks < 2:
        yield "nothing can be cut in a group of 1 rank: a group of 2 or more"
    if len(meshes) > 1:
        yield f"stages have {len(meshes)} different meshes; all have the same one"
    used = max(axis for wish in wishes_of(plan) for axis in (wish.axis,)) + 1 if wishes_of(plan) else 0
    if not used:
        yield "a line names no factor; each line has one, such as x: heads"
    for mesh in meshes:
        if len(mesh) < used:
            yield f"a line names {used} axes, and the group has {len(mesh)}: mesh, such as [2, 2]"
