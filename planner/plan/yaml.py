"""Reads and writes plans as YAML files: one key an answer, one row a line in every table.

The same plan always gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from planner import files
from planner.plan.certificate import compact
from planner.plan.plan import GROUP_AXIS, PLACE_COLUMNS, PLAN_VERSION, Plan

SCHEMA = "plan.schema.json"  # relative to the plan, as it lies in plans/
_ONE_A_LINE = {"places": PLACE_COLUMNS, "orders": "one pipeline worker a line"}


def load(path: Path | str) -> Plan:
    """Returns the plan in a file. Whether the plan is right is `verify`'s question.

    Args: `path` is a file of a known version, or the folder of a run of the plan.
    Raises: BadInput where the file is no plan, with line and what was allowed.
    """
    of_run = Path(path) / "plan.yaml"
    return files.load(Plan, of_run if of_run.exists() else Path(path), version=PLAN_VERSION)


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
    if plan.weights == "same":
        del data["weights"]
    if plan.sums is None:
        del data["sums"]
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
    for times in (*data["times"], *(x for row in data.get("replica_times", ()) for x in row["times"])):
        for key in ("forward_conversions_ns", "backward_conversions_ns"):
            if not times[key]:
                del times[key]
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
