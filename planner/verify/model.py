"""Checks that a plan fits its model: layers, what crosses its cuts, work that takes time.

Also how a plan cuts samples in space and shares them: grids that the axis has ranks for, changes in the layers'
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

from planner.cost import setting_of
from planner.errors import Violation
from planner.model import Buffer, ModelGraph, Parameter, crossings, misplaced
from planner.plan import Hop, Plan, grids_of, layers_of, refused, schedule_of, shared_from
from planner.profile import Profile
from planner.schedule import Kind

Route = tuple[str, int, int]  # direction, sender, receiver


def layers(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields what is wrong with the layers of a plan.

    The stages, one after the other, are the layers of the model, each once and after the layers that it reads from.

    Args: `graph` is the model in the order of its capture.
    """
    if plan.model.fingerprint != graph.fingerprint:
        message = f"the plan is for {plan.model.fingerprint}, the model is {graph.fingerprint}"
        yield Violation(rule="model", where="model.fingerprint", message=message)
    planned = [(name, index) for index, stage in enumerate(plan.stages) for name in stage.layers]
    for name, index in planned:
        if name not in graph.index:
            yield _layer(name, f"is in stage {index}, but the model has none of that name")
    yield from repeated_layers(plan)
    for layer in graph.layers:
        if layer.name not in {name for name, _ in planned}:
            yield _layer(layer.name, "is missing; each layer of the model is in a stage")
    if sorted(name for name, _ in planned) == sorted(graph.index):
        yield from _order(plan, graph, dict(planned))


def _order(plan: Plan, graph: ModelGraph, stage_of: Mapping[str, int]) -> Iterator[Violation]:
    names = layers_of(plan)
    for late, early in dict(misplaced(graph, names)).items():
        yield _layer(late, f"stands in stage {stage_of[late]} before '{early}', which it hangs on")
    if plan.axes.spatial > 1 and list(names) != [layer.name for layer in graph.layers]:
        moved = next(a for a, b in zip(names, graph.index, strict=True) if a != b)
        yield _layer(moved, "leaves the order of the model, which samples cut in space do not")


def repeated_layers(plan: Plan) -> Iterator[Violation]:
    """Yields the layers that stand in a plan more than once, which can be told without the model.

    Args: `plan` may be for any model.
    """
    stages: dict[str, list[int]] = defaultdict(list)
    for index, stage in enumerate(plan.stages):
        for name in stage.layers:
            stages[name].append(index)
    for name, found in stages.items():
        if len(found) > 1:
            where = ", ".join(map(str, found))
            yield _layer(name, f"stands {len(found)} times, in stages {where}; each stands once")


def _layer(name: str, message: str) -> Violation:
    return Violation(rule="layers", where=f"layer '{name}'", message=message)


def violations(plan: Plan, graph: ModelGraph, profile: Profile | None = None) -> list[Violation]:
    """Returns what is wrong with batch, times and messages of a plan.

    Args: `plan` has the layers of the model; `graph` has them in the order of the plan. `profile` tells the bytes
        of Values; without it they are those of the capture.
    """
    joint = profile.optimizer.name if profile is not None and profile.optimizer.joint else ""
    whole = profile.optimizer.name if profile is not None and profile.optimizer.by_element is False else ""
    limits = refused(plan, graph, joint, whole)
    return [*limits, *_in_order(plan, graph), *_backwards(plan, graph), *_hops(plan, graph, profile)]


def _in_order(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields stages that write a state in another order of micro-batches than one process would."""
    rows: list[Parameter | Buffer] = [*graph.parameters, *(row for row in graph.buffers if row.mutated)]
    wrote = {user for row in rows if isinstance(row, Buffer) or row.written for user in row.users}
    for order in schedule_of(plan).orders:
        latest: dict[tuple[int, int], int] = {}
        for action in order:
            if action.kind is Kind.F and wrote.intersection(plan.stages[action.stage].layers):
                key = action.pipe, action.stage
                if latest.get(key, -1) > action.micro:
                    message = (
                        f"runs {action} after a later micro-batch, and writes state in its forward; in order"
                    )
                    yield Violation(rule="state", where=f"stage {action.stage}", message=message)
                latest[key] = action.micro


def _backwards(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields stages that train parameters in no time."""
    done = {(a.stage, a.kind) for order in schedule_of(plan).orders for a in order}
    trained = {name for parameter in graph.trained for name in parameter.users}
    for index, (stage, times) in enumerate(zip(plan.stages, plan.times, strict=True)):
        halves = times.input_grad_ns + times.weight_grad_ns
        for kind, key, planned in (
            (Kind.B, "backward_ns", times.backward_ns),
            (Kind.W, "input_grad_ns + weight_grad_ns", halves),
        ):
            if not planned and (index, kind) in done and trained.intersection(stage.layers):
                message = f"{key} is 0, but parameters are trained here; more than 0"
                yield Violation(rule="times", where=f"stage {index}", message=message)


def needed_hops(plan: Plan, graph: ModelGraph) -> dict[Route, set[str]]:
    """Returns the names of the Values on each way between stages.

    Activations go from the producer to every stage that reads them. Gradients go from each of these stages to the
    one before it, and from the first to the producer.

    Args: `graph` has the layers in the order of the plan.
    """
    stage_of = [index for index, stage in enumerate(plan.stages) for _ in stage.layers]
    ways: dict[Route, set[str]] = defaultdict(set)
    for crossing in crossings(graph, stage_of):
        for target in crossing.targets:
            ways["act", crossing.source, target].add(crossing.value)
        if graph.value[crossing.value].needs_grad:
            for receiver, sender in pairwise((crossing.source, *crossing.targets)):
                ways["grad", sender, receiver].add(crossing.value)
    return ways


class _Sizes:
    """The bytes of Values in one micro-batch.

    They are as profiled in the plan's precision, or as captured where no profile tells. A lower precision may halve
    those.
    """

    def __init__(self, plan: Plan, graph: ModelGraph, profile: Profile | None) -> None:
        key = setting_of(plan)
        told = profile is not None and key in profile.settings
        self.share = 1 if told or plan.precision == "fp32" else 2
        if profile is not None and told:
            self.of = {value.name: profile.value_bytes(value.name, key) for value in graph.values}
        else:
            self.of = {value.name: value.bytes(plan.batch.micro) for value in graph.values}

    def of_hop(self, hop: Hop, shards: int) -> tuple[int, int]:
        """Returns the least and the most bytes that a message may carry.

        Args: `shards` is the number of ranks that may share a sample.
        """
        whole = sum(self.of[name] for name in hop.values if name in self.of)
        return -(-whole // (shards * self.share)), whole


def _hops(plan: Plan, graph: ModelGraph, profile: Profile | None) -> Iterator[Violation]:
    sizes = _Sizes(plan, graph, profile)
    needed = needed_hops(plan, graph)
    given: dict[Route, set[str]] = {}
    for hop in plan.hops:
        route: Route = (hop.direction, hop.sender, hop.receiver)
        given[route] = set(hop.values)
        if twice := {name for name in hop.values if hop.values.count(name) > 1}:
            yield _hop(route, f"carries {_names(twice)} more than once")
        least, whole = sizes.of_hop(hop, plan.axes.spatial)
        if not least <= hop.bytes <= whole and given[route] == needed.get(route):
            right = f"{whole}" if least == whole else f"{least} to {whole}"
            yield _hop(route, f"carries {hop.bytes} bytes; its values have {right}")
    for route in sorted(needed.keys() | given.keys()):
        if missing := needed.get(route, set()) - given.get(route, set()):
            yield _hop(route, f"does not carry {_names(missing)}, which the receiver needs")
        if extra := given.get(route, set()) - needed.get(route, set()):
            yield _hop(route, f"carries {_names(extra)}, which does not pass here")


def _hop(route: Route, message: str) -> Violation:
    direction, sender, receiver = route
    return Violation(rule="hops", where=f"{direction} {sender} to {receiver}", message=message)


def _names(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def grids(plan: Plan) -> Iterator[Violation]:
    """Yields what is wrong with the grids of a plan.

    A stage's grid has one cell a spatial rank, or fewer that divide the ranks evenly, or the stage has whole
    samples.

    Args: `plan` may be for any model.
    """
    for index, stage in enumerate(plan.stages):
        where = f"stage {index}"
        for cells in grids_of(stage):
            if plan.axes.spatial % prod(cells) or prod(cells) == 1 < plan.axes.spatial:
                grid = " x ".join(map(str, cells))
                message = f"a grid of {grid} is not {plan.axes.spatial} shards, the spatial axis, nor a part of them"
                yield Violation(rule="spatial", where=where, message=message)
        turns = [turn.before for turn in stage.regrid] + [stage.gather_before] * bool(stage.gather_before)
        at = [stage.layers.index(layer) if layer in stage.layers else -1 for layer in turns]
        first = 1 if stage.regrid and not stage.regrid[0].samples else 0
        if at and (at[0] < first or at != sorted(set(at)) or bool(stage.regrid) > bool(stage.spatial)):
            message = f"samples change before {', '.join(turns)}; layers of a stage on shards but its first, in their order"
            yield Violation(rule="spatial", where=where, message=message)


def samples(plan: Plan) -> Iterator[Violation]:
    """Yields what is wrong where ranks share samples: they do so to the end of the last stage only, each as many.

    Args: `plan` may be for any model.
    """
    last, (micro, ranks) = len(plan.stages) - 1, (plan.batch.micro, plan.axes.spatial)
    for index, stage in enumerate(plan.stages):
        where = f"stage {index}"
        for turn in stage.regrid:
            if bool(turn.spatial) == turn.samples:
                message = f"before '{turn.before}' samples lie on another grid or are shared: one of the two"
                yield Violation(rule="spatial", where=where, message=message)
        shared = [turn.samples for turn in stage.regrid]
        if not any(shared):
            continue
        if index < last or any(shared[:-1]) or stage.gather_before:
            message = (
                f"shares samples from '{shared_from(stage)}' on; only the last stage does, and to its end"
            )
            yield Violation(rule="spatial", where=where, message=message)
        if micro % ranks:
            message = f"micro-batches of {micro} are not shared evenly by {ranks} ranks, the spatial axis"
            yield Violation(rule="spatial", where=where, message=message)
