"""Explains why nothing fits: which stage lacks how many bytes where, and the nearest change that was seen to fit.

For models that can be cut in space, also names the smallest spatial degree at which a sample fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np

from planner import limits
from planner.arrays import IntArray
from planner.cluster import Cluster, Link, Links, total_devices, with_more, with_node_groups
from planner.configurations import Configuration, Pins, choices, freed, told
from planner.cuts import CutProblem
from planner.errors import BadInput
from planner.milp.instance import Instance, changed
from planner.milp.search.candidates import short_bytes
from planner.profile import CostKey
from planner.proof import allowed, every_cut, neighbours, shortage, windows
from planner.schedule import generate
from planner.spatial import slides
from planner.units import format_bytes

Fits = Callable[[Instance, "Nearest | None"], str | None]
_EXAMINED = 300  # configurations examined for the least shortage
_DESCENDED = 20  # of them are improved by moving boundaries: those that come closest at first
_MOST_NODES = 64  # times the nodes of the cluster are asked for at most


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The configuration and cut that come closest to fitting, and by how many bytes they fail."""

    short_bytes: int
    shape: Configuration
    cut: IntArray
    says: str


class Considered(Protocol):
    """A configuration with the problem that its cut poses."""

    shape: Configuration
    problem: CutProblem


def no_shape(instance: Instance, possible: Callable[[Instance], bool]) -> str:
    """Returns a sentence that names the pins which exclude every configuration.

    Args: `possible` tells whether a changed question has any configuration.
    Returns: one line for the user; it says what does not divide.
    """
    pinned = told(instance.pins)
    alone = [key for key, pins in _each_freed(instance.pins) if possible(changed(instance, pins=pins))]
    free = Pins(update=instance.pins.update)
    if not pinned or not possible(changed(instance, pins=free)):
        return _indivisible(instance)
    if alone:
        keys = " and ".join(f"{key}={pinned[key]}" for key in alone)
        leave = "exclude every one, and either let go leaves some" if len(alone) > 1 else "excludes every one"
        what = f"no plan of {instance.batch} samples: {keys} {leave}"
        apart = instance.pins.data and instance.batch % instance.pins.data
        why = [f"{instance.batch} is no multiple of {instance.pins.data}"] if apart else []
        return "; ".join([what, *why, *_refused(instance.pins), _indivisible(instance, brief=True)])
    keys = ", ".join(f"{key}={value}" for key, value in pinned.items())
    return f"no plan of {instance.batch} samples: {keys} exclude each other; {_indivisible(instance, brief=True)}"


def _refused(pins: Pins) -> list[str]:
    """Returns why the pinned schedules refuse the pinned number of workers; nothing where one of them accepts it."""
    workers, words = pins.pipeline or 0, list[str]()
    for family in pins.schedules if workers else ():
        try:
            generate(family, workers=workers, micros=2 * workers, pairs=pins.pairs or 1, chunks=pins.chunks)
            return []
        except BadInput as error:
            words.append(str(error))
    return words


def _indivisible(instance: Instance, *, brief: bool = False) -> str:
    known = ", ".join(map(str, instance.micros()))
    devices = total_devices(instance.cluster)
    there = f"{devices} devices, the micro-batches profiled ({known}) and {instance.layers} layers"
    if brief:
        return f"there are {there}"
    if any(instance.batch % micro == 0 for micro in instance.micros()):
        more = f"are more than {limits.MOST_ACTIONS:,} actions a step on some device: profile larger micro-batches"
        return f"no plan of {instance.batch} samples: with {there} there {more}"
    return f"no plan of {instance.batch} samples: no data x pipeline divides them with {there}"


def report(
    instance: Instance,
    shapes: Iterable[Configuration],
    look: Callable[[Configuration], Considered | None],
    fits: Fits,
) -> str:
    """Returns the report for a question that no plan fits, line by line.

    Args: `look` poses the problem of a configuration; `fits` solves a changed question and names the plan that it
    finds.
    Returns: what comes closest to fitting and the bytes it lacks, spatial degrees, at most two other changes that fit.
    """
    nearest = closest(instance, shapes, look)
    lines = ["nothing fits" if nearest is None else nearest.says]
    lines += degrees(instance, lambda changed: fits(changed, None))
    lines += [f"{change} would fit: {plan}" for change, plan in islice(_changes(instance, nearest, fits), 2)]
    if not any("would fit" in line for line in lines):
        lines.append("no single change of pins, nodes or memory that was tried makes it fit")
    return "\n".join(lines)


def closest(
    instance: Instance, shapes: Iterable[Configuration], look: Callable[[Configuration], Considered | None]
) -> Nearest | None:
    """Returns the configuration and cut with the least shortage; none where no family is possible.

    Args: of `shapes`, those whose state alone lacks more are skipped; `look` poses the problem of one.
    """
    met: list[tuple[int, Considered, IntArray]] = []
    least = 1 << 62
    for shape in sorted(shapes, key=lambda each: (short_bytes(instance, each), each))[:_EXAMINED]:
        if short_bytes(instance, shape) >= least:
            break
        found = look(shape)
        if found is not None:
            row = _closest_alone(instance, found.problem)
            met.append((int(_short(found.problem, row[None, :])[0]), found, row))
            least = min(least, met[-1][0])
    nearest = sorted(met, key=lambda each: (each[0], each[1].shape))[:_DESCENDED]
    ends = [(*_closer(instance, found.problem, row), found) for _, found, row in nearest]
    best = min(ends, key=lambda each: (each[0], each[2].shape), default=None)
    return None if best is None else _described(best[2], best[1])


def _short(problem: CutProblem, rows: IntArray) -> IntArray:
    """Returns the bytes that the fullest worker lacks, for each cut."""
    lacking: IntArray = (problem.memory(rows) - problem.available_bytes).max(1)
    return lacking


def _closer(instance: Instance, problem: CutProblem, row: IntArray) -> tuple[int, IntArray]:
    """Moves boundaries and changes which stages recompute as long as less memory is lacking."""
    short, moves = int(_short(problem, row[None, :])[0]), neighbours(problem)
    while instance.pins.stages is None:
        near = allowed(problem, row + moves, *windows(problem))
        lacking = _short(problem, near) if len(near) else np.array([short])
        if lacking.min() >= short:
            break
        short, row = int(lacking.min()), near[lacking.argmin()]
    return short, row


def _closest_alone(instance: Instance, problem: CutProblem) -> IntArray:
    """Returns the cut whose worst stage lacks least, each stage seen alone."""
    spans = instance.windows(problem) or windows(problem)
    box = every_cut(problem, *spans)
    assert box is not None
    tables = [np.where(box.alive[p], shortage(problem, p, box), 1 << 62) for p in range(problem.stages)]
    return problem.pointed(box.bottleneck(tables), 1)


def _described(found: Considered, row: IntArray) -> Nearest:
    problem = found.problem
    need = problem.memory(row[None, :])[0]
    lacking = need - problem.available_bytes
    worker = int(lacking.argmax())
    says = _sentence(found, row, worker, int(need[worker]))
    return Nearest(short_bytes=int(lacking[worker]), shape=found.shape, cut=row, says=says)


def _sentence(found: Considered, cut: IntArray, worker: int, need: int) -> str:
    problem = found.problem
    names = [layer.name for layer in problem.tables.graph.layers]
    free = int(problem.available_bytes[worker])
    stages = np.flatnonzero(problem.hosted[worker]).tolist()
    spans = []
    for s in stages:
        first, last = names[cut[s]], names[cut[s + 1] - 1]
        layers = f"layer '{first}'" if first == last else f"layers '{first}' to '{last}'"
        spans.append(f"stage {s} ({layers})")
    slot = problem.mesh.grid[0][worker]
    return (
        f"nothing fits; what comes closest is {found.shape}: {' and '.join(spans)} on worker {worker} (node "
        f"{slot.node}, slot {slot.slot}) needs {need} bytes, {free} are free: {_told(need - free)} short"
    )


def _told(size: int) -> str:
    """Returns bytes exactly, and for people where they are many."""
    return f"{size} bytes" if size < 2**20 else f"{size} bytes ({format_bytes(size)})"


def _changes(instance: Instance, nearest: Nearest | None, fits: Fits) -> Iterator[tuple[str, str]]:
    for name, asked in _questions(instance, nearest):
        plan = fits(asked, nearest)
        if plan is not None:
            yield name, plan


def _questions(instance: Instance, nearest: Nearest | None) -> Iterator[tuple[str, Instance]]:
    pinned = instance.pins
    for key, pins in _each_freed(pinned):
        yield f"leaving {key} free", changed(instance, pins=pins)
    if nearest is not None and nearest.short_bytes > 0:
        short = nearest.short_bytes
        yield (
            f"{_told(short)} more on each device",
            changed(instance, cluster=with_more(instance.cluster, short)),
        )
    times = 2
    while times <= _MOST_NODES and (larger := _larger(instance.cluster, times)) is not None:
        yield f"{times} times the nodes", changed(instance, cluster=larger)
        times *= 2


def _larger(cluster: Cluster, times: int) -> Cluster | None:
    """Returns the cluster with so many times the nodes; None where the file does not say what links they would have."""
    groups = tuple(g.model_copy(update={"count": g.count * times}) for g in cluster.nodes)
    try:
        return with_node_groups(cluster, groups)
    except BadInput:
        return None


_ANY = Link(latency_s=0.0, bandwidth_bytes_per_s=1e12)  # what fits does not depend on links


def degrees(instance: Instance, fits: Callable[[Instance], str | None]) -> Iterator[str]:
    """Yields one line about spatial degrees, for models that can be cut in space at all.

    Args: `fits` solves a changed question and names the plan that it finds, or returns None.
    Yields: the smallest profiled degree that fits, or what to profile next; nothing where `spatial` is pinned to 1.
    """
    graph = instance.profile.graph
    if not slides(graph) or instance.execution != "eager" or instance.pins.spatial == 1:
        return
    known = _known(instance)
    for degree in known:
        plan = fits(_asked(instance, degree))
        if plan is not None:
            yield f"a spatial split of {degree}, on {degree} devices for each sample, would fit: {plan}"
            return
    if known:
        yield f"no spatial split that was profiled fits by itself: {', '.join(map(str, known))}; price larger ones"
    else:
        yield "no spatial split was profiled; `profile --spatial 2,4,8` prices some"


def _known(instance: Instance) -> list[int]:
    """Returns the degrees of all profiled grids that can be used, at any micro-batch."""
    found = set()
    for micro in instance.micros():
        setting = CostKey("", micro, (), instance.precision, instance.execution)
        found |= {choice.ranks for choice in choices(instance.profile, setting, instance.prices)}
    return sorted(found)


def _asked(instance: Instance, degree: int) -> Instance:
    """Returns the question with each sample on so many devices and the other axes no wider than pinned."""
    pinned = instance.pins
    data, pipeline = pinned.data or 1, pinned.pipeline or 1
    return Instance(
        profile=instance.profile,
        cluster=_room(instance.cluster, degree * data * pipeline),
        batch=instance.batch,
        precision=instance.precision,
        execution=instance.execution,
        pins=replace(
            pinned, spatial=degree, grid=None, gather=None, data=data, pipeline=pipeline, devices=None
        ),
    )


def _room(cluster: Cluster, devices: int) -> Cluster:
    """Returns the cluster if it has so many devices; else one node with so many, like its smallest nodes."""
    if total_devices(cluster) >= devices:
        return cluster
    least = min(cluster.nodes, key=lambda group: group.limit_bytes)
    node = least.model_copy(update={"count": 1, "devices_per_node": devices, "devices_per_card": None})
    links = Links(node=cluster.links.node or _ANY, rack=_ANY, cluster=_ANY)
    return Cluster(name=cluster.name, nodes=(node,), links=links, fitted=cluster.fitted)


def _each_freed(pinned: Pins) -> Iterator[tuple[str, Pins]]:
    """Yields each pin that may be in the way, and the pins without it.

    Yields: the key as `told` writes it, and the remaining pins.
    """
    for key in told(pinned):
        yield key, freed(pinned, key)
