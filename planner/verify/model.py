"""Checks whether a plan fits its model: layers, what crosses its cut, work that takes time.

Also checks how a plan cuts samples in space and shares them: grids fit the spatial axis, changes of the grid follow
the layers' order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

from planner.errors import Violation
from planner.model import ModelGraph, crossings, misplaced
from planner.plan import Hop, Plan, grids_of, layers_of, schedule_of, shared_from
from planner.profile import CostKey, Profile
from planner.schedule import Kind

Route = tuple[str, int, int]  # direction, sender, receiver


def layers(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Checks whether the stages have each layer of the model once, and after the layers that it depends on.

    Args: `graph` is the model that the plan should be for.
    Yields: a violation for each layer that is unknown, missing, repeated or misplaced, and for another fingerprint.
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
    """Checks what can be known of layers without the model: that each stands once.

    Args: `plan` with its stages.
    Yields: a violation of the rule `layers` for each layer that stands more often.
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
    """Returns where a plan contradicts its model.

    Args: the plan's layers are the layers of `graph`; a `profile` gives exact bytes of messages.
    Returns: violations of the micro-batch, of backward times that are 0, and of hops.
    """
    return [*_micro(plan, graph), *_backwards(plan, graph), *_hops(plan, graph, profile)]


def _micro(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    if not graph.symbolic_batch and plan.batch.micro != graph.captured_micro:
        message = f"is {plan.batch.micro}, but the model was captured for {graph.captured_micro} only"
        yield Violation(rule="batch", where="batch.micro", message=message)


def _backwards(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Checks whether training a parameter takes time."""
    done = {(a.stage, a.kind) for order in schedule_of(plan).orders for a in order}
    trained = {name for parameter in graph.parameters if parameter.trainable for name in parameter.users}
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
    """Returns the values that must travel between stages.

    Args: the plan's layers are the layers of `graph`.
    Returns: names by (direction, sender, receiver). Activations go from the producer to every stage that reads them.
    Gradients go from each reading stage to the reading stage before it, and from the first one to the producer.
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
    """Bytes of values in one micro-batch, as profiled in the plan's precision.

    Without a profile they are bytes as captured, which lower precisions may halve.
    """

    def __init__(self, plan: Plan, graph: ModelGraph, profile: Profile | None) -> None:
        key = CostKey("", plan.batch.micro, (), plan.precision, plan.execution)
        told = profile is not None and key in profile.settings
        self.share = 1 if told or plan.precision == "fp32" else 2
        if profile is not None and told:
            self.of = {value.name: profile.value_bytes(value.name, key) for value in graph.values}
        else:
            self.of = {value.name: value.bytes(plan.batch.micro) for value in graph.values}

    def of_hop(self, hop: Hop, shards: int) -> tuple[int, int]:
        """Returns the least and the most bytes that a hop may carry."""
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
    """Checks whether every grid of a stage has a cell for each spatial rank, or for groups of ranks of equal size.

    Args: `plan`; a stage without a grid computes whole samples.
    Yields: a violation of the rule `spatial` for each wrong grid, and for grids that change at layers out of order.
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
    """Checks whether ranks share whole samples in the last stage alone, to its end, and each as many.

    Args: `plan`, whose stages may have changes of the grid.
    Yields: a violation of the rule `spatial` for each change that is wrong.
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
