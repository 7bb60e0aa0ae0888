"""One list scheduler for every placement: whenever a worker is free it starts the best of what is ready.

Caps come first. A worker keeps room for one micro-batch of each of its (pipe, stage)s that holds none. The micro-batch
that is furthest in a pipe can then always go on. Without that room, greedy listing would deadlock under a memory cap
that several stages share. Where the cap is too tight for it, micro-batches enter only when their whole way has room.
So listing fails exactly when a single micro-batch does not fit.

The result is an order; its times are those of the costs it was listed from, and mean nothing under other costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from planner.errors import BadInput
from planner.schedule.actions import Action
from planner.schedule.listing.engine import FOREVER, ListingPass
from planner.schedule.listing.frozen import span_of
from planner.schedule.listing.task import Costs, ListingJob, PerNode, PerStage


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The orders that a listing found, F, B, I and W alone."""

    orders: list[list[Action]]
    span: int  # when the last action ends


def listed(job: ListingJob) -> Listing:
    """Lists the order of a job.

    Raises: BadInput with the grid drawn where a single micro-batch does not fit the caps.
    """
    found = _sooner(job, FOREVER)
    assert found is not None, "nothing ends later than never"
    run, span = found
    return Listing(orders=run.actions(), span=span)


def _sooner(job: ListingJob, below: int) -> tuple[ListingPass, int] | None:
    """Runs a job; returns the run with its span, or None where the run surely does not end before `below`."""
    check_job(job)
    run = ListingPass(job, whole_way=False, below=below)
    if run.late:
        return None
    if run.finished():
        return run, max(run.free)
    if job.sequence is None:
        run = ListingPass(job, whole_way=True)
    if not run.finished():
        raise run.stuck()
    # some waited on entry for room elsewhere, which the frozen order need not
    return run, span_of(job.place, run.actions(), job.costs)


def best_listed(jobs: Iterable[ListingJob]) -> Listing:
    """Lists several jobs that differ in policy, caps or sequence, and stops at an order that cannot be
    beaten.

    Returns: the shortest. Jobs that get stuck are passed over.
    Raises: BadInput where all get stuck.
    """
    best: tuple[ListingPass, int] | None = None
    stuck: BadInput | None = None
    for job in jobs:
        try:
            found = _sooner(job, FOREVER if best is None else best[1])
        except BadInput as error:
            stuck = error
            continue
        if found is not None and (best is None or found[1] < best[1]):
            best = found
        if best is not None and best[1] <= bound(job):
            break
    if best is None:
        raise stuck or BadInput("no job to list")
    return Listing(orders=best[0].actions(), span=best[1])


def bound(job: ListingJob) -> int:
    """Returns a lower bound on the span of every order of a job, the larger of two.

    - A worker does all its work from its first forward on, or all but the forwards from its first backward on.
    - The micro-batches of a pipe follow each other at its last stage.

    Args: `job` may have any caps and policy; neither counts here.
    """
    costs, stages = job.costs, range(len(job.place[0]))
    back = costs.input_grad if job.split else costs.backward
    late = costs.weight_grad if job.split else (0,) * len(stages)
    counts = Counter(job.pipe_of)
    work: dict[int, int] = {}  # of a worker: B, or I and W
    forwards: dict[int, int] = {}
    head: dict[int, int] = {}  # its earliest forward
    turn: dict[int, int] = {}  # its earliest backward
    tail: dict[int, int] = {}
    longest = 0
    for pipe, workers in enumerate(job.place):
        if not counts[pipe]:
            continue
        reach = _sums(costs.forward, _hops(costs, workers, 1))  # earliest forward of each stage
        leave = _sums(
            back, _hops(costs, workers, -1)
        )  # from the end of a stage's backward to the end of the pipe's
        through = reach[-1] + costs.forward[-1] + back[-1]
        again = (counts[pipe] - 1) * (costs.forward[-1] + back[-1])
        longest = max(longest, through + again + leave[-1] + late[0])
        for stage, worker in zip(stages, workers, strict=True):
            forwards[worker] = forwards.get(worker, 0) + counts[pipe] * costs.forward[stage]
            work[worker] = work.get(worker, 0) + counts[pipe] * (back[stage] + late[stage])
            head[worker] = min(head.get(worker, reach[stage]), reach[stage])
            turned = through + leave[-1] - leave[stage] - back[stage]
            turn[worker] = min(turn.get(worker, turned), turned)
            tail[worker] = 0 if job.split else min(tail.get(worker, leave[stage]), leave[stage])
    return max(longest, *(max(head[w] + forwards[w], turn[w]) + work[w] + tail[w] for w in work))


def _hops(costs: Costs, workers: Sequence[int], step: int) -> list[int]:
    """Returns the time of a message between each stage and the next; with step -1 the way back."""
    edges = [(s, s + 1)[::step] for s in range(len(workers) - 1)]
    return [0 if workers[a] == workers[b] else costs.hops.get((a, b), 0) for a, b in edges]


def _sums(times: Sequence[int], hops: Sequence[int]) -> list[int]:
    return list(accumulate((time + hop for time, hop in zip(times, hops, strict=False)), initial=0))


def check_job(job: ListingJob) -> None:
    """Refuses a job whose costs or limits are not of its placement.

    Raises: BadInput that says how many there are and how many are needed.
    """
    stages = len(job.place[0])
    if job.costs.stages != stages:
        raise BadInput(f"costs of {job.costs.stages} stages", allowed=f"{stages}, as the placement")
    for name in ("flight", "ahead"):
        caps: PerNode | None = getattr(job.limits, name)
        if caps is not None and ([len(row) for row in caps] != [stages] * len(job.place)):
            raise BadInput(
                f"caps of {len(caps)} pipes", where=name, allowed=f"{len(job.place)} pipes of {stages}"
            )
    for name in ("keep", "held"):
        row: PerStage | None = getattr(job.limits, name)
        if row is not None and len(row) != stages:
            raise BadInput(f"weights of {len(row)} stages", where=name, allowed=f"{stages}, as the placement")
    workers = 1 + max(map(max, job.place))
    if job.limits.memory is not None and len(job.limits.memory) != workers:
        raise BadInput(f"{len(job.limits.memory)} caps", where="memory", allowed=f"one a worker, {workers}")
