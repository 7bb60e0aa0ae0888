"""The commands that decide: profile, plan, verify, show, simulate. Each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from planner import cli_plan, command, console
from planner.command import Force, Json, Out, PlanFile, Set
from planner.errors import BadInput, BadPlan
from planner.report import command as reporting

if TYPE_CHECKING:
    from planner.calibrate import Observation
    from planner.measure_passes import BackwardSplit, SpatialSplit
    from planner.profile import Profile
    from planner.run_record import RunRecord
    from planner.violation import Violation


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What the planner needs of the runtime, handed in by the facade and fetched only when used."""

    backward_split: Callable[[], BackwardSplit]
    spatial_split: Callable[[], SpatialSplit]
    show_run: Callable[[Path], tuple[dict[str, object], str]]
    observe: Callable[[Path], Observation]
    record: Callable[[Path], RunRecord]
    profile_by_slurm: ProfileElsewhere


class ProfileElsewhere(Protocol):
    """Has `shardwright profile WORDS` run on a device of each kind; where the profiles are."""

    def __call__(
        self,
        words: Sequence[str],
        output: Path,
        *,
        cuda: bool,
        force: bool,
        sbatch: Sequence[str],
        note: Callable[[str], None],
    ) -> list[Path]: ...


def register(app: typer.Typer, tools: Tools) -> None:
    command.register(
        app,
        "profile",
        ProfileOptions,
        lambda given: profile(given, tools),
        about="Measure what every layer of a model costs on a device.",
        example="shardwright profile gpt2 --device cpu --micro 1,2,4 -o gpt2.yaml",
    )
    cli_plan.register(app, _measure_with(tools), tools.observe)
    app.command("verify", epilog="Example: shardwright verify plan.yaml --profile gpt2.yaml")(verify)
    app.command("show", epilog="Example: shardwright show plan.yaml")(_show_command(tools))
    app.command("simulate", epilog="Example: shardwright simulate plan.yaml --svg timeline.svg")(simulate)
    reporting.register(app, tools.record)


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
    from planner import profile_yaml, summary
    from planner.workload_settings import parse_settings

    out, path = console.Output(as_json=given.as_json), given.file
    if given.on_slurm:
        _profile_elsewhere(tools, given, out)
        return
    if given.sbatch:
        raise BadInput("--sbatch is an option of --slurm", where="profile")
    console.refuse_overwrite(path, given.force)
    found = measured(
        given.workload,
        parse_settings(given.set_ or []),
        device=given.device,
        micros=console.whole_numbers(given.micro, "--micro"),
        precision=given.precision,
        grids=console.grids(given.spatial, "--spatial"),
        tools=tools,
        journal=path,
    )
    profile_yaml.save(found, path)
    data = {
        "profile": str(path),
        "fingerprint": found.graph.fingerprint,
        "layers": len(found.graph.layers),
    }
    out.result(data, lambda: f"{summary.of_profile(found)}\n\nwritten to {path}")


def _profile_elsewhere(tools: Tools, given: ProfileOptions, out: console.Output) -> None:
    from planner import profile_yaml, summary

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
    found = [profile_yaml.load(each) for each in paths]
    text = "\n\n".join(
        f"{summary.of_profile(profile)}\n\nwritten to {each}"
        for profile, each in zip(found, paths, strict=True)
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
        split=tools.backward_split(),
        spatial=tools.spatial_split() if grids else None,
        grids=grids,
        journal=journal,
    )


def _measure_with(tools: Tools) -> cli_plan.Measure:
    def measure(
        workload: str, settings: dict[str, str], *, device: str, micros: tuple[int, ...], precision: str
    ) -> Profile:
        return measured(workload, settings, device=device, micros=micros, precision=precision, tools=tools)

    return measure


def verify(
    plan: PlanFile,
    profile: Annotated[Path | None, typer.Option(help="judge costs and memory too")] = None,
    cluster: Annotated[Path | None, typer.Option(help="judge places and limits too")] = None,
    as_json: Json = False,
) -> None:
    """Judge a plan from the problem statement, whoever wrote it."""
    from planner import cluster as clusters
    from planner import plan_yaml, profile_yaml
    from planner import verify as judge

    found = judge.violations(
        plan_yaml.load(plan),
        profile=profile_yaml.load(profile) if profile else None,
        cluster=clusters.load(cluster) if cluster else None,
    )
    _refuse(plan, found)
    against = {
        "--profile": (profile, "the model and its costs"),
        "--cluster": (cluster, "the machines"),
    }
    more = {option: what for option, (file, what) in against.items() if file is None}
    hint = f"; not held against {', or '.join(more.values())}: give {', '.join(more)}" if more else ""
    data = {"plan": str(plan), "violations": [], "not_judged": list(more)}
    console.Output(as_json=as_json).result(data, lambda: f"{plan} holds{hint}")


def _refuse(plan: Path, found: Sequence[Violation]) -> None:
    if found:
        count = f"{len(found)} violation{'s' if len(found) > 1 else ''}"
        raise BadPlan("\n".join([f"{plan}: {count}", *(f"  {violation}" for violation in found)]))


def _show_command(tools: Tools) -> Callable[..., None]:
    def show(
        file: Annotated[
            Path, typer.Argument(help="a plan, profile, cluster or run", metavar="PLAN|PROFILE|CLUSTER|RUN")
        ],
        as_json: Json = False,
    ) -> None:
        """Say in a few lines what a file holds, or how a run went."""
        data, text = tools.show_run(file) if file.is_dir() else _contents(file)
        console.Output(as_json=as_json).result(data, lambda: text)

    return show


def _contents(file: Path) -> tuple[dict[str, object], str]:
    from planner import cli_calibrate, fitted, plan_yaml, profile_yaml, summary, yaml_files
    from planner import cluster as clusters

    keys = set(yaml_files.parse(yaml_files.read_text(file), name=str(file)))
    if "schedule" in keys:
        plan = plan_yaml.load(file)
        return plan.model_dump(mode="json"), summary.of_plan(plan)
    if "links" in keys:
        cluster = clusters.load(file)
        return cluster.model_dump(mode="json"), summary.of_cluster(cluster)
    if "costs" in keys:
        profile = profile_yaml.load(file)
        return {"workload": profile.workload, "device": profile.device}, summary.of_profile(profile)
    if "rests_on" in keys:
        known = fitted.load(file)
        return known.model_dump(mode="json"), cli_calibrate.text(known)
    raise BadInput(
        "is no plan, profile, cluster or calibration",
        where=str(file),
        allowed="a file with schedule, costs, links or rests_on",
    )


def simulate(
    plan: PlanFile,
    trace: Annotated[Path | None, typer.Option(help="write a Perfetto trace")] = None,
    svg: Annotated[Path | None, typer.Option(help="write a picture")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run a plan in the simulator: one step, drawn."""
    from planner import plan_yaml, views

    for path in (trace, svg):
        if path is not None:
            console.refuse_overwrite(path, force)
    from planner.simulate import period_of_plan, simulate_plan
    from planner.verify import violations

    loaded = plan_yaml.load(plan)
    _refuse(plan, violations(loaded))
    timeline = simulate_plan(loaded)
    if trace is not None:
        console.write_whole(trace, views.perfetto(timeline))
    if svg is not None:
        console.write_whole(svg, views.svg(timeline))
    data = {"makespan_ns": timeline.makespan_ns, "period_ns": period_of_plan(loaded)}
    console.Output(as_json=as_json).result(data, lambda: views.terminal(timeline))
