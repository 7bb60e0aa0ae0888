"""The commands that run: launch, and those that look at a run. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner import console
from planner.errors import BadInput, Interrupted
from runtime import cli_rehearse, cli_runs
from runtime.paths import unused
from runtime.slurm import cli as slurm

if TYPE_CHECKING:
    from planner.plan import Plan
    from runtime.local import LocalRun, Result

Backend = Literal["inline", "local", "slurm"]


def register(app: typer.Typer) -> None:
    app.command("launch", epilog="Example: shardwright launch plan.yaml --local --steps 20 --wait")(launch)
    cli_rehearse.register(app)
    cli_runs.register(app)


def launch(
    plan: Annotated[Path, typer.Argument(help="a plan.yaml", metavar="PLAN")],
    script: Annotated[
        list[str] | None,
        typer.Argument(
            help="after --: a script of your own and its arguments, on every rank", metavar="[-- SCRIPT ARGS]"
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="every rank a process on this machine")] = False,
    inline: Annotated[bool, typer.Option("--inline", help="the same training in one process")] = False,
    on_slurm: Annotated[
        bool, typer.Option("--slurm", help="as a job; chosen by itself where there is a SLURM")
    ] = False,
    steps: Annotated[int, typer.Option(help="training steps")] = 10,
    seed: Annotated[int, typer.Option(help="of weights, samples and dropout")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="safetensors to begin with, or a folder of them; else build()'s own"
        ),
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(help="limit of the gradients' global norm")] = None,
    clip_by: Annotated[
        str,
        typer.Option(help="whose norm that is: step, or previous, so that no update waits for all gradients"),
    ] = "step",
    save_every: Annotated[int, typer.Option(help="steps between checkpoints; 0: one at the end")] = 0,
    failures: Annotated[
        float | None,
        typer.Option("--failure-every", help="hours; chooses --save-every by what a checkpoint costs"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    rendezvous: Annotated[
        str, typer.Option(metavar="HOW", help="where ranks meet: file, tcp or tcp:INTERFACE")
    ] = "file",
    run: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="run folder; an old one is resumed")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="return when the run has ended, with its status")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the batch script and do nothing")] = False,
    check: Annotated[bool, typer.Option("--check", help="ask SLURM about the script, queue nothing")] = False,
    partition: slurm.Partition = None,
    account: slurm.Account = None,
    qos: slurm.Qos = None,
    time: slurm.Time = None,
    constraint: slurm.Constraint = None,
    job_name: slurm.JobName = None,
    dependency: slurm.Dependency = None,
    sbatch: slurm.Sbatch = None,
    site: slurm.Site = None,
    elastic: slurm.ElasticNodes = None,
    profile: slurm.Profile = None,
    cluster: slurm.Machines = None,
    fix: slurm.Fix = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Train by a plan: in one process, in processes here, or as a job of SLURM."""
    from planner import plan_yaml

    words = {
        "partition": partition,
        "account": account,
        "qos": qos,
        "constraint": constraint,
        "job_name": job_name,
        "dependency": dependency,
    }
    further: dict[str, object] = {"time": time, "sbatch": sbatch, "site": site, "elastic": elastic}
    asks = bool(dry_run or check or any(words.values()) or any(further.values()))
    backend = _backend(inline=inline, local=local, on_slurm=on_slurm, asks=asks)
    out = console.Output(as_json=as_json)
    chosen = plan_yaml.load(plan)
    folder = run or unused(plan.stem)
    if failures is not None:
        save_every = _save_every(chosen, folder, failures, save_every, out)
    if device not in ("cpu", "cuda"):
        raise BadInput(f"there is no device '{device}'", where="--device", allowed="cpu, cuda")
    settings: dict[str, Any] = {"seed": seed, "save_every": save_every, "device": device}
    settings |= {
        "rendezvous": rendezvous,
        "weights": str(weights.resolve()) if weights else "",
        "clip_norm": clip_norm,
        "clip_by": clip_by,
    }
    if script:
        if backend == "inline" or not Path(script[0]).is_file():
            raise BadInput(
                f"cannot run '{script[0]}'", where="launch", allowed="a file, under --local or --slurm"
            )
        settings["script"] = (str(Path(script[0]).resolve()), *script[1:])
    if backend == "slurm":
        options = slurm.chosen(site, sbatch=sbatch, time=time, **words)
        nodes = slurm.flexible(elastic, profile, cluster, fix)
        if dry_run or check:
            from runtime.job import Job
            from runtime.job import check as check_job

            job = check_job(Job(steps=steps, device="cuda" if device == "cuda" else "cpu"))
            slurm.dry_run(chosen, plan.stem, folder, job, options, nodes=nodes, ask=check, out=out)
            return
        from runtime.local import job_of

        job = job_of(chosen, steps, settings)
        slurm.launch(chosen, plan.stem, folder, job, options, nodes=nodes, wait=wait, out=out)
        return
    planning = {"profile": profile, "cluster": cluster, "fix": fix}
    slurm.refuse_without("--slurm", {**words, **further, **planning, "dry_run": dry_run, "check": check})
    from runtime import local as processes

    if backend == "inline":
        _ended(_inline(chosen, folder, steps, settings), out)
        return
    started = processes.launch(chosen, folder, steps=steps, detach=not wait, **settings)
    if wait:
        _ended(_waited(started, out), out)
    else:
        out.result({"run": str(folder), "state": "running"}, lambda: f"running in {folder}")


def _save_every(plan: Plan, folder: Path, hours: float, given: int, out: console.Output) -> int:
    from runtime import interval

    if given:
        raise BadInput("--save-every and --failure-every exclude each other")
    if not 0 < hours < float("inf"):
        raise BadInput(f"{hours} is no time", where="--failure-every", allowed="hours, more than 0")
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    size = sum(worker.parameters + worker.optimizer for worker in plan.prediction.memory)
    cost_s, step_s = interval.write_s(there, size), plan.prediction.step_ns * 1e-9
    steps = interval.steps_between(step_s, cost_s, hours * 3600)
    out.note(f"a checkpoint every {steps} steps: it takes about {console.duration(cost_s * 1e9)}")
    return steps


def _backend(*, inline: bool, local: bool, on_slurm: bool, asks: bool) -> Backend:
    """The one that was said; else SLURM where an allocation, an option of it or a cluster is there."""
    given: dict[Backend, bool] = {"inline": inline, "local": local, "slurm": on_slurm}
    said = [name for name, wanted in given.items() if wanted]
    if len(said) > 1:
        raise BadInput(f"--{said[0]} and --{said[1]} exclude each other")
    if said:
        return said[0]
    if asks:
        return "slurm"
    from runtime.handle import has_slurm

    return "slurm" if has_slurm() else "local"


def _waited(started: LocalRun, out: console.Output) -> Result:
    from runtime.local import result_of

    progress = slurm.Progress(out)
    try:
        return result_of(started.paths, started.ranks, started.outcome(tell=progress))
    except KeyboardInterrupt:
        started.interrupt()
        raise _interrupted(started.folder) from None
    finally:
        progress.end()


def _inline(plan: Plan, folder: Path, steps: int, settings: dict[str, Any]) -> Result:
    from runtime import local

    try:
        return local.launch_inline(plan, folder, steps=steps, **settings)
    except KeyboardInterrupt:
        raise _interrupted(folder) if folder.exists() else Interrupted("interrupted") from None


def _interrupted(folder: Path) -> Interrupted:
    from runtime import status

    return Interrupted(status.text(status.of(folder)))


def _ended(result: Result, out: console.Output) -> None:
    from runtime import report_run

    losses = [{"step": step, "loss": loss} for step, loss in result.losses.items()]
    data = {"run": str(result.folder), "state": result.state, "steps": losses}
    if result.state == "done":
        found = report_run.comparison(result.folder)
        drift = report_run.drift(result.folder, found)
        rows = [(step, f"{loss:.6g}") for step, loss in result.losses.items()]
        table = console.columns(rows, ("step", "loss"))
        out.result(
            data | report_run.as_dict(found),
            lambda: f"{table}\n\n{report_run.text(found, drift)}\n\n{result.folder}",
        )
    else:
        out.result(data | {"cause": result.cause}, lambda: f"{result.state}: {result.cause}")
        raise typer.Exit(result.status)
