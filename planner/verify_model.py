"""Does a plan fit its model: layers, what crosses its cuts, gradients that must be summed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from planner.model import ModelGraph, Parameter, crossings
from planner.plan import Plan
from planner.schedule.action import Kind
from planner.simulate import schedule_of
from planner.violation import Violation

Route = tuple[str, int, int]  # direction, sender, receiver


def layers(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """The stages, one after the other, are the layers of the model, each once and in its order."""
    if plan.model.fingerprint != graph.fingerprint:
        message = f"the plan is for {plan.model.fingerprint}, the model is {graph.fingerprint}"
        yield Violation(rule="model", where="model.fingerprint", message=message)
    planned = [(name, index) for index, stage in enumerate(plan.stages) for name in stage.layers]
    counts = Counter(name for name, _ in planned)
    for name, index in planned:
        if name not in graph.index:
            yield _layer(name, f"is in stage {index}, but the model has none of that name")
    for name in dict.fromkeys(name for name, _ in planned):
        if counts[name] > 1:
            where = ", ".join(str(index) for other, index in planned if other == name)
            yield _layer(name, f"stands {counts[name]} times, in stages {where}; each stands once")
    for layer in graph.layers:
        if layer.name not in counts:
            yield _layer(layer.name, "is missing; each layer of the model is in a stage")
    known = [(name, index) for name, index in planned if name in graph.index]
    for (before, _), (name, index) in pairwise(known):
        if graph.index[name] < graph.index[before]:
            yield _layer(name, f"comes after '{before}' in stage {index}, but before it in the model")


def _layer(name: str, message: str) -> Violation:
    return Violation(rule="layers", where=f"layer '{name}'", message=message)


def violations(plan: Plan, graph: ModelGraph) -> list[Violation]:
    """For a plan whose layers are those of the model."""
    return [*_micro(plan, graph), *_hops(plan, graph), *_updates(plan, graph)]


def _micro(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    if not graph.symbolic_batch and plan.batch.micro != graph.captured_micro:
        message = f"is {plan.batch.micro}, but the model was captured for {graph.captured_micro} only"
        yield Violation(rule="batch", where="batch.micro", message=message)


def needed_hops(plan: Plan, graph: ModelGraph) -> dict[Route, set[str]]:
    """The Values on each way: activations from the producer to every stage that reads them, gradients from each of
    these to the one before it, and from the first to the producer."""
    stage_of = [index for index, stage in enumerate(plan.stages) for _ in stage.layers]
    ways: dict[Route, set[str]] = defaultdict(set)
    for crossing in crossings(graph, stage_of):
        for target in crossing.targets:
            ways["act", crossing.source, target].add(crossing.value)
        if graph.value[crossing.value].needs_grad:
            for receiver, sender in pairwise((crossing.source, *crossing.targets)):
                ways["grad", sender, receiver].add(crossing.value)
    return ways


def _hops(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    needed = needed_hops(plan, graph)
    given: dict[Route, set[str]] = defaultdict(set)
    for hop in plan.hops:
        route = (hop.direction, hop.sender, hop.receiver)
        if route in given:
            yield _hop(route, "stands twice; one hop a direction and pair of stages")
        given[route] |= set(hop.values)
        known = [graph.value[name] for name in hop.values if name in graph.value]
        whole = sum(value.bytes(plan.batch.micro) for value in known)
        least = -(-whole // plan.axes.spatial)
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


def _updates(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """A stage that holds a trainable parameter updates it, and sums its gradient with any other holder's."""
    found = {
        (a.kind, a.pipe, a.stage)
        for order in schedule_of(plan).orders
        for a in order
        if a.kind in (Kind.SYNC, Kind.STEP)
    }
    stage_of = {name: index for index, stage in enumerate(plan.stages) for name in stage.layers}
    told: set[tuple[Kind, int, int]] = set()
    for parameter in graph.parameters:
        stages = sorted({stage_of[user] for user in parameter.users})
        for pipe in range(len(plan.schedule.place)) if parameter.trainable else ():
            for stage in stages:
                needed = [Kind.STEP] + [Kind.SYNC] * (_copies(plan, stages) > 1)
                for kind in needed:
                    if (kind, pipe, stage) not in found | told:
                        told.add((kind, pipe, stage))
                        yield _update(plan, kind, pipe, stage, parameter, stages)


def _copies(plan: Plan, stages: list[int]) -> int:
    return plan.axes.data * plan.axes.spatial * len(plan.schedule.place) * len(stages)


def _update(
    plan: Plan, kind: Kind, pipe: int, stage: int, parameter: Parameter, stages: list[int]
) -> Violation:
    where = f"stage {stage}" + (f" of pipe {pipe}" if len(plan.schedule.place) > 1 else "")
    tied = f", {len(stages)} stages among them" if len(stages) > 1 else ""
    why = (
        f"'{parameter.name}' is trained here"
        if kind is Kind.STEP
        else f"'{parameter.name}' has {_copies(plan, stages)} holders{tied}"
    )
    return Violation(rule="updates", where=where, message=f"has no {stage}{kind}{chr(39) * pipe}, but {why}")
