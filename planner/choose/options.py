"""The ways in which a group can do each operation of a model: its decisions, and the options of each.

An operation that only places elements follows what it reads, and so does one that can take every layout that it may
find. All others are decisions. Every option is a `LocalOperation` for each axis and operation of a decision, as
`planner.layout.propagate` lays them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

from planner.choose.folded import GIVEN, FoldedGraph
from planner.layout import (
    ADDENDS,
    ALIKE,
    FAMILIES,
    LINEAR,
    MOVES,
    SHAPES_ONLY,
    Along,
    Behind,
    DimCut,
    Factor,
    GroupLayout,
    Laid,
    LocalOperation,
    Mesh,
    everywhere,
    fitting,
    laid,
    moved,
    parted,
    refuse_parts,
    source_of,
)
from planner.spatial import GETITEM, Call, NoRule, Operation, Ref, call_of, whole

Locals = Mapping[str, LocalOperation]


@dataclass(kw_only=True)
class Decision:
    """Operations that are decided together: the first, and those that follow it."""

    name: str  # of the first operation
    times: int  # blocks that it stands for
    options: list[dict[str, LocalOperation]]
    strict: bool = False  # what it reads must lie as its option says; nothing is converted for it


class Lying(NamedTuple):
    """How a tensor may lie: the decision that says so (-1 for none), and its results for each option of that."""

    decision: int
    layouts: tuple[tuple[GroupLayout, ...], ...]


@dataclass(kw_only=True)
class Decisions:
    """All decisions about a model on one mesh."""

    mesh: Mesh
    graph: FoldedGraph
    trained: frozenset[str]  # all tensors with a gradient
    found: list[Decision] = field(default_factory=list)
    lying: dict[str, Lying] = field(default_factory=dict)
    laid_folded: Laid = field(default_factory=dict)  # operations of the folded model, as any lines have them
    laid_whole: Laid = field(default_factory=dict)  # and of the whole one

    def fixed(self, name: str) -> GroupLayout | None:
        """Returns the layout of a tensor about which nothing is decided; None for all others."""
        lying = self.lying[name]
        return lying.layouts[0][0] if lying.decision < 0 else None


STATE_NAME: Final = "state:"


def decisions_of(
    graph: FoldedGraph,
    mesh: Mesh,
    trained: frozenset[str],
    resolved: frozenset[str],
    *,
    joined: bool = True,
) -> Decisions:
    """Returns the decisions about a model.

    Args: `trained` has the names of all tensors with a gradient, and `resolved` those that must not stay addends;
        `joined` lets operations that can take all that they read as it lies follow it, which leaves fewer decisions.
    """
    found = Decisions(mesh=mesh, graph=graph, trained=trained)
    walk = _Walk(found, resolved, joined, Behind(graph.operations))
    for operation in graph.operations:
        walk.take(operation)
    return found


@dataclass
class _Walk:
    found: Decisions
    resolved: frozenset[str]
    joined: bool
    behind: Behind

    def take(self, operation: Operation) -> None:
        lying, name = self.found.lying, operation.name
        if operation.operation in GIVEN or operation.operation in SHAPES_ONLY:
            lying[name] = Lying(-1, (tuple(map(everywhere, operation.outputs)),))
            return
        if operation.operation == GETITEM or _moves(operation):
            self._follow(operation)
            return
        reads = list(dict(operation.named_reads()).values())
        owners = {lying[x].decision for x in reads} - {-1}
        if not owners and not self.found.trained.intersection(reads):
            lying[name] = Lying(-1, (tuple(map(everywhere, operation.outputs)),))
            return
        options, strict = self._options(operation)
        joins = self.joined and len(owners) == 1 and not strict
        if joins and self._joins(operation, options, *owners):
            return
        self._decide(operation, options, strict)

    def _decide(self, operation: Operation, options: list[LocalOperation], strict: bool) -> None:
        found = self.found
        decision = Decision(
            name=operation.name,
            times=found.graph.count(operation.name),
            options=[{operation.name: x} for x in options],
            strict=strict,
        )
        found.found.append(decision)
        found.lying[operation.name] = Lying(
            len(found.found) - 1, tuple(self._resting(operation, x) for x in options)
        )

    def _resting(self, operation: Operation, local: LocalOperation) -> tuple[GroupLayout, ...]:
        """Returns how results lie once they are made; what leaves the model is no addend."""
        if operation.name not in self.resolved:
            return local.outputs
        return tuple(GroupLayout(x.shape, x.cuts, frozenset(), x.owed) for x in local.outputs)

    def _follow(self, operation: Operation) -> None:
        """Adds an operation to the decision about what it reads."""
        found, names = self.found, dict(operation.named_reads())
        source = "self" if operation.operation == GETITEM else source_of(_call(operation, found))
        owner = found.lying[names[source]]
        layouts = []
        for i, made in enumerate(owner.layouts):
            if operation.operation == GETITEM:
                index = operation.arguments["index"]
                assert isinstance(index, int)
                alike = (ALIKE,) * len(found.mesh)
                local = LocalOperation(operation, alike, {"self": made[0]}, (made[index],))
            else:
                inputs = {argument: found.lying[x].layouts[0][0] for argument, x in names.items()}
                local = moved(operation, _call(operation, found), inputs | {source: made[0]}, found.mesh)
            layouts.append(self._resting(operation, local))
            if owner.decision >= 0:
                found.found[owner.decision].options[i][operation.name] = local
        found.lying[operation.name] = Lying(owner.decision, tuple(layouts))

    def _joins(self, operation: Operation, options: Sequence[LocalOperation], owner: int) -> bool:
        """Adds an operation to a decision where it can take each of its layouts as it is."""
        found, names = self.found, dict(operation.named_reads())
        if any(factor.cuts_weight for factor in FAMILIES[operation.operation](_call(operation, found))):
            return False
        decision, chosen = found.found[owner], []
        if decision.times != found.graph.count(operation.name):
            return False
        for i in range(len(decision.options)):
            local = next((x for x in options if self._free(x, names, i)), None)
            if local is None or ADDENDS in local.factors:
                return False
            chosen.append(local)
        for option, local in zip(decision.options, chosen, strict=True):
            option[operation.name] = local
        found.lying[operation.name] = Lying(owner, tuple(self._resting(operation, x) for x in chosen))
        return True

    def _free(self, local: LocalOperation, names: Mapping[str, str], option: int) -> bool:
        """Returns whether an operation reads all as it lies, or brings it there for nothing."""
        for argument, name in names.items():
            lying = self.found.lying[name]
            layout = lying.layouts[option if lying.decision >= 0 else 0][0]
            want = local.inputs[argument]
            if layout != want and (
                lying.decision >= 0 or (name in self.found.trained and not name.startswith(STATE_NAME))
            ):
                return False
        return True

    def _options(self, operation: Operation) -> tuple[list[LocalOperation], bool]:
        """Returns every way to do an operation, and whether nothing is converted for it."""
        found, names = self.found, dict(operation.named_reads())
        call = _call(operation, found)
        shapes = {argument: found.lying[x].layouts[0][0].shape for argument, x in names.items()}
        trained = {argument for argument, x in names.items() if x in found.trained}
        alike = laid(operation, (), (ALIKE,) * len(found.mesh), {}, shapes, trained)
        if _strict(operation, call):
            return [alike], True
        factors = FAMILIES[operation.operation](call)
        adds = len(names) == LINEAR.get(operation.operation) and not any(
            found.lying[x].decision < 0 for x in names.values()
        )
        each = [
            [ALIKE, *self._along(factors, axis), *([ADDENDS] if adds else [])]
            for axis in range(len(found.mesh))
        ]
        options: dict[object, LocalOperation] = {}
        for chosen in itertools.product(*each):
            for cuts in self._cuts(operation, factors, chosen, names):
                local = laid(operation, factors, chosen, cuts, shapes, trained)
                options.setdefault((tuple(local.inputs.items()), local.outputs), local)
        return list(options.values()), False

    def _along(self, factors: Sequence[Factor], axis: int) -> list[str]:
        parts = self.found.mesh[axis]
        return [
            x.name for x in factors if parts > 1 and not x.asked_for and parted(x.size, parts) is not None
        ]

    def _cuts(
        self,
        operation: Operation,
        factors: Sequence[Factor],
        chosen: Sequence[str],
        names: Mapping[str, str],
    ) -> Iterator[dict[str, DimCut]]:
        """Yields every way to cut the factors that are taken."""
        taken = [x for x in factors if x.name in chosen]
        ways = []
        for factor in taken:
            axes = tuple(axis for axis, name in enumerate(chosen) if name == factor.name)
            ways.append(self._ways(operation, factor, axes, names))
        for cuts in itertools.product(*ways):
            yield {factor.name: cut for factor, cut in zip(taken, cuts, strict=True)}

    def _ways(
        self, operation: Operation, factor: Factor, axes: tuple[int, ...], names: Mapping[str, str]
    ) -> list[DimCut]:
        parts = prod(self.found.mesh[axis] for axis in axes)
        points = parted(factor.size, parts)
        if points is None:
            return []
        own: DimCut | None = DimCut(axes, points)
        if factor.name == "out":
            side = factor.outputs[0]
            assert isinstance(side, Along)
            own, _ = fitting(self.behind, operation, side.dim, axes, parts)
        ways = dict.fromkeys([] if own is None else [own])
        for argument, name in names.items():
            side = factor.side(argument)
            if not isinstance(side, Along):
                continue
            for layouts in self.found.lying[name].layouts:
                cut = layouts[0].cuts[side.dim]
                if cut is None or set(cut.axes) != set(axes) or any(x % side.unit for x in cut.points):
                    continue
                ways[DimCut(cut.axes, tuple(x // side.unit for x in cut.points), cut.blocks)] = None
        return list(ways)


def _moves(operation: Operation) -> bool:
    if operation.operation not in MOVES:
        return False
    source = operation.arguments.get("self", operation.arguments.get("input"))
    return isinstance(source, Ref)


def _strict(operation: Operation, call: Call) -> bool:
    """Returns whether an operation is only done alike, since `planner.layout` refuses it on parts."""
    try:
        refuse_parts(operation, call)
    except NoRule:
        return True
    return False


def _call(operation: Operation, found: Decisions) -> Call:
    return call_of(
        operation, {name: whole(found.lying[name].layouts[0][0].shape) for name in operation.reads()}
    )
