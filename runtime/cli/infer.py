"""The commands about trained weights. `infer` applies a model to a volume of any size; `prune` says what of it to keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from planner import cli as commands
from planner import terminal
from planner.cli import Json, WorkloadArguments
from planner.errors import BadInput
from runtime.cli import slurm as slurm_options

if TYPE_CHECKING:
    from runtime.infer import InferPlan


@dataclass(frozen=True, kw_only=True)
class InferOptions(WorkloadArguments):
    """The options of the command `infer`."""

    workload: Annotated[str, typer.Argument(help="a Python file, a module, or the name of a model of ours")]
    weights: Annotated[
        str, typer.Option(metavar="RUN|FILE", help="a run folder, or safetensors: a file or a folder of them")
    ]
    volume: Annotated[
        str,
        typer.Option("--input", metavar="PATH[:ARRAY]", help=".npy, .zarr, .h5 or a folder of .tif slices"),
    ]
    output: Annotated[str, typer.Option(metavar="PATH", help=".npy, .zarr or .h5, which does not exist yet")]
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
