"""Says which tensors the groups of a plan have in parts, and what is not allowed of it.

A section `cut` stands in the stages of a plan, or in a text or a file of its own where it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from planner import files
from planner.cluster import Corrections
from planner.errors import BadInput, Violation
from planner.files import Count, Part
from planner.layout import LocalGraph, Wish, cut_of, refused_cut
from planner.model import ModelGraph
from planner.plan.certificate import StageTimes
from planner.plan.plan import CutLine, Plan

ANY_CUT: Final = "any"  # in place of a cut: layouts are looked for


def is_cut(plan: Plan) -> bool:
    """Returns whether some stage of a plan cuts tensors over its group."""
    return any(stage.cut for stage in plan.stages)


def mesh_of(plan: Plan) -> tuple[int, ...]:
    """Returns the ranks along each axis of a plan's group.

    Args: `plan` has the same axes in all stages that cut tensors.
    """
    return next((stage.mesh for stage in plan.stages if stage.cut and stage.mesh), (plan.axes.spatial,))


def uncorrected_conversions(
    times: tuple[StageTimes, ...], fitted: Corrections | None, mesh: tuple[int, ...]
) -> tuple[StageTimes, ...]:
    """Returns times with conversions as they are without corrections, where these come from runs of other groups.

    How long ranks wait for each other differs from group to group, so the two ways tell how far times may be off.

    Args: `mesh` is that of the group; times are returned as they are where a run had it, or nothing is corrected.
    """
    if fitted is None or fitted.conversion is None or mesh in (fitted.groups or ()):
        return times
    return tuple(_with_conversions(each, 1 / fitted.conversion.factor) for each in times)


def _with_conversions(times: StageTimes, factor: float) -> StageTimes:
    ahead, back = times.forward_conversions_ns, times.backward_conversions_ns
    forward, backward = round(ahead * factor), round(back * factor)
    return times.model_copy(
        update={
            "forward_ns": times.forward_ns - ahead + forward,
            "backward_ns": times.backward_ns - back + backward,
            "input_grad_ns": max(times.input_grad_ns - back, 0) + backward,
            "recompute_ns": max(times.recompute_ns - ahead, 0) + forward if times.recompute_ns else 0,
            "forward_conversions_ns": forward,
            "backward_conversions_ns": backward,
        }
    )


def wishes_of(plan: Plan) -> tuple[Wish, ...]:
    """Returns the cuts of all stages, each line once with the stages that have it.

    Args: a line that every stage has is for the whole model, also for modules that lie in several stages.
    """
    found: dict[Wish, set[int]] = {}
    for index, stage in enumerate(plan.stages):
        for wish in wishes_in(stage.cut):
            found.setdefault(wish, set()).add(index)
    every = len(plan.stages)
    return tuple(
        wish._replace(stages=() if len(stages) == every else tuple(sorted(stages)))
        for wish, stages in found.items()
    )


def graph_on_group(plan: Plan, graph: ModelGraph, micro: int = 0) -> LocalGraph:
    """Returns the model of a plan as the ranks of its group compute it.

    Args: `graph` is the model, in any order; the plan must be right for it; `micro` is the plan's where it is 0.
    """
    stages = [stage.layers for stage in plan.stages]
    return cut_of(graph, micro or plan.batch.micro, mesh_of(plan), wishes_of(plan), stages)


def refused_cuts(plan: Plan, graph: ModelGraph, whole: str = "") -> Iterator[Violation]:
    """Yields what cannot be had of the cuts that a plan asks for.

    Args: `graph` is the model; `whole` names an optimizer that needs whole parameters, "" is any other.
    """
    if not is_cut(plan):
        return
    found = [*_not_with_cuts(plan), *_meshes(plan)]
    if whole:
        found.append(
            f"{whole.lower()} looks at whole parameters, and ranks have parts: an element-wise optimizer such as AdamW"
        )
    if written := [row.name for row in graph.buffers if row.mutated] + [
        x.name for x in graph.parameters if x.written
    ]:
        found.append(
            f"a forward writes '{written[0]}', which ranks of a group with a cut do not keep equal: no cut"
        )
    if not found:
        names = [x.layers for x in plan.stages]
        why = refused_cut(graph, plan.batch.micro, mesh_of(plan), wishes_of(plan), names)
        found += [why] if why else []
    for message in found:
        yield Violation(rule="cut", where="", message=message.removeprefix("cut: "))


def _not_with_cuts(plan: Plan) -> Iterator[str]:
    """Yields decisions that do not go together with tensors in parts."""
    stages = plan.stages
    both = {
        "execution: compiled": plan.execution == "compiled",
        "precision: fp16": plan.precision == "fp16",
        "pruned weights": plan.kept is not None,
        "weights: bf16": plan.weights == "bf16",
        "shares of the batch": bool(plan.batch.shares),
        "update: rolling": plan.schedule.update == "rolling",
        "grids over space": any(x.spatial or x.gather_before or x.regrid for x in stages),
        "sums by name": plan.sums is not None,
        "recompute_before": any(x.recompute_before for x in stages),
    }
    yield from (
        f"tensors in parts do not go with {what}: one of the two" for what, met in both.items() if met
    )


def _meshes(plan: Plan) -> Iterator[str]:
    ranks, meshes = (
        plan.axes.spatial,
        {stage.mesh or (plan.axes.spatial,) for stage in plan.stages if stage.cut},
    )
    for mesh in sorted(meshes):
        if prod(mesh) != ranks or not 1 <= len(mesh) <= len(CutLine.model_fields) - 1:
            shown = " x ".join(map(str, mesh))
            yield f"a mesh of {shown} is {prod(mesh)} ranks on {len(mesh)} axes; the group has {ranks}, on up to 3 axes"
    if ranks < 2:
        yield "nothing can be cut in a group of 1 rank: a group of 2 or more"
    if len(meshes) > 1:
        yield f"stages have {len(meshes)} different meshes; all have the same one"
    used = max(axis for wish in wishes_of(plan) for axis in (wish.axis,)) + 1 if wishes_of(plan) else 0
    if not used:
        yield "a line names no factor; each line has one, such as x: heads"
    for mesh in meshes:
        if len(mesh) < used:
            yield f"a line names {used} axes, and the group has {len(mesh)}: mesh, such as [2, 2]"


def wishes_in(lines: Iterable[CutLine]) -> tuple[Wish, ...]:
    """Returns what some lines of a section `cut` wish for: one factor a line and axis."""
    return tuple(
        Wish(line.layers, axis, factor)
        for line in lines
        for axis, factor in enumerate(line.factors)
        if factor
    )


def cut_on(
    given: object, group: tuple[int, ...] | None
) -> tuple[tuple[int, ...] | None, tuple[Wish, ...] | None]:
    """Returns the group and the wishes of a section `cut` that stands outside of a plan.

    Args: `given` is that of `cut_given`, ANY_CUT or None; `group` is asked for beside it, if one is.
    Returns: no wishes where layouts are to be looked for, also for a group without a cut; None where nothing is asked.
    Raises: BadInput where they name different groups.
    """
    if given in (None, ANY_CUT):
        return group, None if given is None and group is None else ()
    found = cut_given(given)
    if found.group and group not in (None, found.group):
        both = " and ".join("x".join(map(str, each)) for each in (found.group, group or ()))
        raise BadInput(
            f"the file of the cut and group name {both} ranks", where="fix", allowed="the same ranks"
        )
    return found.group or group, wishes_in(found.cut)


class CutFile(Part):
    """A file with a section `cut`, and the group that it was made for."""

    version: Literal[1] = 1
    group: tuple[Count, ...] = Field(default=(), description="ranks along each axis; empty: any group")
    cut: Annotated[tuple[CutLine, ...], Field(min_length=1)]


def cut_lines(given: object) -> tuple[CutLine, ...]:
    """Reads a section `cut` that stands outside of a plan; see `cut_given`."""
    return cut_given(given).cut


def cut_given(given: object) -> CutFile:
    """Reads a section `cut` that stands outside of a plan, with its group where a file names one.

    Args: `given` is a text such as `blocks.*.attention:heads,blocks.*:sequence`, in which a second and a third factor
        are for further axes of the group; the path of a file with `version: 1` and `cut`; or a list of rows.
    Raises: BadInput where it is none of these.
    """
    allowed = "MODULE:FACTOR such as blocks.*.attention:heads, several with commas, or a file"
    if isinstance(given, list | tuple):
        rows = {"version": 1, "cut": [dict(row) if isinstance(row, Mapping) else row for row in given]}
        return files.read(CutFile, json.dumps(rows), name="cut", version=1)
    text = str(given).strip()
    if ":" not in text and (text.endswith((".yaml", ".yml")) or Path(text).is_file()):
        return files.load(CutFile, Path(text), version=1)
    lines = []
    for line in text.split(","):
        layers, *factors = (part.strip() for part in line.split(":"))
        if not layers or not 1 <= len(factors) <= 3 or not any(factors):
            raise BadInput(f"cut is {line.strip()!r}", where="fix", allowed=allowed)
        lines.append(CutLine(layers=layers, **dict(zip("xyz", factors, strict=False))))
    return CutFile(cut=tuple(lines))
