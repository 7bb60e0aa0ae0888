"""The commands that run: launch. Each imports what it needs when it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import console
from planner.errors import BadInput

if TYPE_CHECKING:
    from runtime.local import Result


def register(app: typer.Typer) -> None:
    app.command("launch", epilog="Example: shardwright launch plan.yaml --local --steps 20 --wait")(launch)


def launch(
    plan: Annotated[Path, typer.Argument(help="a plan.yaml", metavar="PLAN")],
    local: Annotated[
        bool, typer.Option("--local", help="every rank a process on this machine (the default)")
    ] = False,
    inline: Annotated[bool, typer.Option("--inline", help="the same training in one process")] = False,
    steps: Annotated[int, typer.Option(help="training steps")] = 10,
    seed: Annotated[int, typer.Option(help="of weights, samples and dropout")] = 0,
    run: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="run folder; an old one is resumed")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="return when the run has ended, with its state")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Train by a plan."""
    from planner import plan_yaml
    from runtime import local as processes

    if local and inline:
        raise BadInput("--local and --inline exclude each other")
    out = console.Output(as_json=as_json)
    chosen = plan_yaml.load(plan)
    folder = run or Path("runs") / f"{plan.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if inline:
        _ended(processes.launch_inline(chosen, folder, steps=steps, seed=seed), out)
        return
    started = processes.launch(chosen, folder, steps=steps, seed=seed, detach=not wait)
    if wait:
        _ended(started.wait(), out)
    else:
        out.result({"run": str(folder), "state": "running"}, lambda: f"running in {folder}")


def _ended(result: Result, out: console.Output) -> None:
    from runtime import report_run

    losses = [{"step": step, "loss": loss} for step, loss in result.losses.items()]
    data = {"run": str(result.folder), "state": result.state, "steps": losses}
    if result.state == "done":
        found = report_run.comparison(result.folder)
        rows = [(step, f"{loss:.6g}") for step, loss in result.losses.items()]
        table = console.columns(rows, ("step", "loss"))
        out.result(
            data | report_run.as_dict(found),
            lambda: f"{table}\n\n{report_run.text(found)}\n\n{result.folder}",
        )
    else:
        out.result(data | {"cause": result.cause}, lambda: f"{result.state}: {result.cause}")
        raise typer.Exit(1)
