"""`shardwright layouts`: which tensors the ranks of a group should have in parts, on which mesh of the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli.app import Force, Json, Measure, add_command
from planner.cli.profile import Set
from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.choose import ChosenLayout, GroupWork
    from planner.cluster import Cluster
    from planner.profile import CostKey, Profile

EXAMPLE = "shardwright layouts gpt2.yaml --cluster plans/clusters/one-node.yaml --group 4 -o cuts"
MOST_AXES = 3


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    source: Annotated[
        str, typer.Argument(help="a profile, or a workload to price by roofline", metavar="PROFILE|WORKLOAD")
    ]
    cluster: Annotated[
        Path,
        typer.Option(metavar="FILE|NAME", help="a cluster.yaml, or a name of `shardwright list clusters`"),
    ]
    group: Annotated[int, typer.Option(min=1, help="ranks that work on one micro-batch together")]
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AxB", help="the only mesh to try, such as 2x4; its last axis is innermost"),
    ] = None
    axes: Annotated[int, typer.Option(min=1, max=MOST_AXES, help="most axes of the meshes to try")] = 2
    micro: Annotated[
        int | None, typer.Option(min=1, help="samples of a micro-batch; the most profiled when left out")
    ] = None
    micros: Annotated[
        int, typer.Option(min=1, help="micro-batches a step, after which gradients are summed once")
    ] = 1
    precision: Annotated[
        str | None, typer.Option(help="one of those profiled; what is usual when left out")
    ] = None
    set_: Set = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="a file for each layout, for `plan --fix cut=`"
        ),
    ] = None
    force: Force = False
    as_json: Json = False


def register_layouts(app: typer.Typer, measure: Measure) -> None:
    add_command(
        app,
        "layouts",
        LayoutOptions,
        lambda given: list_layouts(given, measure),
        about="List the best ways in which ranks can share tensors: heads, columns, vocabulary, sequence, samples.",
        example=EXAMPLE,
    )


def list_layouts(given: LayoutOptions, measure: Measure) -> None:
    from planner import choose
    from planner import cluster as clusters
    from planner.group import on_cluster
    from planner.milp import Question, price_group

    mesh, machines = _mesh(given), clusters.load(given.cluster)
    on_cluster(mesh or (given.group,), machines)  # before anything takes long
    if given.output is not None:
        files.refuse_folder(given.output, given.force)
    profile = _profile(given, machines, measure)
    setting = _setting(given, profile)
    work = choose.work_of(profile, setting, given.micros)
    out = terminal.Output(as_json=given.as_json)
    micro = setting.micro
    asked = Question(
        profile=profile,
        cluster=machines,
        batch=micro * given.micros,
        precision=setting.precision,
        execution=setting.execution,
    ).instance()
    found = choose.layouts(
        work,
        machines,
        given.group,
        mesh=mesh,
        axes=given.axes,
        note=lambda x: out.note(f"mesh {'x'.join(map(str, x))}"),
        priced=lambda mesh, cut: price_group(asked, micro, mesh, cut),
    )
    written = _written(given, found)
    data = [_row(layout, reason) for layout, reason in zip(found, choose.reasons(found), strict=True)]
    out.result(
        {"group": given.group, "layouts": data, "files": [str(path) for path in written]},
        lambda: _text(given, work, found, written),
    )


def _mesh(given: LayoutOptions) -> tuple[int, ...]:
    if given.mesh is None:
        return ()
    parts = given.mesh.split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) > MOST_AXES:
        raise BadInput(
            f"'{given.mesh}' is no mesh", where="--mesh", allowed=f"up to {MOST_AXES} numbers such as 2x4"
        )
    mesh = tuple(map(int, parts))
    if prod(mesh) != given.group:
        raise BadInput(
            f"{given.mesh} is {prod(mesh)} ranks, the group has {given.group}",
            where="--mesh",
            allowed=f"a product of {given.group}",
        )
    return mesh


def _profile(given: LayoutOptions, machines: Cluster, measure: Measure) -> Profile:
    """Returns the profile in a file, or one of a workload by the roofline of the cluster's device."""
    from planner import profile as profiles
    from planner.workload import parse_settings

    if Path(given.source).suffix in (".yaml", ".yml"):
        if given.set_:
            raise BadInput("--set is for a workload, and this is a profile", where=given.source)
        return profiles.load(given.source)
    device = machines.nodes[0].device
    return measure(
        given.source,
        parse_settings(given.set_ or []),
        device="cpu" if device == "cpu" else f"roofline:{device}",
        micros=(given.micro or 1, 2 * (given.micro or 1)),  # two tell what a part of a layer takes
        precision=given.precision,
        execution="eager",
        grids=(),
    )


def _setting(given: LayoutOptions, profile: Profile) -> CostKey:
    from planner.profile import CostKey

    there = sorted({x.precision for x in profile.settings if x.execution == "eager"})
    if not there:
        raise BadInput("was not profiled in eager execution", where=profile.workload)
    precision = given.precision or ("fp32" if "fp32" in there else there[0])
    if precision not in there:
        raise BadInput(f"'{precision}' was not profiled", where="--precision", allowed=", ".join(there))
    profiled = [x.micro for x in profile.settings if x.precision == precision and x.execution == "eager"]
    filed = Path(given.source).suffix in (".yaml", ".yml")
    return CostKey("", given.micro or (max if filed else min)(profiled), (), precision, "eager")


def _written(given: LayoutOptions, found: list[ChosenLayout]) -> list[Path]:
    """Writes a file for each layout that cuts something, and returns where they lie."""
    from planner import choose

    if given.output is None:
        return []
    texts = {
        f"cut-{i + 1}.yaml": choose.cut_text(layout.mesh, layout.lines)
        for i, layout in enumerate(found)
        if layout.lines
    }
    files.write_folder(given.output, texts)
    return [given.output / name for name in texts]


def _row(layout: ChosenLayout, reason: str) -> dict[str, object]:
    from planner import choose

    price = {key: round(value) for key, value in asdict(layout.price).items() if key != "stored"}
    return {
        "mesh": list(layout.mesh),
        "ns": round(layout.price.ns),
        "bytes": round(layout.price.bytes),
        **price,
        "cut": [dict(row) for row in choose.rows_of(layout.lines)],
        "reason": reason,
    }


def _text(given: LayoutOptions, work: GroupWork, found: list[ChosenLayout], written: list[Path]) -> str:
    from planner import choose
    from planner.units import plural

    lines = [
        f"{plural(len(found), 'layout')} of {given.group} ranks that none equals in time and memory:",
        "",
    ]
    for i, (layout, reason) in enumerate(zip(found, choose.reasons(found), strict=True)):
        lines += [*choose.layout_lines(i + 1, layout, reason), ""]
    lines.append(
        "Times of parts are shares of whole layers' times; conversions are as the cluster file says."
    )
    size = choose.transformer_size(work) if given.group > 1 else None
    if size is not None:
        lines += ["", *choose.volume_lines(given.group, *size)]
    if written:
        mesh = choose.mesh_text(found[-1])
        lines += ["", f"written to {', '.join(map(str, written))}; take one with:"]
        lines.append(f"  shardwright plan ... --fix group={mesh} --fix cut={written[-1]}")
    return "\n".join(lines)
