"""Reads and writes plans as YAML files: one key an answer, one row a line in every table.

The same plan always gives the same bytes. A section `cut` may also stand in a file or a text of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from planner import files
from planner.errors import BadInput
from planner.files import Part
from planner.layout import Wish
from planner.plan.certificate import compact
from planner.plan.plan import GROUP_AXIS, PLACE_COLUMNS, PLAN_VERSION, CutLine, Plan

SCHEMA = "plan.schema.json"  # relative to the plan, as it lies in plans/
_ONE_A_LINE = {"places": PLACE_COLUMNS, "orders": "one pipeline worker a line"}


def load(path: Path | str) -> Plan:
    """Returns the plan in a file. Whether the plan is right is `verify`'s question.

    Args: `path` is a file of a known version.
    Raises: BadInput where the file is no plan, with line and what was allowed.
    """
    return files.load(Plan, Path(path), version=PLAN_VERSION)


def parse(text: str, *, name: str = "plan") -> Plan:
    """Returns the plan in a text.

    Args: `name` stands for the file in messages.
    Raises: BadInput where the text is no plan, with line and what was allowed.
    """
    return files.read(Plan, text, name=name, version=PLAN_VERSION)


def dump(plan: Plan) -> str:
    """Returns a plan as the text of a file.

    Args: `plan` is written without the keys that are empty in most plans.
    """
    data = plan.model_dump(mode="json")
    if data["fitted"] is None:
        del data["fitted"]
    if data["data"] is None:
        del data["data"]
    elif data["data"]["store"] == "none":
        del data["data"]["store"]
    if data["kept"] is None:
        del data["kept"]
    elif not data["kept"]["counts"]:
        del data["kept"]["counts"]
    if not plan.ema:
        del data["ema"]
    if not plan.batch.shares:
        del data["batch"]["shares"]
    if not plan.replica_times:
        del data["replica_times"]
    if plan.certificate is not None:
        data["certificate"] = compact(plan.certificate)
    for stage in data["stages"]:
        for key in ("recompute_before", "gather_before", "regrid", "shard", "mesh", "cut"):
            if not stage[key]:
                del stage[key]
        if "shard" in stage:
            stage["shard"] = {key: value for key, value in stage["shard"].items() if value}
        for turn in stage.get("regrid", ()):
            del turn["spatial" if turn["samples"] else "samples"]
        for line in stage.get("cut", ()):
            for axis in [axis for axis, factor in line.items() if not factor]:
                del line[axis]
    if any("cut" in stage for stage in data["stages"]):
        data["axes"] = _with_group(data["axes"])
    data["places"] = [" ".join(map(str, row.values())) for row in data["places"]]
    for part, key in (("model", "arguments"), ("schedule", "settings"), ("provenance", "versions")):
        data[part][key] = dict(sorted(data[part][key].items()))
    header = f"# yaml-language-server: $schema={SCHEMA}\n"
    return files.render(data, header=header, one_a_line=_ONE_A_LINE)


def _with_group(axes: dict[str, object]) -> dict[str, object]:
    """Returns the axes with the innermost one by the name that it has where tensors are cut."""
    order = axes["order"]
    assert isinstance(order, list)
    named = {GROUP_AXIS if key == "spatial" else key: value for key, value in axes.items()}
    return named | {"order": [GROUP_AXIS if x == "spatial" else x for x in order]}


def wishes_in(lines: Iterable[CutLine]) -> tuple[Wish, ...]:
    """Returns what some lines of a section `cut` wish for: one factor a line and axis."""
    return tuple(
        Wish(line.layers, axis, factor)
        for line in lines
        for axis, factor in enumerate(line.factors)
        if factor
    )


class CutFile(Part):
    """A file with a section `cut` and nothing else."""

    version: Literal[1] = 1
    cut: Annotated[tuple[CutLine, ...], Field(min_length=1)]


def cut_lines(given: object) -> tuple[CutLine, ...]:
    """Reads a section `cut` that stands outside of a plan.

    Args: `given` is a text such as `blocks.*.attention:heads,blocks.*:sequence`, in which a second and a third factor
        are for further axes of the group; the path of a file with `version: 1` and `cut`; or a list of rows.
    Raises: BadInput where it is none of these.
    """
    allowed = "MODULE:FACTOR such as blocks.*.attention:heads, several with commas, or a file"
    if isinstance(given, list | tuple):
        rows = {"version": 1, "cut": [dict(row) if isinstance(row, Mapping) else row for row in given]}
        return files.read(CutFile, json.dumps(rows), name="cut", version=1).cut
    text = str(given).strip()
    if ":" not in text and (text.endswith((".yaml", ".yml")) or Path(text).is_file()):
        return files.load(CutFile, Path(text), version=1).cut
    lines = []
    for line in text.split(","):
        layers, *factors = (part.strip() for part in line.split(":"))
        if not layers or not 1 <= len(factors) <= 3 or not any(factors):
            raise BadInput(f"cut is {line.strip()!r}", where="fix", allowed=allowed)
        lines.append(CutLine(layers=layers, **dict(zip("xyz", factors, strict=False))))
    return tuple(lines)
