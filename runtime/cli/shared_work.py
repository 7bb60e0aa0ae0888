"""The commands whose work any number of processes share through a folder: `infer`, and `launch --islands`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner import cli as commands
from planner import terminal
from planner.cli import Json, WorkloadArguments
from planner.errors import BadInput, Interrupted
from runtime.cli import slurm as slurm_options

if TYPE_CHECKING:
    from planner.plan import Plan
    from runtime.cli.launch_options import LaunchOptions
    from runtime.infer import InferPlan
    from runtime.islands import IslandsAsked, IslandsFolder

LOOK_S = 0.5
STEPS = 10  # of a run without islands, where nothing is said
OF_ISLANDS = ("shards", "rounds", "inner_steps", "outer")


@dataclass(frozen=True, kw_only=True)
class InferOptions(WorkloadArguments):
    """The options of the command `infer`."""

    workload: Annotated[str, typer.Argument(help="a Python file, a module, or the name of a model of ours")]
    weights: Annotated[
        str, typer.Option(metavar="RUN|FILE", help="a run folder, or safetensors: a file or a folder of them")
    ]
    volume: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="PATH[:ARRAY]",
            help=".npy, .zarr, .h5, .precomputed or a folder of .tif slices",
        ),
    ]
    output: Annotated[str, typer.Option(metavar="PATH", help=".npy, .zarr, .h5 or .precomputed, new")]
    mode: Annotated[
        str, typer.Option(help="exact: as the whole volume at once; blend: overlapping patches, weighted")
    ] = "exact"
    chunk: Annotated[
        str, typer.Option(metavar="auto|D,H,W", help="rows of the output that a task makes along each axis")
    ] = "auto"
    patch: Annotated[
        str, typer.Option(metavar="D,H,W", help="with --mode blend: rows of one forward pass")
    ] = ""
    overlap: Annotated[
        str, typer.Option(metavar="D,H,W", help="with --mode blend: rows that patches share, at most half")
    ] = ""
    flips: Annotated[bool, typer.Option("--flips", help="with --mode blend: the mean over all flips")] = False
    workers: Annotated[int, typer.Option(help="processes of this machine that share the tasks")] = 1
    devices: Annotated[
        int,
        typer.Option(help="devices that share the whole volume at once, for models that need all of space"),
    ] = 0
    local: Annotated[bool, typer.Option("--local", help="on this machine, as is also done without it")] = (
        False
    )
    on_slurm: Annotated[bool, typer.Option("--slurm", help="as an array job of SLURM")] = False
    array: Annotated[int, typer.Option(help="with --slurm: elements, each a worker")] = 1
    mask: Annotated[
        str,
        typer.Option(metavar="PATH[:ARRAY]", help="of the output's space; where it is 0, so is the output"),
    ] = ""
    dtype: Annotated[str, typer.Option(help="float64, float32, float16 or bfloat16")] = "float32"
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu"
    memory: Annotated[float, typer.Option(help="GiB that one worker may take; 0: what is free here")] = 0.0
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print chunk, margin, overcompute, tasks, hours; do nothing")
    ] = False
    job: slurm_options.JobOptions
    as_json: Json = False


def register_infer(app: typer.Typer) -> None:
    """Adds the command `infer` to the command line.

    Args: `app` gets the command.
    """
    commands.add_command(
        app,
        "infer",
        InferOptions,
        infer,
        about="Apply a trained model to a volume larger than memory: exactly, or blended where that cannot be.",
        example="shardwright infer model.py --weights runs/mine --input scan.zarr --output labels.zarr",
    )


def _check(options: InferOptions) -> None:
    if options.local and options.on_slurm:
        raise BadInput("--local and --slurm exclude each other")
    if options.on_slurm and options.workers != 1:
        raise BadInput("is of this machine", where="--workers", allowed="--array N with --slurm")
    if options.array < 1:
        raise BadInput(f"{options.array}", where="--array", allowed="1 or more")
    if not options.on_slurm:
        array = options.array if options.array > 1 else None
        slurm_options.refuse_without("--slurm", vars(options.job) | {"array": array})


def _queue(options: InferOptions, plan: InferPlan, out: terminal.Output) -> None:
    from runtime import infer as inference

    folder, said = inference.queue(plan, options.array, options.job.over_site(), test=options.dry_run)
    if options.dry_run:
        out.result(plan.facts() | {"script": said}, lambda: f"{plan.text()}\n\n{said}")
        return
    out.note(plan.text())
    data = {"tasks": str(folder.root), "state": "queued", "job": said}
    out.result(data, lambda: f"job {said}; shardwright status {folder.root}")


def infer(options: InferOptions) -> None:
    """Applies a model to a volume; exits with 1 where tasks were set aside.

    Args: `options` are those of the command.
    """
    from runtime import infer as inference

    out = terminal.Output(as_json=options.as_json)
    _check(options)
    request = inference.InferRequest(
        workload=options.workload,
        settings=options.arguments(),
        weights=options.weights,
        input=options.volume,
        output=options.output,
        mode=options.mode,
        chunk=options.chunk,
        patch=options.patch,
        overlap=options.overlap,
        flips=options.flips,
        workers=options.workers,
        devices=options.devices,
        mask=options.mask,
        dtype=options.dtype,
        device=options.device,
        memory=int(options.memory * 2**30),
    )
    plan = inference.prepared(request)
    if options.on_slurm:
        _queue(options, plan, out)
        return
    if options.dry_run:
        out.result(plan.facts(), plan.text)
        return
    out.note(plan.text())
    found = inference.run(plan, out.note)
    out.result(plan.facts() | asdict(found) | {"state": found.state}, lambda: inference.status_text(found))
    if found.state != "done":
        raise typer.Exit(1)


def refuse_without_islands(given: LaunchOptions) -> None:
    """Raises BadInput for options that have a meaning with `--islands` alone."""
    slurm_options.refuse_without("--islands", given.named(*OF_ISLANDS))


def launch_islands(
    given: LaunchOptions, plan: Plan, folder: Path, settings: dict[str, Any], backend: str
) -> None:
    """Trains by islands, as the options say.

    Raises: BadInput for options that islands do not have; Exit with 1 where shards were set aside.
    """
    from runtime import islands

    count = given.islands or 0
    for name, there in (
        ("--inline", backend == "inline"),
        ("--print", given.print_),
        ("--check", given.check),
    ):
        if there:
            raise BadInput(f"islands have no {name}", where="--islands", allowed="--local or --slurm")
    if given.prepare or given.elastic or given.steps != STEPS:
        raise BadInput("islands have no --prepare, no --elastic and no --steps", where="--islands")
    if count < 1:
        raise BadInput(f"{count} islands", where="--islands", allowed="1 or more")
    if count > 1 and backend == "local" and settings["device"] == "cuda":
        allowed = "1 here; further ones on other machines that see the folder, or --slurm"
        raise BadInput(
            f"{count} islands would share the GPUs of this machine", where="--islands", allowed=allowed
        )
    advised = islands.advice(plan, folder, count, given.shards or count) if given.dry_run else None
    asked = _asked(given, folder)
    if backend == "slurm":
        options = given.job.over_site(given.restarts)
        said = islands.queue_islands(plan, folder, asked, count, options, test=given.dry_run, **settings)
        if advised is not None:
            given.out.result(asdict(advised) | {"script": said}, lambda: f"{advised.text()}\n\n{said}")
            return
        data = {"run": str(folder), "state": "queued", "job": said}
        given.out.result(data, lambda: f"job {said}; shardwright status {folder}")
        return
    slurm_options.refuse_without("--slurm", {**vars(given.job), **given.planning})
    if advised is not None:
        given.out.result(asdict(advised), advised.text)
        return
    _local(islands.begin(plan, folder, asked, **settings), given, count)


def _asked(given: LaunchOptions, folder: Path) -> IslandsAsked:
    """Returns the wishes of a user; what is not said is as in the folder that is joined."""
    from runtime.islands import IslandsAsked, IslandsFolder, Outer

    there = IslandsFolder(folder)
    before = there.asked() if there.file.exists() else None
    shards, rounds, steps = given.shards, given.rounds, given.inner_steps
    if before is not None:
        shards, rounds, steps = (
            shards or before.shards,
            rounds or before.rounds,
            steps or before.inner_steps,
        )
    shards = shards or given.islands
    if given.dry_run:
        rounds, steps = rounds or 1, steps or 1
    for name, value in (("--rounds", rounds), ("--inner-steps", steps), ("--shards", shards)):
        if value is None or value < 1:
            said = "is missing" if value is None else f"is {value}"
            raise BadInput(
                said, where=name, allowed="a whole number above 0; --dry-run advises how many steps"
            )
    outer = Outer.parse(given.outer) if given.outer else before.outer if before else Outer()
    assert rounds and steps and shards
    return IslandsAsked(rounds=rounds, inner_steps=steps, shards=shards, outer=outer)


def _local(folder: IslandsFolder, given: LaunchOptions, count: int) -> None:
    """Starts islands here. They go on after this process unless it waits for them."""
    from runtime import islands

    running, out = islands.start_islands(folder, count), given.out
    if not given.wait:
        data = {"run": str(folder.root), "state": "running"}
        out.result(data, lambda: f"running in {folder.root}; shardwright status {folder.root}")
        return
    last = -1
    try:
        while any(process.poll() is None for process in running):
            version = islands.islands_status(folder).version
            if version != last:
                out.note(f"version {version}")
                last = version
            time.sleep(LOOK_S)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; the same command goes on where {folder.root} stands") from error
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    found = islands.islands_status(folder)
    out.result(asdict(found) | {"state": found.state}, lambda: islands.islands_text(found))
    if found.state != "done":
        raise typer.Exit(1)


def islands_in(folder: Path) -> IslandsFolder | None:
    """Returns the folder where it is one that islands share."""
    from runtime.islands import IslandsFolder

    found = IslandsFolder(folder)
    return found if found.file.exists() else None


def status_of_islands(folder: IslandsFolder, out: terminal.Output) -> None:
    """Says how far islands are."""
    from runtime import islands

    state = islands.islands_status(folder)
    out.result(asdict(state) | {"state": state.state}, lambda: islands.islands_text(state))


def lines_of_islands(folder: IslandsFolder, rank: int | None, *, follow: bool) -> Iterator[tuple[str, str]]:
    """Yields the lines of the logs of islands: the name of a log, and a line.

    Args: with `follow` also those that are added until the training has ended.
    Raises: BadInput where the log of a rank is asked for.
    """
    from runtime import islands
    from runtime import launch as launching

    if rank is not None:
        raise BadInput("islands have a log each, and their ranks' logs go with a round", where="--rank")
    return launching.followed(
        lambda: sorted(folder.logs.glob("*")),
        lambda: follow and islands.islands_status(folder).state in ("running", "unfinished"),
    )
