"""The commands `profile`, `init` and `list`, and where `plan` has its costs from. Each imports what it needs when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from planner import files, terminal
from planner.cli.app import Force, Json, Measure, Out, Tools, grids, whole_numbers
from planner.device_types import together
from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.cluster import Cluster
    from planner.configurations import Pins
    from planner.explore import Goal
    from planner.export import Settings
    from planner.profile import Profile


DEVICE_NAMES = (
    "P100-16GB, V100-16GB, V100-32GB, A100-40GB, A100-80GB, H100-80GB, H200-141GB, GH200-96GB, MI250X, MI300X, RTX3090, "
    "RTX4090, cpu"
)
PROFILE_PANELS = {
    "Model": ("set_", "config"),
    "What to measure": ("device", "micro", "precision", "spatial"),
    "Where": ("on_slurm", "sbatch"),
    "Answer": ("output", "force", "as_json"),
}

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="argument of the workload")
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML with arguments of the workload; --set goes before it"),
]


@dataclass(frozen=True, kw_only=True)
class WorkloadArguments:
    """The options of a command that gives a workload its arguments."""

    set_: Set = None
    config: Config = None

    def arguments(self) -> dict[str, str]:
        """Returns the text of each argument of the workload, by name.

        Raises: BadInput for what is no argument.
        """
        from planner.workload import arguments_of

        return arguments_of(self.config, self.set_ or [])


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(WorkloadArguments):
    workload: Annotated[str, typer.Argument(help="file.py, package.module, or a reference model's name")]
    device: Annotated[str, typer.Option(help=f"cpu, cuda, or roofline:NAME of {DEVICE_NAMES}")] = "cpu"
    micro: Annotated[str, typer.Option(help="micro-batch sizes")] = "1,2,4"
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16 or fp16; bf16 where a GPU has it, else fp32")
    ] = None
    spatial: Annotated[
        str, typer.Option(help="parts of each sample, such as 2,4,2x2 (height x width); 1 is the whole")
    ] = "1"
    on_slurm: Annotated[
        bool, typer.Option("--slurm", help="in a job on one device of each kind; waits for it")
    ] = False
    sbatch: Annotated[
        list[str] | None, typer.Option("--sbatch", metavar="KEY=VALUE", help="with --slurm: of the job")
    ] = None
    output: Out = None
    force: Force = False
    as_json: Json = False

    @property
    def file(self) -> Path:
        return self.output or Path(f"{Path(self.workload).stem}-profile.yaml")

    @property
    def words(self) -> list[str]:
        """The same command for a node."""
        words = [f"--micro={self.micro}", f"--spatial={self.spatial}"]
        words += [f"--precision={self.precision}"] if self.precision is not None else []
        return [
            *words,
            self.workload,
            f"--device={self.device}",
            *(f"--set={name}={value}" for name, value in self.arguments().items()),
        ]


def profile(given: ProfileOptions, tools: Tools) -> None:
    from planner import profile as profiles
    from planner import show

    out, path = terminal.Output(as_json=given.as_json), given.file
    if given.on_slurm:
        _profile_elsewhere(tools, given, out)
        return
    if given.sbatch:
        raise BadInput("--sbatch is an option of --slurm", where="profile")
    files.refuse_overwrite(path, given.force)
    found = measured(
        given.workload,
        given.arguments(),
        device=given.device,
        micros=whole_numbers(given.micro, "--micro"),
        precision=given.precision,
        grids=grids(given.spatial, "--spatial"),
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
        str,
        typer.Argument(
            help="hf: and a type or class of transformers, or a config's folder", metavar="hf:NAME"
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            help="causal-lm, masked-lm, seq2seq-lm, token-classification, sequence-classification, "
            "image-classification, ctc or speech-to-text"
        ),
    ] = "causal-lm",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the file to write")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a workload file for a model of transformers, from its configuration."""
    from planner.recipes import file_name, transformers_file

    text = transformers_file(name, task)
    path = output or Path(file_name(name, task))
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
    precision: str | None,
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
        precision=precision or measure.usual_precision(device),
        execution=execution,
        split=tools.backward_split(),
        spatial=tools.spatial_split() if grids else None,
        grids=grids,
        journal=journal,
    )


def measure_with(tools: Tools) -> Measure:
    return partial(measured, tools=tools)


class CostsAsked(Protocol):
    """The options of `plan` that say where its costs come from."""

    @property
    def workload(self) -> str | None: ...
    @property
    def profile(self) -> list[Path] | None: ...
    @property
    def config(self) -> Path | None: ...
    def arguments(self) -> dict[str, str]: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def execution(self) -> str | None: ...
    @property
    def present(self) -> Settings | None: ...
    def with_present(self, micros: tuple[int, ...]) -> tuple[int, ...]: ...


def costs_of(given: CostsAsked, measure: Measure, machines: Cluster, goal: Goal, pinned: Pins) -> Profile:
    settings = given.arguments()
    if not given.profile:
        return _measured(given, measure, settings, machines, goal, pinned)
    costs = costs_in(given.profile, machines, given.workload)
    if settings:
        option = "--set" if given.config is None else "--config"
        raise BadInput(
            f"{option} is for profiling, and a profile is given", where=option, allowed="one of them"
        )
    return costs


def costs_in(paths: list[Path], machines: Cluster | None, workload: str | None = None) -> Profile:
    from planner import profile as profiles

    if len(paths) > 1 and machines is None:
        raise BadInput("several profiles without --cluster", where="--profile", allowed="--cluster, too")
    found = [profiles.load(path) for path in paths]
    for costs, path in zip(found, paths, strict=True):
        if workload is not None and workload != costs.workload:
            raise BadInput(f"is a profile of '{costs.workload}', not of '{workload}'", where=str(path))
    return together(found, {group.device for group in machines.nodes} if machines else ())


def _measured(
    given: CostsAsked,
    measure: Measure,
    settings: dict[str, str],
    machines: Cluster,
    goal: Goal,
    pinned: Pins,
) -> Profile:
    """Returns the profile of what is asked for: what is pinned is what is measured."""
    from planner.configurations import grids_of
    from planner.measure import measured_on
    from planner.milp import refuse_impossible

    if given.workload is None:
        raise BadInput("neither a workload nor --profile is given", allowed="one of them")
    refuse_impossible(pinned, machines, goal.batches)
    powers = tuple(2**i for i in range(4) if 2**i <= max(goal.batches, default=8))
    return measure(
        given.workload,
        settings,
        device=measured_on(machines.nodes[0].device),
        micros=given.with_present(powers if pinned.micro is None else (pinned.micro,)),
        precision=given.precision or (now.precision if (now := given.present) is not None else None),
        execution=given.execution or "eager",
        grids=grids_of(pinned),
    )


def list_names(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="devices, models, clusters, schedules, rules or pins")
    ],
    as_json: Json = False,
) -> None:
    """List what has a name here: devices, models, clusters, schedules, operations on shards, or what --fix decides."""
    from planner import named

    rows = named.listed(kind)
    text = terminal.columns([list(row.values()) for row in rows], tuple(rows[0]))
    terminal.Output(as_json=as_json).result({kind: rows}, lambda: text)
