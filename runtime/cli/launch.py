"""The command `launch`. It trains by a plan in one process, in processes here, or as a SLURM job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner import cli as commands
from planner import terminal, units
from planner.cli import Json, PlanFile
from planner.errors import BadInput, Interrupted
from runtime.cli import runs
from runtime.cli import slurm as slurm_options
from runtime.runfolder import unused

if TYPE_CHECKING:
    from planner.plan import Plan
    from runtime.launch import Handle
    from runtime.runfolder import Result

Backend = Literal["inline", "local", "slurm"]


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of the command `launch`."""

    plan: PlanFile
    script: Annotated[
        list[str] | None,
        typer.Argument(
            help="after --: a script of your own and its arguments, on every rank", metavar="[-- SCRIPT ARGS]"
        ),
    ] = None
    local: Annotated[bool, typer.Option("--local", help="every rank a process on this machine")] = False
    inline: Annotated[bool, typer.Option("--inline", help="the same training in one process")] = False
    on_slurm: Annotated[
        bool, typer.Option("--slurm", help="as a job; chosen by itself where there is a SLURM")
    ] = False
    steps: Annotated[int, typer.Option(help="training steps")] = 10
    seed: Annotated[int, typer.Option(help="of weights, samples and dropout")] = 0
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="safetensors to begin with, or a folder of them; else build()'s own"
        ),
    ] = None
    clip_norm: Annotated[float | None, typer.Option(help="limit of the gradients' global norm")] = None
    clip_by: Annotated[
        str,
        typer.Option(help="whose norm that is: step, or previous, so that no update waits for all gradients"),
    ] = "step"
    save_every: Annotated[int, typer.Option(help="steps between checkpoints; 0: one at the end")] = 0
    keep: Annotated[int, typer.Option(help="complete checkpoints that stay")] = 2
    keep_every: Annotated[
        int, typer.Option(metavar="STEPS", help="checkpoints of these multiples stay for ever")
    ] = 0
    copies: Annotated[
        str | None,
        typer.Option("--checkpoints", metavar="URL", help="copy each checkpoint there: a path of fsspec"),
    ] = None
    restarts: Annotated[
        int | None,
        typer.Option(help="tries after a failure that leave no new checkpoint; 0 here, 3 in a job"),
    ] = None
    failures: Annotated[
        float | None,
        typer.Option("--failure-every", help="hours; chooses --save-every by what a checkpoint costs"),
    ] = None
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu"
    rendezvous: Annotated[
        str, typer.Option(metavar="HOW", help="where ranks meet: file, tcp or tcp:INTERFACE")
    ] = "file"
    run: Annotated[Path | None, typer.Option(metavar="FOLDER", help="run folder; an old one is resumed")] = (
        None
    )
    trust: runs.Trust = False
    wait: Annotated[bool, typer.Option("--wait", help="return when the run has ended, with its status")] = (
        False
    )
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the batch script and do nothing")] = False
    check: Annotated[bool, typer.Option("--check", help="ask SLURM about the script, queue nothing")] = False
    partition: slurm_options.Partition = None
    account: slurm_options.Account = None
    qos: slurm_options.Qos = None
    time: slurm_options.Time = None
    constraint: slurm_options.Constraint = None
    job_name: slurm_options.JobName = None
    dependency: slurm_options.Dependency = None
    sbatch: slurm_options.Sbatch = None
    site: slurm_options.Site = None
    elastic: slurm_options.ElasticNodes = None
    profile: slurm_options.Profile = None
    cluster: slurm_options.Machines = None
    fix: slurm_options.Fix = None
    as_json: Json = False

    @property
    def out(self) -> terminal.Output:
        return terminal.Output(as_json=self.as_json)

    @property
    def words(self) -> dict[str, str | None]:
        """Returns the options with SLURM's own words for values."""
        return self.named("partition", "account", "qos", "constraint", "job_name", "dependency")

    @property
    def of_slurm(self) -> dict[str, object]:
        """Returns all options that only a job has."""
        return self.words | self.named("time", "sbatch", "site", "elastic", "dry_run", "check")

    @property
    def planning(self) -> dict[str, object]:
        """Returns the options that `--elastic` plans from."""
        return self.named("profile", "cluster", "fix")

    def named(self, *names: str) -> dict[str, Any]:
        """Returns the values of some options by name.

        Args: `names` are fields.
        """
        return {name: getattr(self, name) for name in names}


def register(app: typer.Typer) -> None:
    """Adds the commands that run to the command line.

    Args: `app` has the planner's commands.
    """
    commands.add_command(
        app,
        "launch",
        LaunchOptions,
        launch,
        about="Train by a plan: in one process, in processes here, or as a job of SLURM.",
        example="shardwright launch plan.yaml --local --steps 20 --wait",
    )
    runs.register_rehearse(app)
    runs.register_runs(app)


def launch(given: LaunchOptions) -> None:
    """Runs the command `launch`.

    Args: `given` are its options.
    Raises: BadInput for options that exclude each other, and whatever the launch raises.
    """
    from planner import plan as plans

    backend = _backend(given)
    chosen = plans.load(given.plan)
    if not (given.dry_run or given.check):  # which import nothing
        runs.trusted(chosen, given.plan, trust=given.trust)
    folder = given.run or unused(given.plan.stem)
    settings = _settings(given, chosen, folder, backend)
    if backend == "slurm":
        _as_a_job(given, chosen, folder, settings)
        return
    slurm_options.refuse_without("--slurm", {**given.of_slurm, **given.planning})
    if backend == "inline":
        _ended(_inline(chosen, folder, given.steps, settings), given.out)
        return
    from runtime.launch import launch_local

    runs.say_if_crowded(chosen, given.device, given.out)
    started = launch_local(chosen, folder, steps=given.steps, detach=not given.wait, **settings)
    if given.wait:
        _ended(_waited(started, given.out), given.out)
    else:
        given.out.result({"run": str(folder), "state": "running"}, lambda: f"running in {folder}")


def _settings(given: LaunchOptions, plan: Plan, folder: Path, backend: Backend) -> dict[str, Any]:
    """Returns the options that are fields of Job."""
    if given.device not in ("cpu", "cuda"):
        raise BadInput(f"there is no device '{given.device}'", where="--device", allowed="cpu, cuda")
    save_every = given.save_every
    if given.failures is not None:
        save_every = _save_every(plan, folder, given.failures, save_every, given.out)
    settings = given.named("seed", "device", "rendezvous", "clip_norm", "clip_by", "keep", "keep_every")
    settings["copies"] = runs.place(given.copies)
    if given.restarts is not None:
        settings["restarts"] = given.restarts
    settings |= {"save_every": save_every, "weights": str(given.weights.resolve()) if given.weights else ""}
    if given.script:
        script, *arguments = given.script
        if backend == "inline" or not Path(script).is_file():
            raise BadInput(
                f"cannot run '{script}'", where="launch", allowed="a file, under --local or --slurm"
            )
        settings["script"] = (str(Path(script).resolve()), *arguments)
    return settings


def _as_a_job(given: LaunchOptions, plan: Plan, folder: Path, settings: dict[str, Any]) -> None:
    options = slurm_options.chosen(
        given.site, sbatch=given.sbatch, time=given.time, restarts=given.restarts, **given.words
    )
    nodes = slurm_options.flexible(given.elastic, given.profile, given.cluster, given.fix)
    name, out = given.plan.stem, given.out
    if given.dry_run or given.check:
        from runtime.runfolder import Job
        from runtime.runfolder import check as check_job

        job = check_job(Job(steps=given.steps, device=settings["device"]))
        slurm_options.dry_run(plan, name, folder, job, options, nodes=nodes, ask=given.check, out=out)
        return
    from runtime.train import job_of

    job = job_of(plan, given.steps, settings)
    started = slurm_options.launch(plan, name, folder, job, options, nodes=nodes, wait=given.wait, out=out)
    if given.wait:
        _ended(_waited(started, out), out, started.job)


def _save_every(plan: Plan, folder: Path, hours: float, given: int, out: terminal.Output) -> int:
    from runtime import checkpoint as checkpoints

    if given:
        raise BadInput("--save-every and --failure-every exclude each other")
    if not 0 < hours < float("inf"):
        raise BadInput(f"{hours} is no time", where="--failure-every", allowed="hours, more than 0")
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    size = sum(worker.parameters + worker.optimizer for worker in plan.prediction.memory)
    cost_s, step_s = checkpoints.write_s(there, size), plan.prediction.step_ns * 1e-9
    steps = checkpoints.steps_between(step_s, cost_s, hours * 3600)
    out.note(f"a checkpoint every {steps} steps: it takes about {units.format_duration(cost_s * 1e9)}")
    return steps


def _backend(given: LaunchOptions) -> Backend:
    """Returns the backend that was asked for; else SLURM inside of an allocation, with an option of it, or
    where it answers.
    """
    flags: dict[Backend, bool] = {"inline": given.inline, "local": given.local, "slurm": given.on_slurm}
    said = [name for name, wanted in flags.items() if wanted]
    if len(said) > 1:
        raise BadInput(f"--{said[0]} and --{said[1]} exclude each other")
    if said:
        return said[0]
    if any(given.of_slurm.values()):
        return "slurm"
    from runtime.launch import has_slurm

    return "slurm" if has_slurm() else "local"


def _waited(started: Handle, out: terminal.Output) -> Result:
    from runtime.local import LocalBackend
    from runtime.runfolder import result_of

    progress = slurm_options.StatusLine(out)
    try:
        return result_of(started.paths, started.ranks, started.outcome(tell=progress))
    except KeyboardInterrupt:
        if not isinstance(started.backend, LocalBackend):
            raise  # the job goes on
        started.backend.interrupt()
        raise _interrupted(started.folder) from None
    finally:
        progress.end()


def _inline(plan: Plan, folder: Path, steps: int, settings: dict[str, Any]) -> Result:
    from runtime.launch import launch_inline

    try:
        return launch_inline(plan, folder, steps=steps, **settings)
    except KeyboardInterrupt:
        raise _interrupted(folder) if folder.exists() else Interrupted("interrupted") from None


def _interrupted(folder: Path) -> Interrupted:
    from runtime import launch as launching

    return Interrupted(launching.status_text(launching.of(folder)))


def _ended(result: Result, out: terminal.Output, job: int | None = None) -> None:
    from runtime import launch as launching

    losses = [{"step": step, "loss": loss} for step, loss in result.losses.items()]
    data: dict[str, object] = {"run": str(result.folder), "state": result.state, "steps": losses}
    data |= {} if job is None else {"job": job}
    if result.state == "done":
        found = launching.comparison(result.folder)
        notes = launching.notes(result.folder, found)
        rows = [(str(step), f"{loss:.6g}") for step, loss in result.losses.items()]
        table = terminal.columns(rows, ("step", "loss"))
        out.result(
            data | launching.as_dict(found) | {"notes": notes},
            lambda: f"{table}\n\n{launching.comparison_text(found, notes)}\n\n{result.folder}",
        )
    else:
        out.result(data | {"cause": result.cause}, lambda: f"{result.state}: {result.cause}")
        raise typer.Exit(result.status)
