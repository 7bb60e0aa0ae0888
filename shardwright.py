"""shardwright: plan and run the distributed training of any torch module.

`import shardwright as sw` gives the verbs of the commands as functions. This is the one file that sees both the
planner and the runtime; it hands each what it needs of the other, and imports them when a verb is used, so that
planning from a profile file needs no torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal


def _claim(name: str) -> None:
    """Ours is the package of this name that lies beside this file, whatever else lies where Python was started."""
    own = Path(__file__).resolve().parent / name / "__init__.py"
    found = sys.modules.get(name)
    if found is None:
        spec = importlib.util.spec_from_file_location(name, own, submodule_search_locations=[str(own.parent)])
        assert spec is not None and spec.loader is not None
        sys.modules[name] = found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    elif Path(found.__file__ or "").resolve() != own:
        raise ImportError(
            f"another '{name}' is in use, {found.__file__}: import shardwright before it, or rename it"
        )


_claim("planner")
_claim("runtime")

from planner.cluster import Cluster  # noqa: E402
from planner.errors import BadInput, BadPlan, Infeasible, ShardwrightError  # noqa: E402
from planner.plan import Plan  # noqa: E402
from planner.views import install  # noqa: E402

install()

if TYPE_CHECKING:
    import typer

    from planner.capture import Captured
    from planner.cluster import Corrections
    from planner.milp import Question
    from planner.notebook import SolvedFrontier, SolvedPlan
    from planner.profile import Profile
    from planner.show import SideBySide
    from planner.simulate import RunRecord
    from planner.timeline import Timeline
    from planner.workload import Workload
    from runtime.launch import Handle, Run, Runs
    from runtime.rehearse import Rehearsal

__all__ = [
    "BadInput",
    "BadPlan",
    "Cluster",
    "Infeasible",
    "Plan",
    "Run",
    "ShardwrightError",
    "calibrate",
    "capture",
    "compare",
    "frontier",
    "launch",
    "load_plan",
    "load_profile",
    "plan",
    "profile",
    "record",
    "refine",
    "rehearse",
    "report",
    "runs",
    "save",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> type[Run]:
    """`Run` needs torch, and is imported when it is first asked for."""
    if name != "Run":
        raise AttributeError(f"module 'shardwright' has no attribute '{name}'")
    from runtime.launch import Run

    return Run


def capture(workload: str | Path, *, micro: int = 1, **arguments: str | int | float | bool) -> Captured:
    """The model of a workload as a graph of layers, and the graph that the runtime executes."""
    from planner.capture import capture as captured

    return captured(_load(workload, arguments), micro=micro)


def profile(
    workload: str | Path,
    *,
    device: str = "cpu",
    micros: Sequence[int] = (1, 2, 4),
    precision: str = "fp32",
    grids: Sequence[tuple[int, ...]] = (),
    **arguments: str | int | float | bool,
) -> Profile:
    """What every layer costs on a device: `cpu`, `cuda`, or `roofline:H100-80GB` without having it.

    With `grids`, such as `[(2,), (2, 2)]`, also what a shard costs of samples cut into so many parts a dim.
    """
    from planner import measure
    from runtime import cli as commands

    return measure.profile(
        _load(workload, arguments),
        device=device,
        micros=tuple(micros),
        precision=precision,
        split=commands.backward_split(),
        spatial=commands.spatial_split() if grids else None,
        grids=grids,
    )


def plan(
    costs: Profile,
    cluster: Cluster | str | Path,
    *,
    batch: int,
    schedules: Sequence[str] | None = None,
    fix: Mapping[str, object] | None = None,
    precision: str | None = None,
    execution: str | None = None,
    calibration: Corrections | None = None,
) -> SolvedPlan:
    """The fastest plan that fits, with its certificate; ask it `what_if(...)` and for its `frontier()`."""
    from planner.calibrate import with_corrections
    from planner.milp import solve_question
    from planner.notebook import SolvedPlan

    if calibration is not None:
        cluster = with_corrections(
            cluster if isinstance(cluster, Cluster) else Cluster.load(cluster), calibration
        )
    asked = _question(costs, cluster, batch, schedules, fix, precision, execution)
    return SolvedPlan.of(solve_question(asked), asked)


def frontier(
    costs: Profile,
    cluster: Cluster | str | Path,
    *,
    batch: int,
    schedules: Sequence[str] | None = None,
    fix: Mapping[str, object] | None = None,
    precision: str | None = None,
    execution: str | None = None,
) -> SolvedFrontier:
    """The best trades of time against memory and against devices, each with its own certificate."""
    from planner.notebook import front

    return front(_question(costs, cluster, batch, schedules, fix, precision, execution))


def _question(
    costs: Profile,
    cluster: Cluster | str | Path,
    batch: int,
    schedules: Sequence[str] | None = None,
    fix: Mapping[str, object] | None = None,
    precision: str | None = None,
    execution: str | None = None,
) -> Question:
    from planner.milp import Question

    return Question(
        costs=costs,
        cluster=cluster if isinstance(cluster, Cluster) else Cluster.load(cluster),
        batch=batch,
        schedules=tuple(schedules) if schedules is not None else None,
        fix=dict(fix or {}),
        precision=precision,
        execution=execution,
    )


def compare(*plans: Plan) -> SideBySide:
    """Plans side by side, the first as what the others are held against."""
    from planner.show import compare as compared

    return compared(*plans)


def calibrate(*runs: str | Path) -> Corrections:
    """Corrections fitted to finished runs, for `plan(..., calibration=...)`: costs as those runs had them."""
    from planner.calibrate import fit
    from runtime.launch import observation

    return fit([observation(Path(folder)) for folder in runs])


def simulate(chosen: Plan) -> Timeline:
    """One step of a plan, as it will run."""
    from planner.simulate import simulate_plan

    return simulate_plan(chosen)


def verify(chosen: Plan, *, costs: Profile | None = None, cluster: Cluster | None = None) -> list[str]:
    """What is wrong with a plan, in words; empty where nothing is."""
    from planner.verify import violations

    return [str(found) for found in violations(chosen, profile=costs, cluster=cluster)]


def launch(
    chosen: Plan,
    folder: str | Path | None = None,
    *,
    steps: int = 10,
    seed: int = 0,
    on: Literal["local", "slurm"] | None = None,
    options: Mapping[str, object] | None = None,
    **settings: object,
) -> Handle:
    """Trains by a plan: as a job where there is a SLURM, in processes of this machine otherwise, or where `on` says.

    Returns at once: `state`, `metrics()`, `logs(rank)`, `cancel()`, and `wait()` for losses and the Timeline. A local
    run ends with this process. `options` are those of a site file for SLURM, such as `{"partition": "gpu"}`.
    """
    from runtime import launch as launching

    return launching.launch(chosen, folder, steps=steps, seed=seed, on=on, options=options, **settings)


def rehearse(chosen: Plan, *, device: str = "cpu", steps: int = 3, threads: int = 1) -> Rehearsal:
    """Each distinct rank of a plan alone on one device: real kernels and memory, before anything is queued."""
    from runtime import rehearse

    return rehearse.rehearse(chosen, device=device, steps=steps, threads=threads)


def runs(folder: str | Path = "runs") -> Runs:
    """The runs of a folder; `[0]` is the newest, with its plan, what was measured, and `.plot()`."""
    from runtime import launch as launching

    return launching.runs(Path(folder))


def record(folder: str | Path) -> RunRecord:
    """What a run has left behind, predicted beside measured."""
    from runtime import launch as launching

    return launching.record(Path(folder))


def refine(run: RunRecord | str | Path) -> SolvedPlan:
    """The plan of a run with the times that were measured, and the best order of weight gradients and sums for them."""
    from planner.calibrate import refined
    from planner.notebook import SolvedPlan

    ran = record(run) if isinstance(run, str | Path) else run
    return SolvedPlan.of(refined(ran.plan, ran.measured), before=ran.plan)


def report(
    chosen: Plan, path: str | Path, *, run: RunRecord | str | Path | None = None, costs: Profile | None = None
) -> Path:
    """Writes the page for a browser; what is there is overwritten."""
    from planner.notebook import SolvedPlan

    ran = record(run) if isinstance(run, str | Path) else run
    return SolvedPlan.of(chosen, chosen.asked if isinstance(chosen, SolvedPlan) else None).report(
        path, run=ran, costs=costs
    )


def load_plan(
    path: str | Path, *, costs: Profile | None = None, cluster: Cluster | str | Path | None = None
) -> SolvedPlan:
    """A plan from its file; with the costs and the machines it can be asked `what_if`."""
    from planner import plan as plans
    from planner.notebook import SolvedPlan
    from planner.report import check_same_model

    found = plans.load(path)
    if costs is None or cluster is None:
        return SolvedPlan.of(found)
    check_same_model(found, costs)
    asked = _question(
        costs, cluster, found.batch.samples, precision=found.precision, execution=found.execution
    )
    return SolvedPlan.of(found, asked)


def load_profile(path: str | Path) -> Profile:
    from planner import profile as profiles

    return profiles.load(Path(path))


def save(thing: Plan | Profile, path: str | Path) -> None:
    """Writes a plan or a profile as YAML, whole or not at all."""
    from planner import files
    from planner import plan as plans
    from planner import profile as profiles

    if isinstance(thing, Plan):
        files.write_whole(Path(path), plans.dump(thing))
    else:
        profiles.save(thing, Path(path))


def _load(workload: str | Path, arguments: Mapping[str, str | int | float | bool]) -> Workload:
    from planner.workload import load

    return load(str(workload), {name: str(value) for name, value in arguments.items()})


DEMO = (("gpt2", "tiny"), ("unet3d", "tiny"))


def _demo_command() -> Callable[..., None]:
    import typer

    def demo(
        as_json: bool = typer.Option(False, "--json", help="one JSON object on standard output"),
    ) -> None:
        """Take two small models from capture to a measured run, here, on two processes."""
        from planner.terminal import Output

        out = Output(as_json=as_json)
        runs = list(_demo(out.note if as_json else partial(print, flush=True)))
        if as_json:
            out.result({"runs": runs}, str)

    return demo


def _demo(say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    import tempfile

    from planner import show
    from runtime import launch as launching
    from runtime.runfolder import Paths

    cluster = Cluster.load(Path(__file__).parent / "plans" / "clusters" / "laptop.yaml")
    for name, size in DEMO:
        say(f"\n{name}: what does every layer cost here?")
        costs = profile(name, micros=(1, 2), size=size)
        chosen = plan(costs, cluster, batch=8)
        say(show.text(chosen))
        folder = Path(tempfile.mkdtemp(prefix="shardwright-demo-"))
        say(f"\n{name}: ten steps by that plan, in {len(chosen.places)} processes")
        done = launch(chosen, folder, steps=10, on="local").wait().check()
        found = launching.comparison(folder)
        say(
            f"loss {done.losses[1]:.4f} at first, {done.losses[10]:.4f} at last\n{launching.comparison_text(found)}"
        )
        page = chosen.report(Paths(folder).report, run=record(folder))
        say(f"plan, trace and checkpoints: {folder}\nto look at in a browser: {page}")
        facts = {"workload": name, "run": str(folder), "report": str(page), "losses": done.losses}
        yield facts | launching.as_dict(found)


def _app() -> typer.Typer:
    from planner import cli as deciding
    from runtime import cli as running

    app = deciding.app(
        "Decide how to split the training of a torch model over a cluster, with a proof, and run it."
    )
    tools = running.tools()
    deciding.register(app, tools)
    deciding.register_calibrate(app, tools.observe)
    running.register(app)
    app.command("demo", epilog="Example: shardwright demo")(_demo_command())
    return app


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit status."""
    from planner.cli import answer

    return answer(_app, arguments)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def plan_main() -> None:
    _main_of("plan")


def launch_main() -> None:
    _main_of("launch")


def _main_of(word: str) -> None:
    from planner.cli import completing

    completing(word, os.environ)
    sys.exit(run([word, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
