"""The integer program of layouts: which option each decision takes, for a price of memory.

Sets: decisions d with options o; tensors e that one decision makes and another reads, with the layouts l that they
may have and the layouts m that they may be read in.

    x[d, o]     1 where decision d takes option o
    f[e, l, m]  1 where tensor e lies as l and is read as m; a tensor that several decisions read has a hub
                h[e, l, m], at least the flow of each reader, so that a conversion is paid once
    k[e, m]     1 where tensor e is kept as m for a backward pass, by any of several readers
    y[p, c]     1 where parameter p, which several decisions read, is cut as c

    minimise    time + price * bytes                            objective
    subject to  sum_o x[d, o] = 1                               one_option
                sum_m f[e, l, m] = sum of x that make e as l    leaving
                sum_l f[e, l, m] = sum of x that read e as m    arriving
                h >= f                                          hubs
                k >= sum of x that keep e as m                  kept_once
                y[p, c] = sum of x that read p cut as c         tied
                x that make u as l = x that make t as l         between_blocks
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pulp

from planner.choose.options import Decision, Decisions
from planner.choose.prices import (
    NOT_STORED,
    STATE_NAME,
    HeldPrice,
    Storing,
    demands,
    elements,
    held_prices,
    kept_tensors,
)
from planner.choose.solve import LayoutProgram, Term, as_named_today
from planner.choose.work import GroupWork
from planner.group import MeshOnCluster, Passages, share_done
from planner.layout import GroupLayout, LocalOperation


@dataclass
class _Edge:
    """A tensor that one decision makes and another reads."""

    tensor: str
    source: int
    reader: int
    times: int
    loop: bool  # from one block to the next
    reads: dict[int, GroupLayout] = field(default_factory=dict)  # by option of the reader


def program(
    decisions: Decisions, work: GroupWork, on: MeshOnCluster, storing: Storing = NOT_STORED
) -> LayoutProgram:
    """Returns the program of a model on a mesh.

    Args: `storing` says whether parameters may be held in parts that are gathered for use.
    """
    with as_named_today():
        return _Builder(decisions, work, on, storing).build()


class _Builder:
    def __init__(self, decisions: Decisions, work: GroupWork, on: MeshOnCluster, storing: Storing) -> None:
        self.decisions, self.work, self.on, self.storing = decisions, work, on, storing
        self.passages = Passages(on, work.element_bytes)
        self.model = pulp.LpProblem("layout", pulp.LpMinimize)
        self.rows: list[tuple[dict[pulp.LpVariable, float], int, float]] = []
        self.count = 0
        self.chosen = [
            [pulp.LpVariable(f"x_{d}_{o}", cat="Binary") for o in range(len(each.options))]
            for d, each in enumerate(decisions.found)
        ]
        self.terms: list[tuple[pulp.LpVariable, Term]] = []
        self.edges: dict[tuple[str, int, bool, int], _Edge] = {}
        self.alike_between = _moved_entries(decisions)
        # tensor, layout -> decision -> options that keep it so
        self.keepers: dict[tuple[str, GroupLayout, int], dict[int, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self.uses: dict[str, dict[int, dict[int, GroupLayout]]] = defaultdict(lambda: defaultdict(dict))

    def build(self) -> LayoutProgram:
        self.one_option()
        for d, decision in enumerate(self.decisions.found):
            for o, locals_ in enumerate(decision.options):
                self.terms.append((self.chosen[d][o], self._own(d, o, decision, locals_)))
        self.flows()
        self.kept_once()
        self.tied()
        self.between_blocks()
        for terms, sense, right in self.rows:
            self.model += pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=right)
        return LayoutProgram(decisions=self.decisions, model=self.model, chosen=self.chosen, terms=self.terms)

    def one_option(self) -> None:
        for row in self.chosen:
            self.rows.append((dict.fromkeys(row, 1.0), pulp.LpConstraintEQ, 1.0))

    def _own(self, d: int, o: int, decision: Decision, locals_: Mapping[str, LocalOperation]) -> Term:
        """Returns what an option takes by itself, and notes what it reads, keeps and needs of parameters."""
        ns, lying, graph = 0.0, self.decisions.lying, self.decisions.graph
        trained = self.decisions.trained
        for local in locals_.values():
            name, times = local.operation.name, graph.count(local.operation.name)
            ns += times * self.work.time_ns(name, share_done(local, self.on.mesh))
            made, rests = local.outputs, lying[name].layouts[o]
            ns += sum(
                times * self.passages.ns(a, b, name in trained) for a, b in zip(made, rests, strict=True)
            )
            for _, read, layout in demands(local):
                if read.startswith(STATE_NAME) and read in trained:
                    self.uses[read][d][o] = layout
                    continue
                for tensor, count, loop in self._sources(read, times):
                    source = lying[tensor].decision
                    if source < 0 or source == d:
                        own = lying[tensor].layouts[o if source == d else 0][0]
                        ns += count * self.passages.ns(own, layout, read in trained)
                    else:
                        self._read(_Edge(tensor, source, d, count, loop), o, layout)
            for kept, layout in kept_tensors(local, trained):
                if kept in trained:
                    self.keepers[kept, layout, self._times(kept, times)][d].add(o)
        return Term(ns=ns * self.work.micros)

    def _sources(self, read: str, times: int) -> list[tuple[str, int, bool]]:
        """Returns the tensors that an operation reads under one name, how often each, and whether in a later block."""
        graph = self.decisions.graph
        later = graph.entries.get(read)
        if later is None or times == 1 or read in self.alike_between:
            return [(read, self._times(read, times), False)]
        return [(read, 1, False), (later, times - 1, True)]

    def _read(self, edge: _Edge, option: int, layout: GroupLayout) -> None:
        """Notes that an option reads a tensor in a layout; a decision may read one tensor in several."""
        for place in itertools.count():
            known = self.edges.setdefault((edge.tensor, edge.reader, edge.loop, place), edge)
            if known.reads.setdefault(option, layout) == layout:
                return
            edge = replace(edge, reads={})

    def _times(self, tensor: str, times: int) -> int:
        """Returns how often a tensor is read: once, where all blocks read the same one."""
        graph = self.decisions.graph
        inside = tensor in graph.entries or graph.count(tensor) > 1
        return times if inside else 1

    def flows(self) -> None:
        """Adds leaving, arriving and hubs."""
        by_tensor: dict[tuple[str, int, bool], list[_Edge]] = defaultdict(list)
        for edge in self.edges.values():
            by_tensor[edge.tensor, edge.times, edge.loop].append(edge)
        for (tensor, times, _), edges in by_tensor.items():
            makes = _by_layout(
                (x, made[0])
                for x, made in zip(
                    self.chosen[edges[0].source], self.decisions.lying[tensor].layouts, strict=True
                )
            )
            shared: dict[tuple[GroupLayout, GroupLayout], list[pulp.LpVariable]] = defaultdict(list)
            for edge in edges:
                for pair, flow in self._flow(edge, makes).items():
                    shared[pair].append(flow)
            for (source, target), flows in shared.items():
                ns = self.passages.ns(source, target, tensor in self.decisions.trained)
                if not ns:
                    continue
                paid = flows[0]
                if len(flows) > 1:
                    paid = self._variable("h")
                    self.rows += [({paid: 1.0, flow: -1.0}, pulp.LpConstraintGE, 0.0) for flow in flows]
                self.terms.append((paid, Term(ns=ns * times * self.work.micros)))

    def _flow(
        self, edge: _Edge, makes: Mapping[GroupLayout, list[pulp.LpVariable]]
    ) -> dict[tuple[GroupLayout, GroupLayout], pulp.LpVariable]:
        row = self.chosen[edge.reader]
        reads = _by_layout((row[o], layout) for o, layout in edge.reads.items())
        some = len(edge.reads) < len(row)  # only some options read it: what is left over goes nowhere
        strict = self.decisions.found[edge.reader].strict
        flows = {
            (source, target): self._variable("f")
            for source in makes
            for target in reads
            if source == target or not (strict or target.partial - source.partial)
        }
        for source, made in makes.items():
            terms = {flow: 1.0 for (a, _), flow in flows.items() if a == source}
            sense = pulp.LpConstraintLE if some else pulp.LpConstraintEQ
            self.rows.append((terms | dict.fromkeys(made, -1.0), sense, 0.0))
        for target, read in reads.items():
            terms = {flow: 1.0 for (_, b), flow in flows.items() if b == target}
            self.rows.append((terms | dict.fromkeys(read, -1.0), pulp.LpConstraintEQ, 0.0))
        return flows

    def kept_once(self) -> None:
        size = self.work.element_bytes
        for (_, layout, times), keepers in self.keepers.items():
            term = Term(bytes=elements(layout, self.on.mesh) * size * times)
            if len(keepers) == 1:
                ((d, options),) = keepers.items()
                self.terms += [(self.chosen[d][o], term) for o in sorted(options)]
                continue
            kept = self._variable("k")
            self.terms.append((kept, term))
            for d, options in keepers.items():
                terms = {kept: 1.0} | {self.chosen[d][o]: -1.0 for o in sorted(options)}
                self.rows.append((terms, pulp.LpConstraintGE, 0.0))

    def tied(self) -> None:
        """Adds the prices of parameters, and the rows of those that several decisions read."""
        for users in (self.uses[name] for name in sorted(self.uses)):
            if len(users) > 1:
                self._tied(users)
                continue
            ((d, reads),) = users.items()
            times = self.decisions.graph.count(self.decisions.found[d].name)
            for o, layout in reads.items():
                ways = held_prices(layout, self.work, self.on, self.storing)
                scaled = tuple(HeldPrice(x.ns * times, x.bytes * times, x.stored) for x in ways)
                self.terms.append((self.chosen[d][o], Term(held=(scaled,))))

    def _tied(self, users: Mapping[int, Mapping[int, GroupLayout]]) -> None:
        """Adds the price of one parameter that is cut alike for all that read it."""
        layouts = [layout for reads in users.values() for layout in reads.values()]
        cuts = {layout.cuts: layout for layout in layouts}
        held = {key: self._variable("y") for key in cuts}
        for key, layout in cuts.items():
            self.terms.append(
                (held[key], Term(held=(held_prices(layout, self.work, self.on, self.storing),)))
            )
        for d, reads in users.items():
            row = self.chosen[d]
            for key, y in held.items():
                own = {row[o]: 1.0 for o, layout in reads.items() if layout.cuts == key}
                self.rows.append(({y: -1.0} | own, pulp.LpConstraintEQ, 0.0))

    def between_blocks(self) -> None:
        lying = self.decisions.lying
        for first in sorted(self.alike_between):
            a, b = lying[first], lying[self.decisions.graph.entries[first]]
            sides = [
                _by_layout((x, made[0]) for x, made in zip(self.chosen[y.decision], y.layouts, strict=True))
                for y in (a, b)
            ]
            for layout in dict.fromkeys((*sides[0], *sides[1])):
                terms: dict[pulp.LpVariable, float] = defaultdict(float)
                for side, sign in zip(sides, (1.0, -1.0), strict=True):
                    for x in side.get(layout, []):
                        terms[x] += sign
                self.rows.append((terms, pulp.LpConstraintEQ, 0.0))

    def _variable(self, kind: str) -> pulp.LpVariable:
        self.count += 1
        return pulp.LpVariable(f"{kind}_{self.count}", 0.0, 1.0)


def _by_layout(
    pairs: Iterator[tuple[pulp.LpVariable, GroupLayout]],
) -> dict[GroupLayout, list[pulp.LpVariable]]:
    found: dict[GroupLayout, list[pulp.LpVariable]] = defaultdict(list)
    for variable, layout in pairs:
        found[layout].append(variable)
    return found


def _moved_entries(decisions: Decisions) -> frozenset[str]:
    """Returns what a first block reads and only places elsewhere at once, so that later blocks must find it alike."""
    found = set()
    for decision in decisions.found:
        for locals_ in decision.options[:1]:
            for local in locals_.values():
                if local.operation.name != decision.name:
                    found |= set(local.operation.reads())
    return frozenset(found & set(decisions.graph.entries))
