"""Decides how the group holds each parameter, once it is known how all operations read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from planner.layout.local_graph import LocalOperation
from planner.layout.lying import GroupLayout, Mesh
from planner.spatial import NoRule


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
