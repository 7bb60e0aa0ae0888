"""Says how each stage of a plan shares its parameters among replicas, in which units, and what is not allowed of it.

A unit is a run of consecutive layers whose parameters are gathered, freed and summed together. By default it is one
repeated block: layers whose names agree up to their first number, such as all of `blocks.3`. Layers without a number
are a unit with those of the same module. Where a stage recomputes its early layers alone, no unit has layers of both
kinds. A parameter that layers of several units use is a unit of its own. Units follow from the plan alone, so every
rank derives the same ones.

The end of the file says the same of the names of sums: who holds a stage, over which cards, and what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from planner.errors import BadInput, Violation
from planner.model import ModelGraph, own_states
from planner.plan.plan import Plan, StagePlan, StageShard
from planner.sums import names_for, offered, parse

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


def owners(ranks: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Deals parameters out among those who share the optimizer's state, by the middle of each when all lie in a row.

    Args: `sizes` has the elements of each parameter, in order.
    Returns: one of `ranks` for each parameter.

    >>> owners([0, 1], {"a": 4, "b": 2, "c": 3})
    {'a': 0, 'b': 1, 'c': 1}
    """
    total, start, found = max(1, sum(sizes.values())), 0, {}
    for name, size in sizes.items():
        found[name] = ranks[min(len(ranks) - 1, (start + size // 2) * len(ranks) // total)]
        start += size
    return found


def shared_by_element(plan: Plan) -> bool:
    """Returns whether replicas share the gradients or the parameters of some stage."""
    return any(stage.shard is not None and stage.shard.what in BY_ELEMENT for stage in plan.stages)


def unit_names(layers: Sequence[str], pattern: str = "") -> list[str]:
    """Returns the unit of each layer.

    Args: `layers` are names in the order of the plan; `pattern` has as many parts as the name of a unit, such as
        `blocks.*`; empty is one repeated block.
    Returns: a name for each layer; layers that no pattern matches are units of those that stand together. A name that
        comes again behind other layers is that of another unit.

    >>> unit_names(["gpt.embedding", "blocks.0.norm", "blocks.0.up", "blocks.1.norm", "gpt.norm"])
    ['gpt', 'blocks.0', 'blocks.0', 'blocks.1', 'gpt from gpt.norm']
    """
    found: list[str] = []
    for block, run in groupby(layers, lambda name: _block(name, pattern)):
        own = list(run)
        name = block or own[0]
        found += [f"{name} from {own[0]}" if name in found else name] * len(own)
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
            for message in (*told(plan, index, stage.shard), *_of_own_states(stage, graph)):
                yield Violation(rule="shard", where=where, message=message)
    if whole and shared_by_element(plan):
        message = (
            "updates parameters as wholes, or reads them when it is made, so that no rank can update a part of one: an "
            "element-wise optimizer such as AdamW, or what: state"
        )
        yield Violation(rule="optimizer", where=whole, message=message)
    yield from _apart(plan, graph)


def _of_own_states(stage: StagePlan, graph: ModelGraph) -> Iterator[str]:
    if stage.shard is None or stage.shard.what != "parameters":
        return
    for name, users in own_states(graph).items():
        if set(users).intersection(stage.layers):
            yield (
                f"shares parameters, but each replica updates '{name}' from whole ones for all micro-batches of a step: "
                "what: gradients, or what: state"
            )


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
    if plan.axes.spatial > 1 and not any(each.cut for each in plan.stages):
        yield f"shares {shard.what}, which does not go with samples cut in space: spatial: 1, or what: state"
    if plan.execution == "compiled":
        yield f"shares {shard.what}, which does not go with compiled stages: execution: eager, or what: state"
    if shard.unit and not any(_block(name, shard.unit) for name in stage.layers):
        units = ", ".join(dict.fromkeys(unit_names(stage.layers)))
        yield f"has unit '{shard.unit}', which no layer is part of; the stage has {units[:200]}"


def _apart(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields parameters of several stages that these share otherwise: their gradients could not be summed."""
    stage_of = {name: index for index, stage in enumerate(plan.stages) for name in stage.layers}
    for row in graph.parameters:
        stages = sorted({stage_of[user] for user in row.users if user in stage_of})
        if len({shard_of(plan, stage) for stage in stages}) > 1:
            message = f"is in stages {', '.join(map(str, stages))}, which do not share it alike: the same shard in all"
            yield Violation(rule="shard", where=f"'{row.name}'", message=message)


def holders_of(plan: Plan, stage: int) -> int:
    """Returns how many ranks hold a stage, over pipes, replicas and shards.

    Args: `stage` is a number of a stage.
    """
    workers = {row[stage] for row in plan.schedule.place}
    return len(workers) * plan.axes.data * plan.axes.spatial


def cards_of(plan: Plan) -> tuple[str, ...]:
    """Returns the interfaces of the network cards that sums of a plan go over; none where it lists none."""
    return plan.sums.cards if plan.sums is not None else ()


def told_sums(plan: Plan) -> str:
    """Returns how gradients are summed, in words; "" where that is as a run does by itself."""
    if plan.sums is None:
        return ""
    over = f" over {', '.join(plan.sums.cards)}" if plan.sums.cards else ""
    return ", ".join(dict.fromkeys(plan.sums.by)) + over


def refused_sums(plan: Plan) -> Iterator[Violation]:
    """Yields names of sums that the holders of a stage cannot use.

    Args: `plan` may name any sums, or none.
    """
    if plan.sums is None:
        return
    if len(plan.sums.by) != len(plan.stages):
        message = f"has {len(plan.sums.by)} names; {len(plan.stages)} stages need {len(plan.stages)}"
        yield Violation(rule="sums", where="sums.by", message=message)
        return
    for stage, text in enumerate(plan.sums.by):
        holders, cards, where = holders_of(plan, stage), max(1, len(plan.sums.cards)), f"sums.by[{stage}]"
        try:
            name = parse(text)
        except BadInput as error:
            yield Violation(rule="sums", where=where, message=f"{error.what}; {error.allowed}")
            continue
        if holders > 1 and not offered(name, holders, cards):
            there = ", ".join(map(str, names_for(holders, cards)))
            message = f"is {name}, which {holders} ranks over {cards} cards cannot use; they can {there}"
            yield Violation(rule="sums", where=where, message=message)
        if shard_of(plan, stage) is not None and str(name) != "direct":
            message = f"is {name}, but replicas share the stage, and each sums its part: direct"
            yield Violation(rule="sums", where=where, message=message)
