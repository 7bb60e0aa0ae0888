"""Judges any plan, one written by hand too, from the problem statement alone; it knows no solver.

Each rule is one function that yields what it finds. A plan whose tables do not fit together is judged no further;
rules that need the model, its costs or the machines are asked when these are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from planner import schedule as schedules
from planner.cluster import Cluster
from planner.errors import BadInput, BadPlan, Violation, without_alike
from planner.model import ModelGraph
from planner.plan import Plan, as_planned, schedule_of, shortened
from planner.profile import Profile
from planner.program import Layout, lower
from planner.program import violations as program_violations
from planner.schedule import ROUNDS_BY_PART, Kind, draw, overlap_of, rounds_by_part
from planner.simulate import period_of_plan
from planner.verify import costs, machines, model

AXES = ("data", "pipeline", "spatial")
LAYOUTS: dict[Layout, str] = {"channel": "on CPUs (gloo)", "global": "on GPUs (NCCL)"}
MOST_INSTRUCTIONS = 10_000  # of a program that is judged: about half a second


def check(
    plan: Plan,
    *,
    profile: Profile | None = None,
    graph: ModelGraph | None = None,
    cluster: Cluster | None = None,
    name: str = "plan",
) -> Plan:
    """Returns the plan itself, if nothing is wrong with it.

    Args: the same as of `violations`; `name` stands for the plan in messages.
    Raises: BadPlan with everything that is wrong.
    """
    if found := violations(plan, profile=profile, graph=graph, cluster=cluster):
        told = (
            f"{name}: {each}{more}" + (f"\n{each.picture}" if each.picture else "")
            for each, more in without_alike(found)
        )
        raise BadPlan("\n".join(told))
    return plan


def violations(
    plan: Plan,
    *,
    profile: Profile | None = None,
    graph: ModelGraph | None = None,
    cluster: Cluster | None = None,
) -> list[Violation]:
    """Returns everything that is wrong with a plan; an empty list for a right one.

    Args: rules that need `profile`, `graph` or `cluster` are asked where these are given. `graph` is the profile's
        where only a profile is given.
    """
    if graph is None and profile is not None:
        graph = profile.graph
    if found := form(plan):
        return found
    found = [violation for rule in _RULES for violation in rule(plan)]
    if not any(violation.rule == "schedule" for violation in found):
        found += [*_step_time(plan), *_program(plan)]
    layers = list(model.layers(plan, graph) if graph else model.repeated_layers(plan))
    found += layers
    if graph and not layers:
        graph = as_planned(graph, plan)
        profile = replace(profile, graph=graph) if profile else None
        found += model.violations(plan, graph, profile)
        if profile:
            found += costs.violations(plan, profile, cluster)
    if cluster:
        found += machines.violations(plan, cluster)
    return found


def form(plan: Plan) -> list[Violation]:
    """Returns why the tables of a plan do not fit together; only a plan without such faults can be drawn or simulated."""
    return list(_tables_fit(plan)) or [*_actions_exist(plan), *_hops_have_ways(plan)]


def _tables_fit(plan: Plan) -> Iterator[Violation]:
    """Yields tables whose number of rows is not that of what they are about."""
    stages, workers, choice = len(plan.stages), plan.axes.pipeline, plan.schedule

    def fits(where: str, rows: int, needed: int, of: str) -> Iterator[Violation]:
        if rows != needed:
            yield Violation(
                rule="tables", where=where, message=f"has {rows} rows; {needed} {of} need {needed}"
            )

    if sorted(plan.axes.order) != sorted(AXES):
        given = ", ".join(plan.axes.order)
        yield Violation(rule="axes", where="axes.order", message=f"is [{given}]; each axis stands in it once")
    yield from fits("times", len(plan.times), stages, "stages")
    yield from fits("schedule.orders", len(choice.orders), workers, "pipeline workers")
    yield from fits("prediction.memory", len(plan.prediction.memory), workers, "pipeline workers")
    yield from fits("schedule.pipe_of", len(choice.pipe_of), plan.batch.micros, "micro-batches")
    yield from machines.rows(plan)
    yield from machines.share_rows(plan)
    if not choice.place:
        yield Violation(rule="tables", where="schedule.place", message="has no pipe; one row a pipe")
    for pipe, row in enumerate(choice.place):
        yield from fits(f"schedule.place[{pipe}]", len(row), stages, "stages")


def _actions_exist(plan: Plan) -> Iterator[Violation]:
    """Yields numbers of workers, pipes, stages and micro-batches that do not exist."""
    choice, stages = plan.schedule, len(plan.stages)

    def below(where: str, what: str, number: int, count: int) -> Iterator[Violation]:
        if number >= count:
            message = f"there is no {what} {number}; they are 0 to {count - 1}"
            yield Violation(rule="numbers", where=where, message=message)

    for pipe, row in enumerate(choice.place):
        for stage, worker in enumerate(row):
            yield from below(f"schedule.place[{pipe}][{stage}]", "worker", worker, plan.axes.pipeline)
    for micro, pipe in enumerate(choice.pipe_of):
        yield from below(f"schedule.pipe_of[{micro}]", "pipe", pipe, len(choice.place))
    for index, hop in enumerate(plan.hops):
        for stage in (hop.sender, hop.receiver):
            yield from below(f"hops[{index}]", "stage", stage, stages)
    for worker, order in enumerate(schedule_of(plan).orders):
        for action in order:
            where = f"schedule.orders[{worker}]: {action}"
            yield from below(where, "stage", action.stage, stages)
            yield from below(where, "pipe", action.pipe, len(choice.place))
            yield from below(where, "micro-batch", action.micro, plan.batch.micros)


def _hops_have_ways(plan: Plan) -> Iterator[Violation]:
    """Yields messages in the wrong direction or twice: activations go to a later stage, gradients to an earlier
    one.
    """
    seen = Counter((hop.direction, hop.sender, hop.receiver) for hop in plan.hops)
    for (direction, sender, receiver), times in seen.items():
        where = f"{direction} {sender} to {receiver}"
        if times > 1:
            message = f"stands {times} times; one hop a direction and pair of stages"
            yield Violation(rule="hops", where=where, message=message)
        if sender >= receiver if direction == "act" else sender <= receiver:
            message = "goes the wrong way; act to a later stage, grad to an earlier one"
            yield Violation(rule="hops", where=where, message=message)


def _stages_have_layers(plan: Plan) -> Iterator[Violation]:
    for index, stage in enumerate(plan.stages):
        if not stage.layers:
            yield Violation(rule="layers", where=f"stage {index}", message="has no layer; at least one")


def _workers(plan: Plan) -> Iterator[Violation]:
    """Yields workers without a stage, or with more stages of a pipe than `chunks` says."""
    choice = plan.schedule
    idle = set(range(plan.axes.pipeline)) - set(chain.from_iterable(choice.place))
    for worker in sorted(idle):
        yield Violation(rule="places", where=f"worker {worker}", message="holds no stage; each holds one")
    for pipe, row in enumerate(choice.place):
        for worker, count in sorted(Counter(row).items()):
            if count > choice.chunks:
                message = f"holds {count} stages of pipe {pipe}; chunks allows {choice.chunks}"
                yield Violation(rule="places", where=f"worker {worker}", message=message)


def _pipes(plan: Plan) -> Iterator[Violation]:
    pipes, pairs = len(plan.schedule.place), plan.schedule.pairs
    if pipes not in ({1, 2} if pairs == 1 else {2 * pairs}):
        message = f"{pipes} pipes are not {pairs} pairs; {2 * pairs} are"
        yield Violation(rule="pipes", where="schedule.place", message=message)
    for pipe in sorted(set(range(pipes)) - set(plan.schedule.pipe_of)):
        yield Violation(
            rule="pipes", where=f"pipe {pipe}", message="carries no micro-batch; each carries one"
        )


def _schedule(plan: Plan) -> Iterator[Violation]:
    schedule = schedule_of(plan)
    try:
        overlap_of(dict(plan.schedule.settings), "schedule.settings")
    except BadInput as error:
        yield Violation(rule="schedule", where="", message=str(error))
    in_parts = plan.schedule.family == "overlap" and plan.schedule.chunks > 1
    if in_parts and rounds_by_part(plan.precision, plan.execution):
        yield Violation(rule="schedule", where="execution", message=f"{ROUNDS_BY_PART}; eager, or fp32")
    barrier = plan.schedule.update == "barrier"
    for found in schedules.violations(schedule, plan.hops, barrier=barrier):
        picture = draw(schedule.orders, found.marks) if found.marks else ""
        yield Violation(rule="schedule", where="", message=str(found), picture=picture)


def _recompute(plan: Plan) -> Iterator[Violation]:
    """Yields stages without one R action a micro-batch if they recompute, or with any if not, and wrong
    `recompute_before`.
    """
    actions = (action for order in schedule_of(plan).orders for action in order)
    done = Counter(action.stage for action in actions if action.kind is Kind.R)
    for index, stage in enumerate(plan.stages):
        needed = plan.batch.micros if stage.recompute else 0
        if done[index] != needed:
            message = f"has {done[index]} R actions; recompute: {str(stage.recompute).lower()} needs {needed}"
            yield Violation(rule="recompute", where=f"stage {index}", message=message)
        before = stage.recompute_before
        if before and (not stage.recompute or before not in stage.layers[1:]):
            message = f"recompute_before is '{before}'; a layer but the first, of a stage that recomputes"
            yield Violation(rule="recompute", where=f"stage {index}", message=message)
        elif before and (plan.axes.spatial > 1 or plan.execution == "compiled"):
            message = "recomputes a part, which compiled stages and split samples do not"
            yield Violation(rule="recompute", where=f"stage {index}", message=message)


def _times(plan: Plan) -> Iterator[Violation]:
    """Yields stages whose forward takes no time although their backward does, and likewise for recomputing all of
    it.
    """
    every = [plan.times, *(row.times for row in plan.replica_times)]
    for index, stage, times in ((i, plan.stages[i], row[i]) for row in every for i in range(len(row))):
        back = times.backward_ns or times.input_grad_ns or times.weight_grad_ns
        whole = stage.recompute and not stage.recompute_before
        wrong = {"forward_ns": back and not times.forward_ns}
        wrong["recompute_ns"] = whole and times.forward_ns and not times.recompute_ns
        for key in (key for key, missing in wrong.items() if missing):
            yield Violation(rule="times", where=f"stage {index}", message=f"{key} is 0; more than 0")


def _prediction(plan: Plan) -> Iterator[Violation]:
    seen = plan.prediction
    if not seen.low_ns <= seen.step_ns <= seen.high_ns:
        message = f"step_ns {seen.step_ns} is outside of its error bar, {seen.low_ns} to {seen.high_ns}"
        yield Violation(rule="prediction", where="prediction", message=message)
    for worker, memory in enumerate(seen.memory):
        if memory.total > memory.limit:
            message = f"needs {memory.total} bytes of {memory.limit}: {memory.total - memory.limit} too many"
            yield Violation(rule="memory", where=f"worker {worker}", message=message)


def _step_time(plan: Plan) -> Iterator[Violation]:
    """Yields a predicted step that is not what the plan's own durations and order amount to."""
    simulated = period_of_plan(plan)
    if simulated != plan.prediction.step_ns:
        message = f"step_ns is {plan.prediction.step_ns}; times, hops and orders amount to {simulated}"
        yield Violation(rule="prediction", where="prediction", message=message)


def _program(plan: Plan) -> Iterator[Violation]:
    """Yields what goes wrong, such as a deadlock, once every send and receive is in its place.

    A program of more than MOST_INSTRUCTIONS instructions is not judged, because that would take seconds.
    """
    whole = schedule_of(plan)
    if sum(map(len, whole.orders)) + 3 * len(plan.hops) * plan.batch.micros > MOST_INSTRUCTIONS:
        return
    for share in sorted({whole.micros, *plan.batch.shares}):
        schedule = shortened(whole, share)
        for layout, where in LAYOUTS.items():
            program = lower(schedule, plan.hops, plan.times, layout=layout)
            for found in program_violations(program, schedule, streams=layout):
                picture = draw(schedule.orders, found.marks) if found.marks else ""
                yield Violation(rule="program", where=where, message=str(found), picture=picture)


def _certificate(plan: Plan) -> Iterator[Violation]:
    if (proof := plan.certificate) is None:
        return
    if proof.objective_ns != plan.prediction.step_ns:
        message = f"objective_ns {proof.objective_ns} is not the step_ns predicted, {plan.prediction.step_ns}"
        yield Violation(rule="certificate", where="certificate", message=message)
    for key in ("bound_ns", "own_order_bound_ns", "order_free_bound_ns"):
        if (bound := getattr(proof, key) or 0) > proof.objective_ns:
            message = f"{key} {bound} is above objective_ns {proof.objective_ns}; a bound is not"
            yield Violation(rule="certificate", where="certificate", message=message)


_RULES = (
    machines.batch,
    _stages_have_layers,
    model.grids,
    model.samples,
    _workers,
    _pipes,
    machines.table,
    _schedule,
    _recompute,
    _times,
    _prediction,
    _certificate,
)
