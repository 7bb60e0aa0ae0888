"""Rehearses a plan: each distinct rank's program runs alone on one device, before anything is queued.

    found = rehearse(plan, device="cuda")
    print(text(found))

A rank runs its real stages, its real optimizer and its real buffers. What other ranks would send is made up,
and what it sends is dropped. That gives the peak of every rank and the time of every action. The simulator
that predicted the step then replays it with these times. Any difference comes from the actions, as messages
take their planned times. Data replicas do the same work, so one of them is run for all.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from planner.capture import with_names
from planner.errors import BadInput
from planner.plan import (
    Place,
    Plan,
    graph_on_group,
    is_cut,
    owners,
    schedule_of,
    shard_of,
    shared_by_element,
)
from planner.schedule import check_schedule
from planner.terminal import Report
from planner.timeline import Event, decode
from planner.workload import Workload
from runtime.data import Batches
from runtime.execute import Tensors, static_bytes
from runtime.layout import largest_parts, places_of_parts
from runtime.messages import DenseLayout, Edge, stages_of_layers
from runtime.rank import Rank, assemble
from runtime.rehearse.fake_world import MADE_UP, MadeUpStates, layouts, world_of
from runtime.rehearse.report import Rehearsal, Rehearsed, compared
from runtime.sharding import Pace, SharedFlat
from runtime.train import Model, NoPulse
from runtime.update import buckets_of, trained
from runtime.world import RankMesh, World, alone

STEPS = 3
# Not the warm-up of a run, where connections are opened: the first step makes the optimizer's state, the second is
# the first that runs with it.
STEPS_UNTIMED = 2
# Of each rank: the share that is done, and its name.
Around = Callable[[float, str], AbstractContextManager[None]]


def rehearse(
    plan: Plan, *, device: str = "cpu", steps: int = STEPS, threads: int = 1, workload: Workload | None = None
) -> Rehearsal:
    """Runs each distinct rank of a plan alone on one device and compares it with the plan.

    Args: `steps` are timed, and a further one measures memory; `threads` are of a rank on the host;
      `workload` is loaded by its name where it is not given.
    Returns: predicted and measured times and peaks.
    Raises: BadInput for a device that is not here; BadPlan for a wrong schedule.
    """
    where = _device(device)
    if steps < 1:
        raise BadInput(f"{steps} steps", where="rehearse", allowed="1 or more")
    check_schedule(schedule_of(plan), plan.hops, barrier=plan.schedule.update == "barrier")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with Report(f"rehearse {plan.model.workload}") as report:
            with report.step(0.0, "the model"):
                model = Model.of(plan, workload)
            found = list(runs(model, where, steps, report.step))
    finally:
        torch.set_num_threads(before)
    return compared(plan, device, found)


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise BadInput(f"there is no device '{name}'", where="rehearse", allowed="cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("no GPU is here", where="rehearse", allowed="cpu, or a machine with a GPU")
    return torch.device(name)


def runs(
    model: Model, device: torch.device, steps: int, around: Around = lambda share, doing: nullcontext()
) -> Iterator[Rehearsed]:
    """Yields the measurements of each distinct rank, one after another.

    Args: `steps` may be 0, for the memory alone; `around` is entered around each rank with its share and
      name.
    Yields: times in nanoseconds and peaks in bytes.
    """
    known: dict[int, Mapping[Edge, Sequence[DenseLayout]]] = {}  # by spatial coordinate
    places = distinct(model)
    for number, place in enumerate(places):
        with (
            around(number / len(places), f"rank {place.rank}, {number + 1} of {len(places)}"),
            _world(place.rank, len(model.plan.places), device) as world,
        ):
            if place.spatial not in known:
                known[place.spatial] = layouts(model.plan, model.captured, _one_batch(model), world)
            found = _rehearsed(model, world, known[place.spatial], steps)
        yield found
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _world(rank: int, size: int, device: torch.device) -> AbstractContextManager[World]:
    return nullcontext(alone(device)) if size == 1 else world_of(rank, size, device)


def _one_batch(model: Model) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        return model.captured.batch_values(*model.workload.batch(model.plan.batch.micro))


def distinct(model: Model) -> list[Place]:
    """Returns one place for each pipeline worker and shard of samples. Of its replicas it is the one that
    updates most.

    Args: `model` is the plan with its captured graph.
    """
    elements = _updated(model)
    found: dict[tuple[int, int], Place] = {}
    for place in sorted(model.plan.places, key=lambda p: (-elements.get(p.rank, 0), p.rank)):
        found.setdefault((place.pipeline, place.spatial), place)
    return [found[key] for key in sorted(found)]


def _updated(model: Model) -> dict[int, int]:
    """Returns the number of elements that each rank updates, where the optimizer's state is sharded."""
    graph, plan = model.captured.graph, model.plan
    dealt = any(shard_of(plan, stage) for stage in range(len(plan.stages)))
    if not dealt or shared_by_element(plan):
        return {}
    cut = graph_on_group(plan, with_names(graph, model.captured.layout)) if is_cut(plan) else None
    parts, held = (None, {}) if cut is None else (places_of_parts(cut), largest_parts(cut))
    stage_of, found = stages_of_layers(plan, graph), dict[int, int]()
    for bucket in buckets_of(graph, stage_of, RankMesh.of(plan), trained(model.captured), parts):
        sizes = {name: held.get(name, prod(graph.parameter[name].shape)) for name in bucket.names}
        for name, rank in owners(bucket.owners, sizes).items():
            found[rank] = found.get(rank, 0) + sizes[name]
    return found


def _rehearsed(
    model: Model, world: World, layouts: Mapping[Edge, Sequence[DenseLayout]], steps: int
) -> Rehearsed:
    """Runs one rank for some steps and measures it.

    Args: `layouts` are what each hop carries; `steps` are timed, after two others.
    Returns: nanoseconds of every action in each timed step, and the peak in bytes of one further step.
    """
    rank = _made_up(model, world, layouts)
    batches = _batches(model, rank)
    numbers = itertools.count(1)
    for _ in range(STEPS_UNTIMED):
        rank.step(next(numbers), next(batches))
    gc.collect()
    took: dict[Event, list[int]] = {}
    for _ in range(steps):
        for event, ns in _timed(rank, next(numbers), next(batches)):
            took.setdefault(event, []).append(ns)
    peak = max(_peaks(rank, (partial(rank.step, number, next(batches)) for number in numbers)))
    here = rank.mesh.by_rank[rank.world.rank]
    return Rehearsed(
        rank=rank.world.rank,
        worker=here.pipeline,
        spatial=here.spatial,
        peak_bytes=peak,
        kept_bytes=static_bytes(rank.kept()),
        took_ns={event: tuple(each) for event, each in took.items()},
    )


def _peaks(rank: Rank, steps: Iterator[Callable[[], object]]) -> Iterator[int]:
    """Yields the peaks of a step: where replicas share, with links that are as fast and as slow as can be."""
    shared = [flat for flat in rank.flats if isinstance(flat, SharedFlat)]
    paces: tuple[Pace, ...] = ("at once", "awaited") if shared else ("beside",)
    for pace in paces:
        for flat in shared:
            flat.wires.pace = pace
        yield rank.with_peak(next(steps))[1]


def _made_up(model: Model, world: World, layouts: Mapping[Edge, Sequence[DenseLayout]]) -> Rank:
    """Returns a rank as it is in a run, with made-up weights.

    Args: `layouts` are what each hop carries, so that no other rank need tell it.
    """
    rank = assemble(
        model.plan,
        model.captured,
        world,
        make_optimizer=model.workload.optimizer,
        lr_schedule=model.workload.lr_schedule,
        load=MadeUpStates(model.captured.graph),
        options=replace(MADE_UP, ema=0.5 if model.plan.ema else None),
        pulse=NoPulse(),
    )
    rank.transport.know(layouts)
    return rank


def _batches(model: Model, rank: Rank) -> Iterator[Mapping[int, Tensors]]:
    """Yields the first batch again and again. Loading is not part of a step."""
    values_of, graph = model.captured.batch_values, model.captured.graph
    found = next(Batches(model.workload, rank.wanted(), values_of, seed=0, graph=graph).steps(0))
    return itertools.repeat(found)


def _timed(rank: Rank, step: int, batch: Mapping[int, Tensors]) -> Iterator[tuple[Event, int]]:
    before = len(rank.tracer.rows)
    rank.step(step, batch)
    for _, _, code, start, end, _ in rank.tracer.rows[before:]:
        yield decode(code), end - start
