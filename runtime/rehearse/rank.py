"""Runs one rank alone and measures the time of each action and the peak of memory."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.timeline import Event, decode
from runtime.data import Batches
from runtime.execute import Tensors, static_bytes
from runtime.messages import DenseLayout, Edge
from runtime.rank import Rank, assemble
from runtime.rehearse.fake_world import MADE_UP, MadeUpStates
from runtime.sharding import Pace, SharedFlat
from runtime.train import Model, NoPulse
from runtime.world import World

# Not the warm-up of a run, where connections are opened: the first step makes the optimizer's state, the second is
# the first that runs with it.
STEPS_UNTIMED = 2


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """The times and the peak of memory of one rank that ran alone."""

    rank: int
    worker: int
    spatial: int
    peak_bytes: int
    kept_bytes: int  # of it: parameters, gradients, buffers, optimizer state
    took_ns: Mapping[Event, tuple[int, ...]]  # of every action, once a timed step


def rehearsed(
    model: Model, world: World, layouts: Mapping[Edge, Sequence[DenseLayout]], steps: int
) -> Rehearsed:
    """Runs one rank for some steps and measures it.

    Args: `layouts` are what each hop carries; `steps` are timed, after two others.
    Returns: nanoseconds of every action in each timed step, and the peak in bytes of one further step.
    """
    rank = alone(model, world, layouts)
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


def alone(model: Model, world: World, layouts: Mapping[Edge, Sequence[DenseLayout]]) -> Rank:
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
