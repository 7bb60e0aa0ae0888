"""Carries wishes for factors through a captured model: how every tensor lies, and what must be converted.

Along each axis of the group an operation takes the factor that is wished for. Without a wish it takes the one that
sends least, given how its tensors lie; a factor that cuts a weight is taken only where it is wished for. What is
neither wished for nor cut stays alike on all ranks. So the same wishes give the same graph on every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Final

from planner.layout.blocks import Behind, fitted, of_sequence
from planner.layout.conversions import cost
from planner.layout.factor import Along, Factor, laid, numbered
from planner.layout.families import FAMILIES, RING
from planner.layout.local_graph import (
    ADDENDS,
    ALIKE,
    Laid,
    LaidOnce,
    LocalGraph,
    LocalOperation,
    held_states,
    rested,
)
from planner.layout.lying import DimCut, GroupLayout, Mesh, everywhere, parted, without_owed
from planner.layout.moves import MOVES, TURNING, as_read_turned, moved, source_of
from planner.layout.refusals import refuse_parts, refuse_ring, too_few
from planner.spatial import GETITEM, INPUT, STATE, TARGET, Call, Operation, Ref, call_of, whole

# operation, axis -> the factors that it is wished to take, first of all the one that says most, each with its wish
Wishes = Callable[[Operation, int], Sequence[tuple[str, object]]]
ROWS: Final = numbered(0)
WHOLE: Final = "alike"  # the wish that ranks compute an operation alike
STORED: Final = "stored"  # the wish that parameters rest in parts, and are gathered for use
PLACES: Final = {"samples": 0, "sequence": 1}  # names of dimensions of what an operation makes
LINEAR: Final = {"aten.add": 2, "aten.sub": 2, "aten.neg": 1}  # tensors: of addends they make an addend
SHAPES_ONLY: Final = ("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty")


def propagate(
    operations: Sequence[Operation],
    mesh: Mesh,
    wishes: Wishes,
    trained: Collection[str],
    resolved: Collection[str] = (),
    given: Mapping[str, GroupLayout] | None = None,
    laid_once: Laid | None = None,
    stands_for: Mapping[str, str] | None = None,
) -> LocalGraph:
    """Returns a captured model as the ranks of a group compute it together.

    Args: `operations` begin with what the model is given, as a captured model lists them; `mesh` has the parts along
        each axis of the group; `trained` has the names of the given tensors that have a gradient; `resolved` names
        tensors that must not stay addends, which are those that leave a stage, and the loss; `given` has the layouts
        of given tensors that do not come alike; `laid_once` is kept by a caller that asks often with other wishes, and
        with all else the same; `stands_for` has operations of repeated blocks -> those of the block that stands for all.
    Raises: NoRule, which names the operation and its module, where something cannot be done exactly.
    """
    more = given or {}, {} if laid_once is None else laid_once, stands_for or {}
    return _Propagation(operations, mesh, wishes, trained, resolved, *more).run()


class _Propagation:
    """The walk through a model; `layouts` has every tensor met so far."""

    def __init__(
        self,
        operations: Sequence[Operation],
        mesh: Mesh,
        wishes: Wishes,
        trained: Collection[str],
        resolved: Collection[str],
        given: Mapping[str, GroupLayout],
        laid_once: Laid,
        stands_for: Mapping[str, str],
    ) -> None:
        self.operations, self.mesh, self.wishes = operations, mesh, wishes
        self.laid_once, self.stands_for = laid_once, stands_for
        self.trained, self.resolved, self.given = set(trained), resolved, given
        self.layouts: dict[str, tuple[GroupLayout, ...]] = {}
        self.made: dict[str, tuple[GroupLayout, ...]] = {}
        self.states = {x.name for x in operations if x.operation == STATE}
        self.taken: set[object] = set()
        self.resting: dict[tuple[str, int], set[object]] = defaultdict(set)  # parameter, axis -> wishes
        self.axes = range(len(mesh))

    @cached_property
    def behind(self) -> Behind:
        return Behind(self.operations)

    def run(self) -> LocalGraph:
        placed = []
        for operation in self.operations:
            if operation.operation in (INPUT, TARGET, STATE):
                alike = everywhere(operation.outputs[0])
                self.layouts[operation.name] = (self.given.get(operation.name, alike),)
                continue
            done = self._remembered(operation)
            placed.append(done)
            self._keep(operation, done.outputs)
        placed = list(as_read_turned(placed, self.states & self.trained))
        self.layouts |= {x.operation.name: x.outputs for x in placed if x.operation.operation in TURNING}
        held = held_states(placed, self.states & self.trained, self.layouts, self.mesh)
        for (name, axis), wishes in sorted(self.resting.items(), key=lambda x: x[0]):
            if (resting := rested(held[name], axis, self.mesh)) is not None:
                held[name] = resting
                self.taken |= wishes
        layouts = self.layouts | {name: (layout,) for name, layout in held.items()}
        states = {name: layouts[name][0] for name in self.states}
        sets = frozenset(self.trained), frozenset(self.taken)
        return LocalGraph(self.mesh, tuple(placed), layouts, self.made, states, *sets)

    def _keep(self, operation: Operation, outputs: tuple[GroupLayout, ...]) -> None:
        name = operation.name
        if self.trained.intersection(operation.reads()):
            self.trained.add(name)
        else:
            outputs = tuple(map(without_owed, outputs))
        self.layouts[name] = outputs
        if name in self.resolved and any(layout.partial for layout in outputs):
            self.made[name] = outputs
            self.layouts[name] = tuple(GroupLayout(x.shape, x.cuts, frozenset(), x.owed) for x in outputs)

    def _remembered(self, operation: Operation) -> LocalOperation:
        """Returns an operation as it is laid, which its wishes and the layouts of what it reads decide."""
        reads, layouts, trained = operation.reads(), self.layouts, self.trained
        read = tuple([layouts[name] for name in reads])
        wished = tuple([tuple(self.wishes(operation, axis)) for axis in self.axes])
        name = self.stands_for.get(operation.name, operation.name)
        key = (name, read, wished, tuple([x in trained for x in reads]))
        found = self.laid_once.get(key)
        if found is None:
            before = self.taken, self.resting
            self.taken, self.resting = set(), defaultdict(set)
            local = self._place(operation)
            found = self.laid_once[key] = LaidOnce(local, frozenset(self.taken), self.resting, {})
            self.taken, self.resting = before
        self.taken |= found.taken
        local = found.local
        if found.resting:
            own = dict(zip(local.operation.reads(), reads, strict=True))
            for (parameter, axis), wishes in found.resting.items():
                self.resting[own[parameter], axis] |= set(wishes)
        if local.operation is operation:
            return local
        other = found.others.get(operation.name)
        if other is None or other.operation is not operation:
            other = found.others[operation.name] = replace(local, operation=operation)
        return other

    def _place(self, operation: Operation) -> LocalOperation:
        kind = operation.operation
        names = dict(operation.named_reads())
        inputs = {argument: self.layouts[name][0] for argument, name in names.items()}
        alike = (ALIKE,) * len(self.mesh)
        if kind == GETITEM:
            source, index = operation.arguments["self"], operation.arguments["index"]
            assert isinstance(source, Ref) and isinstance(index, int)
            found = self.layouts[source.name]
            return LocalOperation(operation, alike, {"self": found[0]}, (found[index],))
        call = call_of(operation, {x: whole(self.layouts[x][0].shape) for x in operation.reads()})
        if kind in SHAPES_ONLY:
            return LocalOperation(operation, alike, inputs, tuple(map(everywhere, operation.outputs)))
        if kind in MOVES and source_of(call) in inputs:
            self._rest(operation, names)
            return moved(operation, call, inputs, self.mesh)
        factors = FAMILIES[kind](call) if kind in FAMILIES else ()
        self._rest(operation, names)
        chosen = [self._choose(operation, call, factors, names, axis) for axis in range(len(self.mesh))]
        if any(map(self._is_split, names.values())):
            refuse_parts(operation, call)
        if any(self._first_wish(operation, axis) == RING for axis in range(len(self.mesh))):
            refuse_ring(operation, call, chosen, {x for x, name in names.items() if name in self.trained})
        return self._laid(operation, call, factors, names, chosen)

    def _rest(self, operation: Operation, names: Mapping[str, str]) -> None:
        """Notes which parameters an operation wishes to rest in parts."""
        for axis in range(len(self.mesh)):
            for key in (key for wish, key in self.wishes(operation, axis) if wish == STORED):
                for name in self.states & self.trained & set(names.values()):
                    self.resting[name, axis].add(key)

    def _first_wish(self, operation: Operation, axis: int) -> str:
        return next((wish for wish, _ in self.wishes(operation, axis)), "")

    def _is_split(self, name: str) -> bool:
        layout = self.layouts[name][0]
        return bool(any(layout.cuts) or layout.partial)

    def _choose(
        self,
        operation: Operation,
        call: Call,
        factors: Sequence[Factor],
        names: Mapping[str, str],
        axis: int,
    ) -> str:
        """Returns the factor that an operation takes along one axis."""
        cut = any(self.layouts[name][0].kind(axis) == "S" for name in names.values())
        for wish, key in self.wishes(operation, axis):
            if wish == WHOLE:
                self.taken.add(key)
                return ALIKE
            for factor in factors:
                by_place = _placed(wish, operation)
                if by_place in (factor.name, *factor.also):
                    self.taken.add(key)
                    if not cut or by_place == wish:  # what comes cut stays so: a place is for what does not
                        return factor.name
        kinds = {self.layouts[name][0].kind(axis) for name in names.values()}
        if kinds == {"P"} and len(names) == LINEAR.get(operation.operation):
            return ADDENDS
        if not kinds & {"S", "P"}:
            return ALIKE
        options = [factor for factor in factors if not (factor.cuts_weight or factor.asked_for)]
        prices = {ALIKE: self._price(None, call, names, axis)}
        for factor in options:
            if parted(factor.size, self.mesh[axis]):
                prices.setdefault(factor.name, self._price(factor, call, names, axis))
        return min(prices, key=prices.__getitem__)

    def _price(self, factor: Factor | None, call: Call, names: Mapping[str, str], axis: int) -> float:
        """Returns the elements that bringing the tensors of an operation to a factor sends, about."""
        total = 0.0
        for argument, name in names.items():
            if name in self.states:
                continue
            layout = self.layouts[name][0]
            trained = name in self.trained
            side = "I" if factor is None else factor.side(argument)
            dim = side.dim if isinstance(side, Along) else None
            kind = "S" if isinstance(side, Along) else side
            if kind == "R" and not trained:
                kind = "I"
            source = (layout.kind(axis), layout.dim(axis))
            total += cost(source, (kind, dim), trained) * prod(layout.shape)
        if factor is not None and "P" in factor.outputs:
            total += 2.0 * prod(call.outputs[0])
        return total

    def _laid(
        self,
        operation: Operation,
        call: Call,
        factors: Sequence[Factor],
        names: Mapping[str, str],
        chosen: Sequence[str],
    ) -> LocalOperation:
        by_name = {factor.name: factor for factor in factors}
        taken = {name: tuple(a for a, x in enumerate(chosen) if x == name) for name in dict.fromkeys(chosen)}
        cuts = {
            name: self._cut(operation, by_name[name], names, axes)
            for name, axes in taken.items()
            if name in by_name
        }
        shapes = {argument: self.layouts[name][0].shape for argument, name in names.items()}
        trained = {argument for argument, name in names.items() if name in self.trained}
        return laid(operation, factors, chosen, cuts, shapes, trained)

    def _cut(
        self, operation: Operation, factor: Factor, names: Mapping[str, str], axes: tuple[int, ...]
    ) -> DimCut:
        """Returns how a factor is cut: as a tensor that comes cut so already, else in even parts."""
        for argument, name in names.items():
            side = factor.side(argument)
            cut = self.layouts[name][0].cuts[side.dim] if isinstance(side, Along) else None
            if cut is None or not isinstance(side, Along) or set(cut.axes) != set(axes):
                continue
            if not any(point % side.unit for point in cut.points):
                return DimCut(cut.axes, tuple(point // side.unit for point in cut.points), cut.blocks)
        parts = prod(self.mesh[axis] for axis in axes)
        points = parted(factor.size, parts)
        if points is None:
            raise too_few(operation, factor, parts)
        if factor.name == "out":
            side = factor.outputs[0]
            assert isinstance(side, Along)
            return fitted(self.behind, operation, side.dim, axes, parts)
        own = None
        if factor.name == ROWS and len(operation.outputs[0]) == 2 and self._by_sequence(operation, axes):
            own = of_sequence(self.behind, operation, axes, parts)
        return own or DimCut(axes, points)

    def _by_sequence(self, operation: Operation, axes: tuple[int, ...]) -> bool:
        return all(self._first_wish(operation, axis) == "sequence" for axis in axes)


def _placed(wish: str, operation: Operation) -> str:
    """Returns the name of the factor that a wish means for an operation: a sequence is the second of three dimensions."""
    if wish not in PLACES or (wish == "sequence" and len(operation.outputs[0]) < 3):
        return wish
    return numbered(PLACES[wish])
