"""`shardwright rehearse`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from planner import console
from planner.command import Json, PlanFile


def register(app: typer.Typer) -> None:
    app.command("rehearse", epilog="Example: shardwright rehearse plan.yaml --device cuda")(rehearse)


def rehearse(
    plan: PlanFile,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    steps: Annotated[int, typer.Option(help="timed steps of every rank")] = 3,
    threads: Annotated[int, typer.Option(help="of a rank, on the host")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="also train two steps by the plan here, against one process")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run each distinct rank of a plan alone on one device: its real time and memory, beside the prediction."""
    from planner import plan_yaml
    from runtime import rehearse_check, rehearse_report
    from runtime.rehearse import rehearse as run

    chosen = plan_yaml.load(plan)
    found = run(chosen, device=device, steps=steps, threads=threads)
    checked = rehearse_check.checked(chosen) if check else None
    data, parts = rehearse_report.as_dict(found), [rehearse_report.text(found)]
    if checked is not None:
        data["check"] = asdict(checked) | {"agree": checked.agree}
        parts.append(rehearse_check.text(checked))
    console.Output(as_json=as_json).result(data, lambda: "\n\n".join(parts))
    if checked is not None and not checked.agree:
        raise typer.Exit(1)
