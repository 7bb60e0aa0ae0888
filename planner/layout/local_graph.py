"""A captured model as one rank of a group computes it: how every tensor lies, and what is converted where.

How the group holds each parameter is decided once it is known how all operations read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from planner.layout.conversions import Passage, path
from planner.layout.lying import DimCut, GroupLayout, Mesh, parted
from planner.spatial import GETITEM, NoRule, Operation

ALIKE, ADDENDS = (
    "",
    "addends",
)  # no factor: computed alike by all ranks; on addends, of which it makes an addend


STATE_PREFIX: Final = (
    "state:"  # before the name of a parameter or buffer, among the tensors of a `LocalGraph`
)
# Of operations that compute: those whose backward pass reads neither what they read nor what they make.
FORGETFUL: Final = frozenset(
    f"aten.{x}" for x in ["add", "sub", "neg", "mean", "sum", "cat", "stack", "to", "type_as"]
)


@dataclass(frozen=True, slots=True)
class LocalOperation:
    """An operation with the factor that it takes along each axis, and how what it reads and makes then lies."""

    operation: Operation
    factors: tuple[str, ...]  # one an axis; ALIKE and ADDENDS are no factors
    inputs: Mapping[str, GroupLayout]  # as it reads them, by argument
    outputs: tuple[GroupLayout, ...]  # as it makes them
    kernels: Mapping[int, str] = field(
        default_factory=dict
    )  # axis -> what computes it, where torch's own cannot

    def reads(self) -> tuple[tuple[str, str], ...]:
        """Returns each tensor argument with the name of the tensor; entries of a list are numbered."""
        return self.operation.named_reads()


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tensor that is brought to another layout once, for all that read it so."""

    tensor: str
    layer: str  # of the first operation that reads it so
    steps: tuple[Passage, ...]
    trained: bool  # whether it has a gradient
    again: int = (
        0  # of a parameter that rests in parts: how often it is gathered once more in a backward pass
    )

    @property
    def target(self) -> GroupLayout:
        """Returns the layout in the end."""
        return self.steps[-1].target

    @property
    def gathers_parameter(self) -> bool:
        """Returns whether a parameter that rests in parts is gathered for use."""
        return gathers_parameter(self.tensor, self.steps)

    def sent(self, mesh: Mesh) -> tuple[float, float]:
        """Returns the elements that a rank sends, forward and backward."""
        ways = [step.sent(mesh, trained=self.trained) for step in self.steps]
        forward, backward = sum(way[0] for way in ways), sum(way[1] for way in ways)
        return forward, backward + self.again * forward


def gathers_parameter(tensor: str, steps: Sequence[Passage]) -> bool:
    """Returns whether a conversion gathers a parameter that rests in parts."""
    return tensor.startswith(STATE_PREFIX) and any(step.forward == "gather" for step in steps)


def keeps(operation: Operation, argument: str) -> bool:
    """Returns whether the backward pass of an operation reads a parameter that the operation reads."""
    kind = operation.operation
    return kind not in FORGETFUL and kind != "aten.embedding" and argument != "bias"


@dataclass(frozen=True, slots=True)
class LocalGraph:
    """All operations with their layouts; the same on every rank."""

    mesh: Mesh
    placed: tuple[LocalOperation, ...]
    layouts: Mapping[str, tuple[GroupLayout, ...]]  # of every tensor, given or made
    made: Mapping[str, tuple[GroupLayout, ...]]  # of those resolved at once: as they are made
    states: Mapping[str, GroupLayout]  # as parameters and other tensors of the model are held
    trained: frozenset[str]  # tensors that have a gradient
    taken: frozenset[object] = frozenset()  # wishes that some operation could grant

    @property
    def agreed(self) -> str:
        """Returns all that ranks must have derived alike, as a text that is the same in every process."""
        states = [(name, self.states[name]) for name in sorted(self.states)]
        return repr((self.mesh, self.placed, self.layouts, self.made, states, sorted(self.trained)))

    def conversions(self, stage_of: Mapping[str, int] | None = None) -> list[Conversion]:
        """Returns every conversion of the graph once, in the order in which tensors are first read so.

        Args: `stage_of` has the stage of each layer, where there are several; each stage converts for itself.
        """
        found: dict[tuple[str, GroupLayout, int], Conversion] = {}
        stages = stage_of or {}
        layers = {done.operation.name: done.operation.layer for done in self.placed}
        for name, before in self.made.items():
            for own, after in zip(before, self.layouts[name], strict=True):
                self._note(found, name, layers[name], own, after, -1)
        for done in self.placed:
            if done.operation.operation != GETITEM:
                for argument, name in done.reads():
                    want, layer = done.inputs[argument], done.operation.layer
                    key = self._note(found, name, layer, self.layouts[name][0], want, stages.get(layer, 0))
                    if key in found and found[key].gathers_parameter and keeps(done.operation, argument):
                        found[key] = replace(found[key], again=found[key].again + 1)
        return list(found.values())

    def _note(
        self,
        found: dict[tuple[str, GroupLayout, int], Conversion],
        name: str,
        layer: str,
        source: GroupLayout,
        target: GroupLayout,
        stage: int,
    ) -> tuple[str, GroupLayout, int]:
        key = name, target, stage
        if source != target and key not in found:
            trained = name in self.trained
            steps = path(source, target, self.mesh, trained=trained)
            found[key] = Conversion(name, layer, steps, trained)
        return key


class LaidOnce(NamedTuple):
    """An operation as it was laid once, with what that took of the wishes."""

    local: LocalOperation
    taken: frozenset[object]
    resting: Mapping[tuple[str, int], Collection[object]]
    others: dict[str, LocalOperation]  # of other blocks, by their names


Laid = dict[object, LaidOnce]  # operation, what it reads as that lies, and its wishes -> how it is laid


def held_states(
    placed: Sequence[LocalOperation],
    parameters: Collection[str],
    layouts: Mapping[str, tuple[GroupLayout, ...]],
    mesh: Mesh,
) -> dict[str, GroupLayout]:
    """Returns how each parameter is held: as it is read, where all read it alike.

    Args: `layouts` has the global shapes of the parameters.
    Raises: NoRule where two operations need a parameter in different parts, or one in parts and one whole.
    """
    uses: dict[str, dict[GroupLayout, LocalOperation]] = defaultdict(dict)
    for done in placed:
        for argument, name in done.reads():
            if name in parameters:
                uses[name].setdefault(done.inputs[argument], done)
    return {name: _held(name, found, mesh) for name, found in uses.items()}


def _held(name: str, uses: Mapping[GroupLayout, LocalOperation], mesh: Mesh) -> GroupLayout:
    (first, one), *others = uses.items()
    owed = set()
    for axis in range(len(mesh)):
        kinds = {layout.kind(axis) for layout in uses}
        if "R" in kinds and "S" not in kinds:
            owed.add(axis)
    for layout, other in others:
        if layout.cuts != first.cuts:
            raise NoRule(
                f"parameter '{name.removeprefix('state:')}' is used under two cuts: {first.text()} by layer "
                f"'{one.operation.layer}' and {layout.text()} by layer '{other.operation.layer}'",
                where=other.operation.place,
                allowed="the same cut in both layers, or none in either",
                layer=other.operation.layer,
            )
    return GroupLayout(first.shape, first.cuts, frozenset(), frozenset(owed))


def rested(layout: GroupLayout, axis: int, mesh: Mesh) -> GroupLayout | None:
    """Returns how a parameter rests in parts along one axis more, from which it is gathered for use.

    The first dimension is cut that nothing else cuts and that parts evenly, else one that has a row for each rank, else
    the parts of one that is cut.
    Args: `layout` is how it would be held.
    Returns: None where it is in parts along the axis already, has too few rows, or is a vector, which saves little and
        costs a message.
    """
    parts = mesh[axis]
    if parts == 1 or layout.kind(axis) == "S" or len(layout.shape) < 2:
        return None
    free = [dim for dim, cut in enumerate(layout.cuts) if cut is None and layout.shape[dim] >= parts]
    even = [dim for dim in free if layout.shape[dim] % parts == 0]
    whole = GroupLayout(layout.shape, layout.cuts, layout.partial, layout.owed - {axis})
    for dim in (*even[:1], *free[:1]):
        points = parted(layout.shape[dim], parts)
        assert points is not None
        return whole.with_dim(dim, DimCut((axis,), points))
    for dim, cut in enumerate(layout.cuts):
        inner = None if cut is None else cut.inner(axis, mesh)
        if inner is not None:
            return whole.with_dim(dim, inner)
    return None
