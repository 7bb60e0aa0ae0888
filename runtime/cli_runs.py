"""The commands that look at a run: status, logs, cancel."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from planner import console

Folder = Annotated[Path, typer.Argument(help="a folder that launch made", metavar="RUN")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]


def register(app: typer.Typer) -> None:
    app.command("status", epilog="Example: shardwright status runs/gpt2-plan-20260101-120000")(status)
    app.command("logs", epilog="Example: shardwright logs runs/gpt2-plan-20260101-120000 -f --rank 3")(logs)
    app.command("cancel", epilog="Example: shardwright cancel runs/gpt2-plan-20260101-120000")(cancel)


def status(run: Folder, as_json: Json = False) -> None:
    """Where a run stands: its state and why, step, loss, speed beside the plan's, time left."""
    from runtime import status as runs

    found = runs.of(run)
    console.Output(as_json=as_json).result(asdict(found), lambda: runs.text(found))


def logs(
    run: Folder,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the run has ended")] = False,
    rank: Annotated[int | None, typer.Option(help="of this rank alone")] = None,
    as_json: Json = False,
) -> None:
    """What the ranks and the job of a run have written."""
    from runtime import status as runs

    if as_json:
        rows = [{"file": file, "line": line} for file, line in runs.lines_of(run, rank, follow=False)]
        console.Output(as_json=True).result({"run": str(run), "lines": rows}, str)
        return
    for file, line in runs.lines_of(run, rank, follow=follow):
        print(line if rank is not None else f"{file}: {line}", flush=True)


def cancel(run: Folder, as_json: Json = False) -> None:
    """End a run; it can be resumed from its last complete checkpoint."""
    from runtime import status as runs

    runs.cancel(run)
    console.Output(as_json=as_json).result({"run": str(run), "cancelled": True}, lambda: f"{run}: cancelled")
