"""The command `launch`. It trains by a plan in one process, in processes here, or as a SLURM job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from planner import cli as commands
from planner import terminal, units
from planner.errors import BadInput, Interrupted
from planner.files import absolute
from runtime.cli import runs
from runtime.cli import slurm as slurm_options
from runtime.cli.keep import register_dedup, register_prune
from runtime.cli.launch_options import PANELS, LaunchOptions
from runtime.cli.shared_work import launch_islands, refuse_without_islands, register_infer
from runtime.runfolder import unused

if TYPE_CHECKING:
    from planner.plan import Plan
    from runtime.launch import Handle
    from runtime.runfolder import Result

Backend = Literal["inline", "local", "slurm"]
LOOP = ("ema", "grad_norm", "eval_every", "best_by", "keep_best", "patience", "profile_step")
KEPT = ("keep", "keep_every")
DATA = ("data_workers", "pin_memory", "drop_last")


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
        panels=PANELS,
    )
    register_infer(app)
    register_prune(app)
    register_dedup(app)
    slurm_options.register_scavenge_run(app)
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
    folder = given.run or unused(given.plan.stem)
    if given.print_ not in (None, "slurm"):
        _printed(given, chosen, folder)
        return
    if not (given.dry_run or given.check or given.print_):  # which import nothing
        runs.trusted(chosen, given.plan, trust=given.trust)
    settings = _settings(given, chosen, folder, backend)
    if given.islands is not None:
        launch_islands(given, chosen, folder, settings, backend)
        return
    refuse_without_islands(given)
    if given.prepare:
        _prepared(given, chosen, folder, settings, backend)
        return
    if backend == "slurm":
        _as_a_job(given, chosen, folder, settings)
        return
    slurm_options.refuse_without("--slurm", {**given.of_slurm, **given.planning})
    if backend == "inline":
        _ended(_inline(chosen, folder, given.steps, settings), given.out)
        return
    from runtime.launch import launch_local

    runs.say_if_crowded(chosen, settings["device"], given.out)
    started = launch_local(chosen, folder, steps=given.steps, detach=not given.wait, **settings)
    if given.wait:
        _ended(_waited(started, given.out), given.out)
    else:
        given.out.result({"run": str(folder), "state": "running"}, lambda: f"running in {folder}")


def _settings(given: LaunchOptions, plan: Plan, folder: Path, backend: Backend) -> dict[str, Any]:
    """Returns the options that are fields of Job."""
    save_every = given.save_every
    if given.failures is not None:
        save_every = _save_every(plan, folder, given.failures, save_every, given.out)
    settings = given.named("seed", "rendezvous", "clip_norm", "clip_by", *LOOP, *DATA, *KEPT)
    settings["device"] = _device(given, plan, backend)
    settings["data_workers"] = _workers(given.data_workers)
    settings |= _store(given.store)
    settings["copies"] = runs.place(given.copies)
    if given.restarts is not None:
        settings["restarts"] = given.restarts
    settings |= {"save_every": save_every, "weights": str(absolute(given.weights)) if given.weights else ""}
    settings["kept"] = str(absolute(given.kept)) if given.kept else ""
    settings["samples"] = str(absolute(given.samples)) if given.samples else ""
    if given.script:
        script, *arguments = given.script
        if backend == "inline" or not Path(script).is_file():
            raise BadInput(
                f"cannot run '{script}'", where="launch", allowed="a file, under --local or --slurm"
            )
        settings["script"] = (str(absolute(Path(script))), *arguments)
    return settings


def _device(given: LaunchOptions, plan: Plan, backend: Backend) -> str:
    from runtime.launch import device_for

    if given.device not in (None, "cpu", "cuda"):
        raise BadInput(f"there is no device '{given.device}'", where="--device", allowed="cpu, cuda")
    found = given.device or device_for(plan, backend)
    costs = plan.provenance.profile
    if given.device is None and found == "cpu" and not costs.startswith("cpu"):
        given.out.note(
            f"this machine has no GPU: the plan's costs are of {costs}, and ranks train on processors"
        )
    return found


def _workers(text: str) -> int | None:
    """Returns the readers of a rank; None where each rank takes as many as hide reading."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise BadInput(f"'{text}' readers", where="--data-workers", allowed="a whole number, or auto")
    return int(text)


def _store(text: str | None) -> dict[str, Any]:
    """Returns where samples are kept; nothing where the plan says it."""
    name, colon, steps = (text or "").partition(":")
    if text is None or text == "none":
        return {} if text is None else {"store": "none"}
    if name != "ram" or (colon and not (steps.isdecimal() and int(steps))):
        raise BadInput(f"there is no store '{text}'", where="--store", allowed="ram, ram:STEPS, none")
    return {"store": "ram", "store_steps": int(steps or 0)}


def _printed(given: LaunchOptions, plan: Plan, folder: Path) -> None:
    """Prints what another launcher starts the run by; nothing is made."""
    from planner.export import FORMS, LaunchText

    slurm_options.refuse_without("--slurm", {**given.of_slurm, **given.planning})
    how = given.print_ or ""
    if how not in FORMS:
        raise BadInput(f"nothing is known of '{how}'", where="--print", allowed=", ".join([*FORMS, "slurm"]))
    told = LaunchText(
        name=given.plan.stem,
        launch=(*given.preparing, f"--run={folder}"),
        run=str(folder),
        image=given.image,
        cuda=given.device == "cuda",
    )
    text = FORMS[how](plan, told)
    given.out.file({"form": how, "text": text}, text.rstrip("\n"))


def _prepared(
    given: LaunchOptions, plan: Plan, folder: Path, settings: dict[str, Any], backend: Backend
) -> None:
    """Makes the run folder with all that its ranks read, for ranks that somebody else starts."""
    from runtime import slurm
    from runtime.runfolder import release, write_whole
    from runtime.train import Model, job_of, prepare

    if given.elastic is not None:
        raise BadInput("--elastic and --prepare exclude each other")
    job = job_of(plan, given.steps, settings)
    paths, _ = prepare(Model.of(plan), folder, job, slurm.refuse)
    start = f"torchrun ... -m runtime.slurm.task {folder}"
    if backend == "slurm":
        asked = slurm.request(plan, given.plan.stem, folder, job, None)
        write_whole(paths.script, slurm.text(asked, given.job.over_site(given.restarts)))
        start = f"sbatch {paths.script}` or `{start}"
    release(paths)
    given.out.result(
        {"run": str(folder), "state": "prepared"}, lambda: f"prepared in {folder}; ranks start by `{start}`"
    )


def _as_a_job(given: LaunchOptions, plan: Plan, folder: Path, settings: dict[str, Any]) -> None:
    options = given.job.over_site(given.restarts)
    nodes = slurm_options.flexible(given.elastic, given.profile, given.cluster, given.fix)
    name, out = given.plan.stem, given.out
    if given.dry_run or given.check or given.print_:
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
    there = next(path for path in (absolute(folder), *absolute(folder).parents) if path.is_dir())
    size = sum(worker.parameters + worker.optimizer for worker in plan.prediction.memory)
    cost_s, step_s = checkpoints.write_s(there, size), plan.prediction.step_ns * 1e-9
    steps = checkpoints.steps_between(step_s, cost_s, hours * 3600)
    out.note(f"a checkpoint every {steps} steps: it takes about {units.format_duration(cost_s * 1e9)}")
    return steps


def _backend(given: LaunchOptions) -> Backend:
    """Returns the backend that was asked for; else SLURM inside of an allocation, with an option of it, or
    where it answers.
    """
    if given.print_ == "slurm":
        return "slurm"
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
