"""Elements that cost nothing need no place of their own: each goes along with a neighbour, or to one of the ends.

An element without a cost may move to the stage of another where that one has part, as source or reader, in every
message of a cost that it has part in itself: that stage pays for these already. The other must be all that comes
before it, or all that comes after it, so that the stages stay in order. No load grows by that. One whose messages all
cost nothing goes to the first stage where nothing comes before it, to the last where nothing comes after it. What it
takes of the room is left out here: the result is a relaxation, and exact where the stages fit with it.

What a graph that is no chain is made of when its stages are searched.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx


@dataclass(frozen=True, kw_only=True)
class Sent:
    source: int  # element
    readers: tuple[int, ...]
    cost: float


@dataclass(frozen=True, kw_only=True)
class ElementWork:
    """Elements by number; `before[k]` are those that must come before k, which has no cycles."""

    cost: tuple[float, ...]
    size: tuple[float, ...]
    before: tuple[tuple[int, ...], ...]
    sent: tuple[Sent, ...] = ()

    @property
    def count(self) -> int:
        return len(self.cost)


@dataclass(frozen=True)
class Reduced:
    work: ElementWork
    members: tuple[tuple[int, ...], ...]  # of each element that is left, itself among them
    first: tuple[int, ...]
    last: tuple[int, ...]

    def expanded(self, stages: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Returns the stages with all elements in them.

        Args: `stages` hold the numbers of elements that are left.
        """
        found = [[k for left in stage for k in self.members[left]] for stage in stages]
        found[0] += self.first
        found[-1] += self.last
        return tuple(tuple(sorted(stage)) for stage in found)


def reduced(work: ElementWork) -> Reduced:
    """Joins elements that some best split keeps together.

    Returns: the work of those that are left, at least one.
    """
    joined = _Joined(work)
    while joined.one_more():
        pass
    return joined.result()


class _Joined:
    def __init__(self, work: ElementWork) -> None:
        self.work = work
        order: nx.DiGraph[int] = nx.DiGraph()
        order.add_nodes_from(range(work.count))
        order.add_edges_from((j, k) for k, row in enumerate(work.before) for j in row)
        self.order = order
        self.members = {k: [k] for k in range(work.count)}
        self.place = {k: k for k in range(work.count)}  # with whom; absent where at an end
        self.first: list[int] = []
        self.last: list[int] = []

    def one_more(self) -> bool:
        """Tells whether there was another element to move."""
        company = self._company()
        for k in sorted(self.order):
            if self.work.cost[k] or self.order.number_of_nodes() == 1:
                continue
            for near in (self.order.pred[k], self.order.succ[k]):
                if len(near) == 1 and set(near) <= company.get(k, set(near)):
                    self._join(k, *near)
                    return True
            if k not in company and not self.order.pred[k]:
                self.first += self._taken(k)
                return True
            if k not in company and not self.order.succ[k]:
                self.last += self._taken(k)
                return True
        return False

    def _company(self) -> dict[int, set[int]]:
        """Returns who has part in every message of a cost that an element has part in."""
        found: dict[int, set[int]] = {}
        for sent in self.work.sent:
            ends = {self.place[k] for k in (sent.source, *sent.readers) if k in self.place}
            if sent.cost and len(ends) > 1:
                for k in ends:
                    found[k] = found.get(k, ends) & ends
        return found

    def _taken(self, k: int) -> list[int]:
        """Returns the members of an element that is left out; who hung on it hangs on what it hung on."""
        before, after = list(self.order.pred[k]), list(self.order.succ[k])
        self.order.remove_node(k)
        self.order.add_edges_from((j, n) for j in before for n in after)
        members = self.members.pop(k)
        for member in members:
            del self.place[member]
        return members

    def _join(self, k: int, target: int) -> None:
        members = self._taken(k)
        self.members[target] += members
        self.place |= dict.fromkeys(members, target)

    def result(self) -> Reduced:
        left = sorted(self.order)
        number = {k: n for n, k in enumerate(left)}
        sent = []
        for s in self.work.sent:
            if s.source in self.place:
                readers = sorted({number[self.place[k]] for k in s.readers if k in self.place})
                sent.append(Sent(source=number[self.place[s.source]], readers=tuple(readers), cost=s.cost))
        work = ElementWork(
            cost=tuple(self.work.cost[k] for k in left),
            size=tuple(self.work.size[k] for k in left),
            before=tuple(tuple(sorted(number[j] for j in self.order.pred[k])) for k in left),
            sent=tuple(sent),
        )
        members = tuple(tuple(sorted(self.members[k])) for k in left)
        return Reduced(work, members, tuple(self.first), tuple(self.last))
