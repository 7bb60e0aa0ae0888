"""The values that a report shows, computed once: the plan with its step, and its run, profile and frontier.

`moving` says what one micro-batch takes on each stage, on whole samples or on shards of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.advice import Sources
from planner.cluster import Group, Sum
from planner.cost import GridChoice, Prices, Tables, setting_of, sharded, stage_bytes
from planner.errors import BadInput
from planner.model import ModelGraph
from planner.plan import Plan, StagePlan, as_planned, coordinates, schedule_of, updaters
from planner.profile import Profile
from planner.report.timeline_rows import Track, busy_of_ranks, per_row, track
from planner.schedule import FAMILIES
from planner.simulate import (
    RunRecord,
    StageBytes,
    compile,
    duration_vector,
    peaks,
    period_of_plan,
    simulate,
    simulate_plan,
)
from planner.timeline import BUSY, SEND, Timeline
from planner.trace import RankTrace, perfetto

if TYPE_CHECKING:
    from planner.explore import Frontier


@dataclass(frozen=True, kw_only=True)
class Contents:
    plan: Plan
    run: RunRecord | None = None
    profile: Profile | None = None
    frontier: Frontier | None = None
    sources: Sources = field(default_factory=Sources)
    beside: Contents | None = None  # another plan, perhaps with a run, that this one is held against
    profiled: Sequence[RankTrace] = ()  # what torch.profiler recorded in the run's ranks

    def __post_init__(self) -> None:
        if self.profile is not None:
            check_same_model(self.plan, self.profile)
            _check_profiled(self.plan, self.profile)
        if self.run is not None and self.run.plan.schedule != self.plan.schedule:
            raise BadInput("ran by another plan", where=self.run.folder, allowed="a run of the plan given")

    @cached_property
    def timeline(self) -> Timeline:
        if self.run is not None and self.run.plan == self.plan:
            return self.run.predicted
        return simulate_plan(self.plan)

    @cached_property
    def predicted(self) -> Track:
        return track(self.timeline, range(self.plan.axes.pipeline))

    @cached_property
    def measured(self) -> Track | None:
        if self.run is None:
            return None
        return track(self.run.measured.of_step(self.run.typical_step), self.run.slowest_group)

    @cached_property
    def trace(self) -> str:
        """Returns what is measured, every rank and step of it, and what is predicted as a trace for Perfetto."""
        run = {} if self.run is None else {"measured": self.run.measured}
        return perfetto(self.plan, {**run, "predicted": self.timeline}, self.profiled)

    @property
    def most_of_a_trace(self) -> int:
        """Returns how many events the trace has at most."""
        return len(self.timeline) + (0 if self.run is None else len(self.run.measured))

    @cached_property
    def busy_shares(self) -> tuple[list[int], list[int], NDArray[np.float64]] | None:
        """Returns ranks, steps, and how long each rank was busy in each step against what is predicted for its worker."""
        if self.run is None:
            return None
        ranks, steps, busy = busy_of_ranks(self.run.measured)
        planned = dict(zip(*_predicted_busy(self.timeline), strict=True))
        workers = [coordinates(self.run.plan.axes, rank).pipeline for rank in ranks]
        return ranks, steps, busy / np.array([[max(1.0, planned.get(worker, 1.0))] for worker in workers])

    @cached_property
    def step_ns(self) -> int:
        """Returns the time from one step to the next, as the plan's own orders and durations have it."""
        rolling = self.plan.schedule.update == "rolling"
        return period_of_plan(self.plan) if rolling else self.timeline.makespan_ns

    @cached_property
    def busy_ns(self) -> list[int]:
        return per_row(self.predicted, BUSY.__contains__)

    @property
    def idle_share(self) -> float:
        return max(0.0, 1 - sum(self.busy_ns) / max(1, self.step_ns * self.plan.axes.pipeline))

    @cached_property
    def messages(self) -> int:
        return self.predicted.counts.get(SEND, 0)

    @cached_property
    def fullest(self) -> int:
        """Returns the worker whose memory is nearest to its limit."""
        shares = [
            memory.total / memory.limit if memory.limit else 0.0 for memory in self.plan.prediction.memory
        ]
        return int(np.argmax(shares)) if shares else 0

    @cached_property
    def memory_lines(self) -> tuple[Timeline, list[int]] | None:
        """Returns bytes over time with the profile's sizes, and every worker's limit; None where a size is not known.

        A worker holds throughout what the plan says of its peak, less what moves at its worst moment.
        """
        moved = None if self.profile is None else moving(self.plan, self.profile)
        if moved is None:
            return None
        schedule = schedule_of(self.plan)
        worst = [peak.bytes for peak in peaks(schedule, moved)]
        memory = self.plan.prediction.memory
        fixed = [said.total - said.margin - most for said, most in zip(memory, worst, strict=True)]
        if min(fixed, default=0) < 0:
            return None
        compiled = compile(schedule, self.plan.hops, update=self.plan.schedule.update)
        durations = duration_vector(self.plan.times, self.plan.hops)
        timeline = simulate(compiled, durations, moved, static_bytes=fixed)
        return timeline, [said.limit - said.margin for said in memory]

    @cached_property
    def layer_ns(self) -> Mapping[str, int] | None:
        """Returns the time of forward and backward of each layer in nanoseconds, None without a profile."""
        if self.profile is None:
            return None
        key = setting_of(self.plan)
        costs = {layer.name: self.profile.cost(layer.name, key) for layer in self.profile.graph.layers}
        return {
            name: round(1e9 * (each.forward.median + each.backward.median)) for name, each in costs.items()
        }

    @property
    def graph(self) -> ModelGraph | None:
        return None if self.profile is None else as_planned(self.profile.graph, self.plan)


def _predicted_busy(timeline: Timeline) -> tuple[list[int], list[float]]:
    workers, _, busy = busy_of_ranks(timeline)
    return workers, np.nanmean(busy, axis=1).tolist() if workers else []


def check_same_model(plan: Plan, profile: Profile) -> None:
    if plan.model.fingerprint != profile.graph.fingerprint:
        raise BadInput("is a profile of another model than the plan's", where=profile.workload)
    names = {name for stage in plan.stages for name in stage.layers}
    for name in sorted(names ^ profile.graph.layer.keys()):
        what = "the profile does not have" if name in names else "the plan leaves out"
        raise BadInput(f"there is a layer '{name}' that {what}", where=profile.workload)


def _check_profiled(plan: Plan, profile: Profile) -> None:
    if setting_of(plan) not in profile.settings:
        known = "; ".join(f"micro {key.micro}, {key.precision}, {key.execution}" for key in profile.settings)
        asked = f"micro {plan.batch.micro}, {plan.precision}, {plan.execution}"
        raise BadInput(f"the plan's setting was not profiled: {asked}", where=profile.workload, allowed=known)


_FREE = Group(
    latency_ns=0.0, byte_ns=0.0, sum=Sum(base_ns=(0.0, 0.0), slope_ns=(0.0, 0.0))
)  # bytes are asked for


def moving(plan: Plan, costs: Profile) -> list[StageBytes] | None:
    """An optimizer that replicas share updates a share at a time. None where grids are not as the solver has them."""
    key = setting_of(plan)
    costs = replace(costs, graph=as_planned(costs.graph, plan))
    found = [
        stage_bytes(costs, stage.layers, key, recompute=stage.recompute, before=stage.recompute_before)
        for stage in plan.stages
    ]
    if any(stage.spatial for stage in plan.stages):
        choice = _choice(plan.stages, costs, plan.axes.spatial)
        if choice is None:
            return None
        overlap = plan.schedule.family not in FAMILIES or not FAMILIES[plan.schedule.family].splits
        price = Prices(costs.graph)(choice)
        tables = sharded(costs, key, choice, price, _FREE, overlap=overlap)
        found = [
            _on_shards(tables, stage, whole.update) for stage, whole in zip(plan.stages, found, strict=True)
        ]
    shares = (updaters(plan, stage) for stage in range(len(found)))
    return [replace(each, update=each.update // share) for each, share in zip(found, shares, strict=True)]


def _choice(stages: Sequence[StagePlan], costs: Profile, ranks: int) -> GridChoice | None:
    """One grid from the first stage on, perhaps another one from some layer on, and the layer from which on samples
    are whole."""
    index = costs.graph.index
    cut = [bool(stage.spatial) for stage in stages]
    begun = [(index[stage.layers[0]], stage.spatial) for stage in stages if stage.spatial]
    turns = [turn for stage in stages for turn in stage.regrid]
    turned = [(index[turn.before], turn.spatial) for turn in turns if not turn.samples]
    shared = [index[turn.before] for turn in turns if turn.samples]
    lying = [next(each) for _, each in groupby(sorted(begun + turned), key=lambda each: each[1])]
    known = {key.split for key in costs.shards}
    if len(lying) > 2 or cut != sorted(cut, reverse=True) or not known.issuperset(g for _, g in lying):
        return None
    (_, grid), (then_from, then) = (*lying, (0, ()))[:2]
    if prod(grid) != ranks:
        return None
    wholes = [index[stage.gather_before] for stage in stages if stage.gather_before]
    wholes += [index[stage.layers[0]] for stage in stages if not stage.spatial]
    return GridChoice(grid, min(wholes + shared, default=0), then, then_from, bool(shared))


def _on_shards(tables: Tables, stage: StagePlan, update: int) -> StageBytes:
    index = tables.graph.index
    at = index[stage.layers[0]], index[stage.layers[-1]] + 1
    parts = tables.moving_parts(np.array(at[0]), np.array(at[1]), np.bool_(stage.recompute))
    return StageBytes(**{name: int(size) for name, size in parts.items()}, update=update)
