"""The units of a stage as its graph runs: gathered one ahead of their use, let go behind it, gathered again in backward.

A stage's graph tells when a unit begins and ends. Between forward and backward autograd keeps where in its unit a
parameter lies, in place of the parameter. So the memory is free, and backward finds the unit as it is gathered then.
Whatever reads a parameter that is not gathered finds NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, fx

from planner.capture import StageModule
from runtime.layout import is_view
from runtime.sharding.flats import FlatUnit, SharedFlat
from runtime.stage import BackwardPart, WeightStore, graph_of, states_of


class Saved(NamedTuple):
    """A view of a unit, as autograd keeps it."""

    stage: StageUnits
    position: int
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class StageUnits:
    """The units of one stage, in the order in which its graph begins to use them."""

    def __init__(self, rank: RankUnits, module: StageModule, flats: Sequence[SharedFlat]) -> None:
        """Edits the graph of a stage: each unit is gathered before its first use and let go after its last one.

        Args: `rank` has the units of all stages of this rank; `flats` are those of the stage.
        """
        self._rank, self._used, self._flats, self._ahead = rank, set[int](), flats, False
        self._half: BackwardPart = "whole"
        spans = _spans(module, [flat for flat in flats if flat.lets_go])
        self._units = [(flat, unit) for flat, unit, _, _ in spans]
        self.gathers = bool(spans)
        at = {node: place for place, node in enumerate(graph_of(module).graph.nodes)}
        self._behind = [  # by position: the units whose uses all come later
            [each[:2] for each in spans if at[each[2]] > at[last]] for _, _, _, last in spans
        ]
        backward = sorted(range(len(spans)), key=lambda position: -at[spans[position][3]])
        self._next = dict(pairwise(backward))  # the unit that backward comes to after each
        self._position = {id(unit): position for position, (_, unit) in enumerate(self._units)}
        run = graph_of(module)
        run.units = self  # type: ignore[assignment]
        for position, (_, _, first, last) in enumerate(spans):
            with run.graph.inserting_before(first):
                run.graph.call_function(enter, (run.graph.create_node("get_attr", "units"), position))
            with run.graph.inserting_after(last):
                end = run.graph.create_node("get_attr", "units")
            with run.graph.inserting_after(end):
                run.graph.call_function(leave, (end, position))
        run.recompile()

    def enter(self, position: int) -> None:
        """Waits for a unit in forward, and starts to gather the next one."""
        flat, unit = self._units[position]
        flat.have(unit)
        if position + 1 < len(self._units):
            after, following = self._units[position + 1]
            after.gather(following)

    def leave(self, position: int) -> None:
        """Lets a unit go in forward."""
        flat, unit = self._units[position]
        flat.let_go(unit)

    def pack(self, tensor: Tensor) -> Tensor | Saved:
        """Returns what autograd keeps of a tensor: where it lies, if that is in a unit."""
        storage = tensor.untyped_storage()._cdata
        for position, (_, unit) in enumerate(self._units):
            if unit.whole is not None and unit.whole.untyped_storage()._cdata == storage:
                if tensor.dtype != unit.whole.dtype:
                    return tensor
                return Saved(self, position, int(tensor.storage_offset()), tensor.size(), tensor.stride())
        return tensor

    def unpack(self, kept: Tensor | Saved) -> Tensor:
        """Returns the tensor that autograd needs in backward."""
        if isinstance(kept, Tensor):
            return kept
        flat, unit = self._units[kept.position]
        flat.gather(unit)
        self._use(kept.position)
        return torch.as_strided(flat.have(unit), kept.size, kept.stride, kept.offset)

    def _use(self, position: int) -> None:
        """Has the unit gathered that backward comes to after this one, behind what is on the wire by then.

        So at most a unit, its gradients, and either the next unit or gradients of the last one are there. An input half
        sums no gradients, behind which a unit is let go otherwise: there it goes when an earlier one is come to.
        """
        if not self._ahead or position in self._used:
            return
        self._used.add(position)
        for flat, unit in self._behind[position] if self._half == "input" else ():
            flat.let_go(unit)
        if position in self._next:
            flat, unit = self._units[self._next[position]]
            flat.gather(unit)

    @contextmanager
    def during(self, part: BackwardPart) -> Iterator[None]:
        """Gathers units in a backward, or a half of one, while this is on; those still gathered are then let go.

        A weight half needs a parameter only where a layer makes its weight of others, so it gathers none ahead. What the
        backward before has left on its way has had a forward's time to arrive.
        """
        for flat in self._flats:
            flat.settle()
        self._used.clear()
        self._rank.running, self._ahead, self._half = self, part != "weight", part
        for flat in self._flats:
            flat.in_half = part == "input"
        try:
            yield
        finally:
            self._rank.running = None
            for flat in self._flats:
                flat.in_half = False
            for flat, unit in self._units:
                flat.let_go(unit)

    def summed(self, unit: FlatUnit) -> None:
        """Lets a unit go whose gradients are all there, before their sum is put on the wire."""
        position = self._position.get(id(unit))
        if position is not None:
            self._units[position][0].let_go(unit)
            self._use(position)


class RankUnits:
    """All units of one rank whose gradients or parameters are shared."""

    def __init__(self, flats: Sequence[SharedFlat]) -> None:
        """Takes the flats of a rank.

        Args: of `flats` those that let their parameters go have them gathered.
        """
        self.flats = list(flats)
        self.running: StageUnits | None = None  # the stage whose backward runs
        for flat in self.flats:
            flat.on_summed = self._summed

    def _summed(self, unit: FlatUnit) -> None:
        if self.running is not None:
            self.running.summed(unit)

    def of(
        self, stage: int, modules: Sequence[StageModule], store: WeightStore | None
    ) -> list[StageUnits | None]:
        """Returns the units of the parts of a stage, after it has edited their graphs; None where it has none.

        Args: `modules` are the parts; `store` has their debts, where weight gradients are owed.
        """
        own = [flat for flat in self.flats if stage in flat.bucket.stages]
        if store is not None:
            store.told += [flat.paid for flat in own]
        debts, others = (sum(each, Counter[str]()) for each in zip(*map(_gradients, modules), strict=True))
        for flat in own:
            flat.uses |= Counter({name: debts[name] + others[name] for name in flat.bucket.names})
            flat.owed |= {name for name in flat.bucket.names if debts[name] and not others[name]}
        return [StageUnits(self, module, own) if own else None for module in modules]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Holds every parameter whole while this is on; all ranks do so at the same time."""
        every = [(flat, unit) for flat in self.flats if flat.lets_go for unit in flat.units]
        for flat, unit in every:
            flat.have(unit)
        try:
            yield
        finally:
            for flat, unit in every:
                flat.let_go(unit)


def enter(units: StageUnits, position: int) -> None:
    """Begins a unit in forward; called from a stage's graph.

    Args: `position` is the unit's among those of the stage.
    """
    units.enter(position)


def leave(units: StageUnits, position: int) -> None:
    """Ends a unit in forward; called from a stage's graph.

    Args: `position` is the unit's among those of the stage.
    """
    units.leave(position)


def _gradients(module: StageModule) -> tuple[Counter[str], Counter[str]]:
    """Returns how many gradients of each parameter come in a backward: from debts, and at most one from autograd."""
    debts, others = Counter[str](), Counter[str]()
    for node, name in states_of(module).items():
        owing = sum(_owes(user) for user in node.users)
        debts[name] += owing
        others[name] += owing < len(node.users)
    return debts, others


def _owes(node: fx.Node) -> bool:
    first = node.args[0] if node.args else None
    return isinstance(first, fx.Node) and first.target == "weight_store"


_Span = tuple[SharedFlat, FlatUnit, fx.Node, fx.Node]


def _spans(module: StageModule, flats: Sequence[SharedFlat]) -> list[_Span]:
    """Returns the units of a stage with the first and the last node that uses each, in the order of the first."""
    order = {node: position for position, node in enumerate(graph_of(module).graph.nodes)}
    run = graph_of(module)
    readers = {name: _readers(node, run) for node, name in states_of(module).items()}
    found: list[_Span] = []
    for flat in flats:
        for unit in flat.units:
            nodes = sorted((n for name in unit.names for n in readers.get(name, ())), key=order.__getitem__)
            if nodes:
                found.append((flat, unit, nodes[0], nodes[-1]))
    return sorted(found, key=lambda span: order[span[2]])


def _readers(node: fx.Node, run: fx.GraphModule) -> list[fx.Node]:
    """Returns the nodes of a graph that read a parameter, also through views of it."""
    found = []
    for user in node.users:
        if user.op == "output":
            continue
        found.append(user)
        if _is_view(user) or is_view(run, user):
            found += _readers(user, run)
    return found


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        row.alias_info is not None and not row.alias_info.is_write for row in schema.returns
    )
