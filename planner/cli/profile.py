"""The commands that decide: init, profile, plan, verify, show, simulate. Each imports what it needs when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli import plan
from planner.cli.app import Force, Json, Measure, Out, Set, Tools, add_command
from planner.cli.inspect import _show_command, register_report, simulate, verify
from planner.cli.layouts import register_layouts
from planner.cli.scavenge import register_scavenge
from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.profile import Profile


def register(app: typer.Typer, tools: Tools) -> None:
    add_command(
        app,
        "profile",
        ProfileOptions,
        lambda given: profile(given, tools),
        about="Measure what every layer of a model costs on a device.",
        example="shardwright profile gpt2 --device cpu --micro 1,2,4 -o gpt2.yaml",
    )
    app.command("init", epilog="Example: shardwright init hf:gpt2 --task causal-lm -o gpt2_lm.py")(init)
    plan.register_plan(app, _measure_with(tools), tools.observe)
    app.command("verify", epilog="Example: shardwright verify plan.yaml --profile gpt2.yaml")(verify)
    app.command("show", epilog="Example: shardwright show plan.yaml")(_show_command(tools))
    app.command("simulate", epilog="Example: shardwright simulate plan.yaml --svg timeline.svg")(simulate)
    register_layouts(app, _measure_with(tools))
    register_report(app, tools.record)
    register_scavenge(app)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    workload: Annotated[str, typer.Argument(help="file.py, package.module, or a reference model's name")]
    device: Annotated[str, typer.Option(help="cpu, cuda, or roofline:NAME")] = "cpu"
    micro: Annotated[str, typer.Option(help="micro-batch sizes")] = "1,2,4"
    precision: Annotated[str, typer.Option(help="fp32, bf16 or fp16")] = "fp32"
    spatial: Annotated[
        str, typer.Option(help="parts of each sample, such as 2,4,2x2 (height x width); 1 is the whole")
    ] = "1"
    on_slurm: Annotated[
        bool, typer.Option("--slurm", help="in a job on one device of each kind; waits for it")
    ] = False
    sbatch: Annotated[
        list[str] | None, typer.Option("--sbatch", metavar="KEY=VALUE", help="with --slurm: of the job")
    ] = None
    set_: Set = None
    output: Out = None
    force: Force = False
    as_json: Json = False

    @property
    def file(self) -> Path:
        return self.output or Path(f"{Path(self.workload).stem}-profile.yaml")

    @property
    def words(self) -> list[str]:
        """The same command for a node."""
        words = [f"--micro={self.micro}", f"--precision={self.precision}", f"--spatial={self.spatial}"]
        return [*words, self.workload, f"--device={self.device}", *(f"--set={x}" for x in self.set_ or [])]


def profile(given: ProfileOptions, tools: Tools) -> None:
    from planner import profile as profiles
    from planner import show
    from planner.workload import parse_settings

    out, path = terminal.Output(as_json=given.as_json), given.file
    if given.on_slurm:
        _profile_elsewhere(tools, given, out)
        return
    if given.sbatch:
        raise BadInput("--sbatch is an option of --slurm", where="profile")
    files.refuse_overwrite(path, given.force)
    found = measured(
        given.workload,
        parse_settings(given.set_ or []),
        device=given.device,
        micros=terminal.whole_numbers(given.micro, "--micro"),
        precision=given.precision,
        grids=terminal.grids(given.spatial, "--spatial"),
        tools=tools,
        journal=path,
    )
    profiles.save(found, path)
    data = {
        "profile": str(path),
        "fingerprint": found.graph.fingerprint,
        "layers": len(found.graph.layers),
    }
    out.result(data, lambda: f"{show.text(found)}\n\nwritten to {path}")


def init(
    name: Annotated[
        str, typer.Argument(help="hf: and a type or configuration of transformers", metavar="hf:NAME")
    ],
    task: Annotated[
        str, typer.Option(help="causal-lm, sequence-classification, image-classification or ctc")
    ] = "causal-lm",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the file to write")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a workload file for a model of transformers, from its configuration."""
    from planner.recipes import transformers_file

    text = transformers_file(name, task)
    path = output or Path(f"{name.partition(':')[2].lower()}_{task.replace('-', '_')}.py")
    files.refuse_overwrite(path, force)
    files.write_whole(path, text)
    terminal.Output(as_json=as_json).result({"workload": str(path)}, lambda: f"written to {path}")


def _profile_elsewhere(tools: Tools, given: ProfileOptions, out: terminal.Output) -> None:
    from planner import profile as profiles
    from planner import show

    device = given.device
    if device not in ("cpu", "cuda"):
        raise BadInput(f"'{device}' needs no node", where="--device", allowed="cpu or cuda with --slurm")
    paths = tools.profile_by_slurm(
        given.words,
        given.file,
        cuda=device == "cuda",
        force=given.force,
        sbatch=given.sbatch or [],
        note=out.note,
    )
    found = [profiles.load(each) for each in paths]
    text = "\n\n".join(
        f"{show.text(profile)}\n\nwritten to {each}" for profile, each in zip(found, paths, strict=True)
    )
    data = {
        "profiles": [str(each) for each in paths],
        "fingerprint": found[0].graph.fingerprint,
        "layers": len(found[0].graph.layers),
    }
    out.result(data, lambda: text)


def measured(
    workload: str,
    settings: dict[str, str],
    *,
    device: str,
    micros: tuple[int, ...],
    precision: str,
    tools: Tools,
    execution: str = "eager",
    grids: tuple[tuple[int, ...], ...] = (),
    journal: Path | None = None,
) -> Profile:
    from planner import measure
    from planner.workload import load

    return measure.profile(
        load(workload, settings),
        device=device,
        micros=micros,
        precision=precision,
        execution=execution,
        split=tools.backward_split(),
        spatial=tools.spatial_split() if grids else None,
        grids=grids,
        journal=journal,
    )


def _measure_with(tools: Tools) -> Measure:
    return partial(measured, tools=tools)
