"""The best order of all, for small pipelines: proved, so that one knows how far a family is from it.

Micro-batches of a pipe are alike, so some best order takes them in turn at every (pipe, stage) (swap the names of
two that overtake each other). What is left to decide, whenever a worker is free, is which of its ready actions to
start, or to wait. States are explored in order of time: counters of what has started, how long workers are still
busy, and when the messages under way will arrive. Equal states are one; a state whose bound reaches the best known
time is dropped. Links have no queues here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

from planner.schedule import Action, Costs, Kind, Limits, Schedule
from planner.schedule.listing.engine import as_actions
from planner.schedule.listing.frozen import COMPUTE, fits, limits_of, span_of
from planner.schedule.listing.scheduler import Listing, best_listed, bound
from planner.schedule.listing.task import TIES, ListingJob, Policy
from tests.planner.schedule.search_state import Model, Start, State


@dataclass(frozen=True, kw_only=True)
class Proof:
    span: int  # of the best order found
    bound: int  # no order is shorter; equal to `span` where the search ended
    orders: list[list[Action]]
    states: int  # looked at

    @property
    def proved(self) -> bool:
        return self.span == self.bound


def best_order(job: ListingJob, *, known: Listing | None = None, most_states: int = 200_000) -> Proof:
    """The shortest order for the job's placement, costs and caps; an interval where `most_states` do not suffice.

    The job's policy says where to start from and does not restrict the answer, nor does an order already `known`.
    """
    job = replace(job, sequence=None)
    start = best_listed(replace(job, policy=policy) for policy in (job.policy, *POLICIES))
    if known is not None and known.span < start.span:
        start = known
    if start.span <= bound(job):
        return Proof(span=start.span, bound=start.span, orders=start.orders, states=0)
    return _Search(job, start, most_states).run()


POLICIES = tuple(Policy(tie=tie, order=order) for tie in TIES for order in ("BFW", "FBW"))


class _Search:
    def __init__(self, job: ListingJob, start: Listing, most_states: int) -> None:
        self.job, self.start, self.most_states = job, start, most_states
        self.model = Model(job)
        self.seen: dict[State, int] = {}  # time at which a state was reached first
        self.came: dict[State, tuple[State, tuple[Start | None, ...]]] = {}
        self.heap: list[tuple[int, int, int, State]] = []  # bound, -time, number, state

    def run(self) -> Proof:
        self._reach(self.model.first(), 0, None)
        while self.heap and len(self.seen) < self.most_states:
            least, time, _, state = heappop(self.heap)
            if self.model.over(state):
                return self._proof(least, self._orders(state))
            if self.seen[state] == -time:
                self._expand(state, -time)
        open_bound = self.heap[0][0] if self.heap else self.start.span
        return Proof(span=self.start.span, bound=open_bound, orders=self.start.orders, states=len(self.seen))

    def _proof(self, span: int, orders: list[list[Action]]) -> Proof:
        return Proof(span=span, bound=span, orders=orders, states=len(self.seen))

    def _expand(self, state: State, time: int) -> None:
        for starts in self.model.each(state):
            begun = self.model.begun(state, starts)
            instant = any(start is not None and not self.model.time[start[0]][start[1]] for start in starts)
            wait = 0 if instant else self.model.next_event(begun)
            if wait is not None:
                self._reach(self.model.later(begun, wait), time + wait, (state, starts))

    def _reach(self, state: State, time: int, source: tuple[State, tuple[Start | None, ...]] | None) -> None:
        if self.seen.get(state, time + 1) <= time:
            return
        least = time + self.model.least(state)
        if least >= self.start.span:
            return
        self.seen[state] = time
        if source is not None:
            self.came[state] = source
        heappush(self.heap, (least, -time, len(self.came), state))

    def _orders(self, state: State) -> list[list[Action]]:
        codes: list[list[int]] = [[] for _ in self.model.nodes_of]
        while state in self.came:
            state, starts = self.came[state]
            for start in starts:
                if start is not None:
                    codes[self.model.worker[start[0]]].append(start[0] * 3 + start[1])
        return as_actions(self.job, [order[::-1] for order in codes])


def best_for(
    schedule: Schedule, costs: Costs, limits: Limits | None = None, *, most_states: int = 200_000
) -> Proof:
    """The shortest order of a schedule's work on its own placement, in the memory that its own order takes."""
    orders = [[a for a in order if a.kind in COMPUTE] for order in schedule.orders]
    split = any(action.kind is Kind.I for order in orders for action in order)
    back = Kind.I if split else Kind.B
    job = ListingJob(
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        costs=costs,
        split=split,
        limits=limits_of(schedule) if limits is None else limits,
    )
    known = None
    if fits(schedule, job.limits) and all(
        a.kind in (Kind.F, back, Kind.W) for order in orders for a in order
    ):
        known = Listing(orders=orders, span=span_of(schedule.place, orders, costs))
    return best_order(job, known=known, most_states=most_states)
