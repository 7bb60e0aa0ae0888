"""Merges elements that cost nothing into neighbours, before the stages of a graph that is no chain are searched.

An element without a cost may move to the stage of another element, its host, which pays for its messages already. So
the host must have part, as source or reader, in every message with a cost that the element has part in. The host must
also be all that comes before the element, or all that comes after it, so that the stages stay in order. No load grows
by that. An element whose messages all cost nothing goes to the first stage where nothing comes before it, and to the
last where nothing comes after it. The room that such elements take is left out here. So the result is a relaxation,
and exact where the stages fit with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The message of an element: who reads it, and what it costs."""

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
    """The elements that are left, and where the others have gone."""

    work: ElementWork
    members: tuple[tuple[int, ...], ...]  # the members of each element that is left, itself among them
    first: tuple[int, ...]
    last: tuple[int, ...]

    def expanded(self, stages: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Returns the stages with all elements again.

        Args: `stages` are of the elements that are left.
        Returns: the original elements of each stage, in order.
        """
        found = [[k for left in stage for k in self.members[left]] for stage in stages]
        found[0] += self.first
        found[-1] += self.last
        return tuple(tuple(sorted(stage)) for stage in found)


def reduced(work: ElementWork) -> Reduced:
    """Merges elements that cost nothing until none can move; at least one element is left.

    Args: `work` has the costs, sizes, order and messages of the elements.
    Returns: the work of the elements that are left, and the members of each.
    """
    joined = _Joined(work)
    while joined.one_more():
        pass
    return joined.result()


class _Joined:
    """The elements and their order while they are merged."""

    def __init__(self, work: ElementWork) -> None:
        self.work = work
        order: nx.DiGraph[int] = nx.DiGraph()
        order.add_nodes_from(range(work.count))
        order.add_edges_from((j, k) for k, row in enumerate(work.before) for j in row)
        self.order = order
        self.members = {k: [k] for k in range(work.count)}
        self.place = {
            k: k for k in range(work.count)
        }  # the element it was merged into; absent where it went to an end
        self.first: list[int] = []
        self.last: list[int] = []

    def one_more(self) -> bool:
        """Moves one more element; returns whether there was one."""
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
        """Returns, for each element, the elements with part in all of its messages that cost something."""
        found: dict[int, set[int]] = {}
        for sent in self.work.sent:
            ends = {self.place[k] for k in (sent.source, *sent.readers) if k in self.place}
            if sent.cost and len(ends) > 1:
                for k in ends:
                    found[k] = found.get(k, ends) & ends
        return found

    def _taken(self, k: int) -> list[int]:
        """Removes an element and returns its members; what depended on it now depends on what it depended on."""
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
