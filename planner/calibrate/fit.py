"""Fits corrections from runs: what their traces say beside what their plans said.

Only the middle half of a run's steps by their length counts, so that neither a pause of the machine nor a lucky
step decides. A computing action is its layers' time and what comes after it until the worker is free for the next
one (sending, posting receives). A message travels from there until its receiver, if it waited, goes on. A gradient
sum takes from the launch of the last rank to its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, zip_longest
from statistics import fmean, median
from typing import Literal, NamedTuple

from planner.calibrate.lines import Sample, correction_by, half_range, nine_of_ten, rounded
from planner.calibrate.refine import nominal_plan, repredicted, surplus
from planner.cluster import Correction, Corrections
from planner.errors import BadInput
from planner.plan import Plan, coordinates, mesh_of, rank_of, world_size
from planner.schedule import Kind
from planner.timeline import COLLECTIVE, WARM_UP_STEPS, Event, Timeline, converting_ns

_HALVES = {Kind.I.value, Kind.W.value}
_WAITED_NS = 20_000  # after a shorter wait the message was there already


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A run: the plan that it followed and what its ranks recorded."""

    plan: Plan
    timeline: Timeline
    content: Literal["layers", "sleep"] = "layers"

    @property
    def name(self) -> str:
        """Returns the model, its settings, the family and the degrees as one line."""
        plan, settings = self.plan, " ".join(f"{k}={v}" for k, v in self.plan.model.arguments.items())
        axes = f"data {plan.axes.data} x pipeline {plan.axes.pipeline}"
        return f"{plan.model.workload} {settings}".strip() + f", {plan.schedule.family} {axes}"

    @cached_property
    def nominal(self) -> Plan:
        """Returns the plan with its times as they are without the corrections that it was made with."""
        return nominal_plan(self.plan)

    @cached_property
    def lengths_ns(self) -> dict[int, int]:
        """Returns the length of every step after the warm-up, by its number.

        Raises: BadInput where the run has no step after the warm-up.
        """
        steps = sorted(set(self.timeline.step.tolist()))
        if len(steps) <= WARM_UP_STEPS:
            raise BadInput(
                f"a run of {len(steps)} steps", where=self.name, allowed=f"{WARM_UP_STEPS + 1} or more"
            )
        parts = {step: self.timeline.of_step(step) for step in steps[WARM_UP_STEPS - 1 :]}
        if self.plan.schedule.update == "rolling":  # the next step begins before this one has ended
            ends = {step: int(part.end_ns.max()) for step, part in parts.items()}
            return {step: max(1, ends[step] - ends[before]) for before, step in pairwise(ends)}
        return {step: parts[step].makespan_ns for step in steps[WARM_UP_STEPS:]}

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Returns the numbers of the steps that count: the middle half by length."""
        ordered = sorted(self.lengths_ns, key=self.lengths_ns.__getitem__)
        quarter = len(ordered) // 4
        return tuple(ordered[quarter : len(ordered) - quarter])

    @property
    def step_ns(self) -> float:
        """Returns the mean length of the steps that count."""
        return fmean(self.lengths_ns[step] for step in self.steps)

    @cached_property
    def rows(self) -> dict[tuple[int, int], list[EventTimes]]:
        """Returns the actions of every rank in every step that counts, in their order, by (step, rank)."""
        return {
            (step, rank): list(_rows(self.timeline.of_rank(rank, step)))
            for step in self.steps
            for rank in range(world_size(self.plan.axes))
        }

    @cached_property
    def converting(self) -> dict[tuple[str, int], Sample]:
        """Returns what conversions were planned to take of each kind of action and took, by its name and stage.

        Empty where the run did not record them: they then count with computing, as planned and as measured.
        """
        ways = {"F": "forward", "R": "forward", "B": "backward", "I": "backward"}
        return {
            (name, stage): Sample(getattr(self.nominal.times[stage], f"{ways[name]}_conversions_ns"), ns)
            for (name, stage), ns in converting_ns(self.timeline, self.steps).items()
            if name in ways
        }


class EventTimes(NamedTuple):
    """One action of a rank, and what it waited before and took after."""

    event: Event
    start_ns: int
    end_ns: int
    wait_ns: int
    free_ns: int  # when the worker turned to the next action, or waited for it


def _rows(timeline: Timeline) -> Iterator[EventTimes]:
    columns = (timeline.start_ns.tolist(), timeline.end_ns.tolist(), timeline.wait_ns.tolist())
    found = sorted(
        (start, end, wait, event)
        for event, start, end, wait in zip(timeline.events(), *columns, strict=True)
        if event.name in {kind.value for kind in Kind}
    )
    for (start, end, wait, event), after in zip_longest(found, found[1:]):
        yield EventTimes(event, start, end, wait, end if after is None else max(end, after[0] - after[2]))


def fit(runs: Sequence[Observation]) -> Corrections:
    """Returns corrections from several runs of one kind, with the error that they leave.

    The error is that of predicting each run by the corrections of the others, where there are more than two. Runs of
    more than two plans are predicted by those of other plans alone, since a plan's own runs know more of it than others.

    Args: `runs` all compute, or all sleep in the place of computing.
    Raises: BadInput where there are no runs, runs of both kinds, or too few steps in one.
    """
    if not runs:
        raise BadInput("no runs", where="calibrate", allowed="one or more")
    if len({run.content for run in runs}) > 1:
        raise BadInput("runs whose stages sleep and runs that compute", where="calibrate", allowed="one kind")
    found, plans = _fit(runs, 0.0), len({run.nominal.model_dump_json() for run in runs})
    errors = [
        abs(run.step_ns / repredicted(run.nominal, row).prediction.step_ns - 1)
        for row, run in _left_out(runs, found)
    ]
    own = median(half_range(list(run.lengths_ns.values())) / run.step_ns for run in runs)
    return found.model_copy(update={"step_spread": round(max(own, nine_of_ten(errors, plans)), 4)})


def _left_out(runs: Sequence[Observation], found: Corrections) -> Iterator[tuple[Corrections, Observation]]:
    """Yields each run with the corrections that it is judged by.

    Args: `found` are those of all runs.
    """
    plans = [run.nominal.model_dump_json() for run in runs]
    names: Sequence[object] = plans if len(set(plans)) > 2 else range(len(runs))
    for name in dict.fromkeys(names):
        others = [run for run, own in zip(runs, names, strict=True) if own != name]
        row = _fit(others, 0.0) if len(set(names)) > 2 else found
        yield from ((row, run) for run, own in zip(runs, names, strict=True) if own == name)


def _fit(runs: Sequence[Observation], step_spread: float) -> Corrections:
    halves = _action(runs, _HALVES)
    return Corrections(
        content=runs[0].content,
        forward=_action(runs, {Kind.F.value}),
        backward=_action(runs, {Kind.B.value}),
        input_grad=halves,
        weight_grad=halves,
        update=correction_by(
            [sample for run in runs for sample in _durations(run, {Kind.STEP.value}).values()],
            proportional=True,
        ),
        hop=correction_by([sample for run in runs for sample in _hops(run)]),
        sum=correction_by([sample for run in runs for sample in _sums(run)]),
        conversion=_conversion(runs),
        groups=tuple(sorted({mesh_of(run.plan) for run in runs if _converts(run)})) or None,
        memory=surplus([(run.plan, run.timeline) for run in runs]),
        step_spread=step_spread,
        rests_on=tuple(run.name for run in runs),
    )


def _action(runs: Sequence[Observation], kinds: Collection[str]) -> Correction | None:
    """Returns the correction of some kinds of actions: the median factor of the runs, and the mean of what comes
    after.
    """
    factors, ratios, gaps = [], [], []
    for run in runs:
        samples = [sample for sample in _durations(run, kinds).values() if sample.planned]
        if samples:
            planned, measured = (sum(column) for column in zip(*samples, strict=True))
            factors.append(measured / planned)
            ratios += [sample.measured / sample.planned for sample in samples]
            own = [row for rows in run.rows.values() for row in rows if row.event.name in kinds]
            gaps.append(fmean(row.free_ns - row.end_ns for row in own))
    if not factors:
        return None
    factor = median(factors)
    return rounded(median(gaps), factor, half_range(ratios) / factor, len(ratios))


def _durations(run: Observation, kinds: Collection[str]) -> dict[object, Sample]:
    """Returns by stage what some kinds of actions were planned to take and took. The halves of a backward count
    together: where no gradient of the input is asked for, the first stage's work moves between them.
    """
    names = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad", "STEP": "step"}
    taken: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rows in run.rows.values():
        for row in rows:
            if row.event.name in kinds:
                taken[row.event.stage, row.event.name].append(row.end_ns - row.start_ns)
    found: dict[object, Sample] = {}
    for (stage, name), times in taken.items():
        planned, measured = found.get(stage, Sample(0.0, 0.0))
        own = getattr(run.nominal.times[stage], f"{names[name]}_ns")
        apart = run.converting.get((name, stage), Sample(0.0, 0.0))
        found[stage] = Sample(planned + own - apart.planned, measured + fmean(times) - apart.measured)
    return found


def _converts(run: Observation) -> list[Sample]:
    return [x for x in run.converting.values() if x.planned]


def _conversion(runs: Sequence[Observation]) -> Correction | None:
    """Returns the correction of conversions: the median factor of the runs that have any."""
    every = [_converts(run) for run in runs]
    factors = [sum(x.measured for x in own) / sum(x.planned for x in own) for own in every if own]
    if not factors:
        return None
    ratios = [x.measured / x.planned for own in every for x in own]
    return rounded(0.0, median(factors), half_range(ratios) / median(factors), len(ratios))


def _hops(run: Observation) -> Iterator[Sample]:
    plan, taken = run.nominal, defaultdict[object, list[int]](list)
    ended = {(step, rank, row.event): row.free_ns for (step, rank), rows in run.rows.items() for row in rows}
    for (step, rank), rows in run.rows.items():
        for row in rows:
            if row.wait_ns > _WAITED_NS:
                latest = max(_arriving(plan, rank, step, row.event, ended), default=None)
                if latest is not None and row.start_ns - row.wait_ns <= latest[0]:
                    taken[latest[1]].append(row.start_ns - latest[0])
    for index, times in sorted(taken.items(), key=str):
        assert isinstance(index, int)
        yield Sample(plan.hops[index].ns, max(0.0, median(times)))


def _arriving(
    plan: Plan, rank: int, step: int, event: Event, ended: dict[tuple[int, int, Event], int]
) -> Iterator[tuple[int, int]]:
    """Yields when each message for an action left its sender, with the number of its hop."""
    direction = "act" if event.name == Kind.F.value else "grad"
    senders = (Kind.F,) if direction == "act" else (Kind.B, Kind.I)
    if event.name not in (Kind.F.value, Kind.B.value, Kind.I.value):
        return
    place, here = plan.schedule.place[event.pipe], coordinates(plan.axes, rank)
    for index, hop in enumerate(plan.hops):
        if hop.direction == direction and hop.receiver == event.stage and place[hop.sender] != here.pipeline:
            peer = rank_of(plan.axes, here._replace(pipeline=place[hop.sender]))
            for kind in senders:
                left = ended.get((step, peer, Event(kind.value, hop.sender, event.micro, event.pipe)))
                if left is not None:
                    yield left, index


def _sums(run: Observation) -> Iterator[Sample]:
    """Yields how long the gradient sums of each stage travel in a step.

    Every rank launches them in one order, so the n-th of a rank is the n-th of the others. A sum is under way from
    its last launch to its last end.
    """
    spans: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)  # step, stage, number
    timeline = run.timeline
    columns = (timeline.step.tolist(), timeline.rank.tolist(), timeline.start_ns.tolist())
    seen: dict[tuple[int, int, int], int] = defaultdict(int)
    rows = zip(timeline.events(), *columns, timeline.end_ns.tolist(), strict=True)
    for event, step, rank, start, end in sorted(rows, key=lambda row: row[3]):
        if event.name == COLLECTIVE and step in run.steps:
            number = seen[step, event.stage, rank]
            seen[step, event.stage, rank] += 1
            spans[step, event.stage, number].append((start, end))
    under_way: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (step, stage, _), parts in spans.items():
        launched = max(start for start, _ in parts)
        under_way[step, stage].append((launched, max(launched, *(end for _, end in parts))))
    taken: dict[int, list[int]] = defaultdict(list)
    for (_, stage), parts in under_way.items():
        taken[stage].append(_covered(parts))
    for stage, times in sorted(taken.items()):
        if run.nominal.times[stage].sync_ns:
            yield Sample(run.nominal.times[stage].sync_ns, fmean(times))


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Returns the length of the union of spans."""
    total, reached = 0, min(start for start, _ in spans)
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
