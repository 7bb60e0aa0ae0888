"""Replays a log: jobs train on idle nodes as a policy says, and every node-second is accounted for.

When a node is taken, its job starts again on what is left. When nodes come or go, the policy gives every job a size.
A job that starts or grows does not train for `up_s`, one that shrinks or starts again for `down_s`.
Jobs never end: the question is what idle nodes are worth, and a site never lacks work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import floor
from typing import NamedTuple

from planner.scavenge.curves import ElasticJob
from planner.scavenge.decide import LOOK_AHEAD_S, Holding, knapsack
from planner.scavenge.logs import IdleLog

MOST_KNOWN = 10_000  # answers that are remembered
Policy = Callable[[Sequence[Holding], int], list[int]]


class Tenure(NamedTuple):
    """The nodes that a job held from one time to another; `pause_s` of it passed without training."""

    job: str
    begin_s: float
    end_s: float
    nodes: tuple[int, ...]
    pause_s: float


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of a policy over a log: work in the jobs' units, and where all node-seconds went."""

    work: float
    lost_to_rescaling: float  # work that pauses cost which the policy chose
    lost_to_preemption: float  # work that pauses cost which taken nodes forced, and work that was done again
    dedicated: float  # work of the same jobs on as many nodes as were idle on average, never taken
    rescales: int
    preemptions: int
    training_node_s: float
    pausing_node_s: float
    unused_node_s: float
    spans: tuple[Tenure, ...] = ()

    @property
    def efficiency(self) -> float:
        """Returns the work done over that of dedicated nodes of equal number."""
        return self.work / self.dedicated if self.dedicated else 0.0

    def share(self, lost: float) -> float:
        """Returns lost work as a share of all that the nodes held could have done.

        Args: `lost` is work of this value, such as `lost_to_rescaling`.
        """
        whole = self.work + self.lost_to_rescaling + self.lost_to_preemption
        return lost / whole if whole else 0.0


def planned(look_ahead_s: float = LOOK_AHEAD_S) -> Policy:
    """Returns the policy that decides by the knapsack.

    Args: `look_ahead_s` are the seconds in which a change has to pay.
    """
    known = dict[tuple[object, ...], tuple[Sequence[Holding], list[int]]]()

    def policy(holdings: Sequence[Holding], idle: int) -> list[int]:
        """Returns the decision; the same question, which a long log asks often, is answered once."""
        usable = min(idle, sum(max(each.job.curve.rates) for each in holdings))
        key = (usable, *((id(each.job), each.nodes, each.worth, each.broken) for each in holdings))
        if key not in known:
            if len(known) == MOST_KNOWN:
                known.clear()
            known[key] = (holdings, knapsack(holdings, usable, look_ahead_s))
        return known[key][1]

    return policy


def equal_share(holdings: Sequence[Holding], idle: int) -> list[int]:
    """Returns an equal number of nodes for every job: the baseline.

    Args: `idle` nodes are shared out; where a curve lacks the size, the job gets its next smaller one.
    """
    share, over = divmod(idle, len(holdings))
    return [holding.job.curve.fitting(share + (i < over)) for i, holding in enumerate(holdings)]


def dedicated_rate(jobs: Sequence[ElasticJob], nodes: float) -> float:
    """Returns the greatest worth of a second that jobs have on nodes of their own.

    Args: `nodes` may lie between two whole numbers, and then the rate does too.
    """
    least = floor(nodes)
    rates = []
    for count in (least, least + 1):
        sizes = knapsack([Holding(job=job) for job in jobs], count, 1.0)
        rates.append(sum(job.worth(size) for job, size in zip(jobs, sizes, strict=True)))
    return rates[0] + (nodes - least) * (rates[1] - rates[0])


@dataclass
class _Running:
    """One job while the log is replayed: what it holds since when, and what that has made so far."""

    job: ElasticJob
    nodes: list[int] = field(default_factory=list)
    since_s: float = 0.0
    until_s: float = 0.0  # it does not train before
    trained_s: float = 0.0  # since it last started
    forced: bool = False  # the pause is for nodes that were taken
    broken: bool = False  # nodes were taken just now
    worth: float = 0.0

    def holding(self, now: float) -> Holding:
        rest_s = max(0.0, self.until_s - now)
        return Holding(
            job=self.job, nodes=len(self.nodes), worth=self.worth, broken=self.broken, rest_s=rest_s
        )


class _Replay:
    """The jobs and idle nodes at one time of the log, and the sums up to that time."""

    def __init__(self, jobs: Sequence[ElasticJob], begin_s: float, again_s: float) -> None:
        self.running = [_Running(job, since_s=begin_s) for job in jobs]
        self.idle: set[int] = set()
        self.again_s = again_s
        self.work = self.rescaling = self.preemption = 0.0
        self.training_s = self.pausing_s = self.unused_s = 0.0
        self.rescales = self.preemptions = 0
        self.spans: list[Tenure] = []

    def lose(self, taken: set[int], now: float) -> None:
        """Takes nodes away, and from a job that held some of them the work that it has to do again."""
        self.idle -= taken
        for each in self.running:
            if taken.isdisjoint(each.nodes):
                continue
            again = min(each.trained_s, self.again_s) * each.worth
            self.work -= again
            self.preemption += again
            self.preemptions += 1
            self._note(each, now)
            each.nodes = [node for node in each.nodes if node not in taken]
            each.broken, each.trained_s = True, 0.0

    def change(self, policy: Policy, now: float) -> None:
        """Gives every job the size that the policy says; jobs give nodes back before others take them."""
        holdings = [each.holding(now) for each in self.running]
        sizes = policy(holdings, len(self.idle))
        free = self.idle.difference(*(each.nodes for each in self.running))
        moving = [
            (each, size)
            for each, size in zip(self.running, sizes, strict=True)
            if size != len(each.nodes) or each.broken
        ]
        for each, size in moving:
            if not each.broken:
                self._note(each, now)
            free.update(each.nodes[size:])
        fresh = sorted(free, reverse=True)
        for each, size in moving:
            grows = size > len(each.nodes)
            each.nodes = [*each.nodes[:size], *(fresh.pop() for _ in range(size - len(each.nodes)))]
            self.rescales += size > 0 and not each.broken
            each.forced, each.broken, each.trained_s = each.broken, False, 0.0
            each.until_s = now + (each.job.up_s if grows else each.job.down_s) * bool(size)
            each.worth, each.since_s = each.job.worth(size), now

    def pass_time(self, now: float, then: float) -> None:
        """Lets jobs train until the next event."""
        for each in self.running:
            pause_s = min(max(each.until_s - now, 0.0), then - now)
            if each.forced:
                self.preemption += pause_s * each.worth
            else:
                self.rescaling += pause_s * each.worth
            self.work += (then - now - pause_s) * each.worth
            each.trained_s += then - now - pause_s
            self.pausing_s += pause_s * len(each.nodes)
            self.training_s += (then - now - pause_s) * len(each.nodes)
        self.unused_s += (then - now) * (len(self.idle) - sum(len(each.nodes) for each in self.running))

    def _note(self, each: _Running, now: float) -> None:
        if each.nodes and now > each.since_s:
            pause_s = min(each.until_s, now) - each.since_s if each.until_s > each.since_s else 0.0
            self.spans.append(Tenure(each.job.name, each.since_s, now, tuple(each.nodes), pause_s))

    def end(self, now: float) -> None:
        """Notes what every job holds at last."""
        for each in self.running:
            self._note(each, now)


def replay(
    log: IdleLog, jobs: Sequence[ElasticJob], policy: Policy, *, free: bool = False, again_s: float = 0.0
) -> Replayed:
    """Returns what a policy makes of a log.

    Args: `free` makes every change of size take no time, which is the ceiling. `again_s` are the seconds of work
      that a job does again when nodes are taken from it: 0 where it is told in time to write a checkpoint.
    """
    jobs = [replace(job, up_s=0.0, down_s=0.0) for job in jobs] if free else list(jobs)
    come, gone = defaultdict[float, set[int]](set), defaultdict[float, set[int]](set)
    for spell in log.spells:
        come[spell.begin_s].add(spell.node)
        gone[spell.end_s].add(spell.node)
    found = _Replay(jobs, log.begin_s, 0.0 if free else again_s)
    for now, then in pairwise(sorted({log.begin_s, log.end_s, *come, *gone})):
        found.lose(gone[now], now)
        found.idle |= come[now]
        found.change(policy, now)
        found.pass_time(now, then)
    found.end(log.end_s)
    return Replayed(
        work=found.work,
        lost_to_rescaling=found.rescaling,
        lost_to_preemption=found.preemption,
        dedicated=dedicated_rate(jobs, log.average) * (log.end_s - log.begin_s),
        rescales=found.rescales,
        preemptions=found.preemptions,
        training_node_s=found.training_s,
        pausing_node_s=found.pausing_s,
        unused_node_s=found.unused_s,
        spans=tuple(found.spans),
    )
