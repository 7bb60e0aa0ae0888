"""The options of `launch --slurm`, and what it does with them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import console
from planner.errors import BadInput
from runtime.slurm import options as slurm_options
from runtime.slurm.options import Options

if TYPE_CHECKING:
    from planner.plan import Plan
    from runtime.job import Job
    from runtime.slurm.run import SlurmRun

Text = str | None
Partition = Annotated[Text, typer.Option(help="SLURM's; several with commas", metavar="NAMES")]
Account = Annotated[Text, typer.Option(help="SLURM's account", metavar="NAME")]
Qos = Annotated[Text, typer.Option(help="SLURM's quality of service", metavar="NAME")]
Time = Annotated[Text, typer.Option(help="limit: minutes, HH:MM:SS or D-HH:MM:SS", metavar="TIME")]
Constraint = Annotated[Text, typer.Option(help="features that nodes must have", metavar="TEXT")]
JobName = Annotated[Text, typer.Option("--job-name", help="the plan's name when left out", metavar="NAME")]
Dependency = Annotated[Text, typer.Option(help="such as afterok:1234", metavar="TEXT")]
Sbatch = Annotated[
    list[str] | None, typer.Option("--sbatch", help="any other option of sbatch", metavar="KEY=VALUE")
]
Site = Annotated[Path | None, typer.Option(help="the site's defaults for SLURM", metavar="FILE")]


def chosen(site: Path | None, *, sbatch: list[str] | None, time: str | None, **given: str | None) -> Options:
    """The site's defaults with the command line over them."""
    found: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if time is not None:
        found["time"] = time
    pairs = slurm_options.pairs(sbatch or [], "--sbatch")
    for key in [key for key in pairs if key in slurm_options.NAMED]:
        found.setdefault(slurm_options.NAMED[key], pairs.pop(key))
    if pairs:
        found["sbatch"] = pairs
    return slurm_options.over(slurm_options.load(site), found)


def dry_run(
    plan: Plan, name: str, folder: Path, job: Job, options: Options, *, ask: bool, out: console.Output
) -> None:
    """Prints the script, which needs no SLURM; with `ask` what SLURM says to it."""
    from runtime.slurm import run, script, submit

    request = submit.request(plan, name, folder, job)
    text = script.text(request, options)
    if not ask:
        out.result({"script": text}, lambda: text.rstrip("\n"))
        return
    said = run.test_only(request, options)
    out.result({"script": text, "sbatch": said}, lambda: said)


def launch(
    plan: Plan, name: str, folder: Path, job: Job, options: Options, *, wait: bool, out: console.Output
) -> None:
    from runtime.slurm import run, submit

    paths, warnings = submit.prepared(plan, name, folder, job, options)
    for warning in warnings:
        out.note(f"warning: {warning}")
    started = run.queue(paths, len(plan.places))
    if not wait:
        data = {"run": str(paths.root), "state": "queued", "job": started.job}
        out.note(f"queued in {paths.root}")
        out.result(data, lambda: str(started.job))
        return
    out.note(f"job {started.job}, in {paths.root}")
    _wait(started, out)


def _wait(started: SlurmRun, out: console.Output) -> None:
    outcome = started.outcome()
    rows = started.metrics()
    data = {
        "run": str(started.paths.root),
        "state": outcome.state,
        "job": started.job,
        "steps": [{"step": row["step"], "loss": row["loss"]} for row in rows],
        "cause": outcome.cause,
        "outcome": asdict(outcome),
    }
    table = console.columns([(row["step"], f"{row['loss']:.6g}") for row in rows], ("step", "loss"))
    ending = outcome.state + (f": {outcome.cause}" if outcome.cause else "")
    out.result(data, lambda: f"{table}\n\n{ending}\n{started.paths.root}")
    if status := started.exit_status(outcome):
        raise typer.Exit(status)


def refuse_without_slurm(given: dict[str, object]) -> None:
    """Options of SLURM that a run without it would ignore in silence."""
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if used:
        raise BadInput(f"{used[0]} is an option of --slurm", allowed="--slurm, or without it")
