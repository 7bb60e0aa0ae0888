"""The commands that look at plans and runs: verify, show, simulate and report; calibrate learns from runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli.app import Force, Json, Out, PlanFile, Tools
from planner.cli.profile import costs_in
from planner.errors import BadInput, BadPlan, without_alike

if TYPE_CHECKING:
    from planner.errors import Violation
    from planner.plan import Plan


def verify(
    plan: PlanFile,
    profile: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="judge costs and memory")] = None,
    cluster: Annotated[Path | None, typer.Option(help="judge places and limits too")] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="so many nodes of the cluster")] = None,
    as_json: Json = False,
) -> None:
    """Judge a plan from the problem statement, whoever wrote it."""
    from planner import cluster as clusters
    from planner import plan as plans
    from planner import verify

    if nodes is not None and cluster is None:
        raise BadInput("--nodes without --cluster", allowed="--cluster NAME --nodes N")
    machines = clusters.load(cluster) if cluster else None
    machines = clusters.with_nodes(machines, nodes) if machines and nodes is not None else machines
    costs = costs_in(profile, machines) if profile else None
    found = verify.violations(plans.load(plan), profile=costs, cluster=machines)
    _refuse(plan, found)
    against = {
        "--profile": (profile, "the model and its costs"),
        "--cluster": (cluster, "the machines"),
    }
    more = {option: what for option, (file, what) in against.items() if not file}
    hint = f"; not held against {', or '.join(more.values())}: give {', '.join(more)}" if more else ""
    data = {"plan": str(plan), "violations": [], "not_judged": list(more)}
    terminal.Output(as_json=as_json).result(data, lambda: f"{plan} holds{hint}")


def right_plan(file: Path) -> Plan:
    """Returns the plan in a file, in which nothing is wrong."""
    from planner import plan as plans
    from planner.verify import violations

    plan = plans.load(file)
    _refuse(file, violations(plan))
    return plan


def _refuse(plan: Path, found: Sequence[Violation]) -> None:
    if found:
        count = f"{len(found)} violation{'s' if len(found) > 1 else ''}"
        raise BadPlan(
            "\n".join([f"{plan}: {count}", *(f"  {each}{more}" for each, more in without_alike(found))])
        )


def _show_command(tools: Tools) -> Callable[..., None]:
    def show(
        file: Annotated[
            Path, typer.Argument(help="a plan, profile, cluster or run", metavar="PLAN|PROFILE|CLUSTER|RUN")
        ],
        proof: Annotated[bool, typer.Option("--proof", help="of a plan: what was searched")] = False,
        layouts: Annotated[Path | None, typer.Option(metavar="PROFILE", help="of a plan with a cut")] = None,
        as_json: Json = False,
    ) -> None:
        """Say in a few lines what a file holds, or how a run went."""
        whole = tools.show_run if file.is_dir() else partial(_contents, proof=proof)
        data, text = _layouts(file, layouts) if layouts is not None else whole(file)
        terminal.Output(as_json=as_json).result(data, lambda: text)

    return show


def _contents(file: Path, proof: bool) -> tuple[dict[str, object], str]:
    from planner import cluster as clusters
    from planner import files, show
    from planner import profile as profiles

    file = clusters.cluster_file(file)
    text = files.read_text(file, max_bytes=profiles.MOST_BYTES)
    keys = set(files.parse_document(text, name=str(file)))
    if "schedule" in keys:
        plan = right_plan(file)
        data = {**plan.model_dump(mode="json"), "certificate": show.proof_data(plan)}
        return data, _plan_text(plan, proof)
    if "links" in keys:
        cluster = clusters.load(file)
        return cluster.model_dump(mode="json"), show.text(cluster)
    if "costs" in keys:
        profile = profiles.load(file)
        return {"workload": profile.workload, "device": profile.device}, show.text(profile)
    if "rests_on" in keys:
        known = clusters.load_corrections(file)
        return known.model_dump(mode="json"), show.corrections_text(known)
    raise BadInput(
        "is no plan, profile, cluster or calibration",
        where=str(file),
        allowed="a file with schedule, costs, links or rests_on",
    )


def _layouts(file: Path, profile: Path) -> tuple[dict[str, object], str]:
    from planner import plan as plans
    from planner import profile as profiles
    from planner import show, verify

    plan, graph = plans.load(file), profiles.load(profile).graph
    _refuse(file, verify.violations(plan, graph=graph))
    if not plans.is_cut(plan):
        raise BadInput("no stage has a cut", where=str(file), allowed="a plan with tensors in parts")
    return show.data(plan, layouts=graph), show.text(plan, layouts=graph)


def _plan_text(plan: Plan, proof: bool) -> str:
    from planner import show

    return show.text(plan) + (f"\n\n{show.proof_text(plan)}" if proof else "")


def simulate(
    plan: PlanFile,
    trace: Annotated[Path | None, typer.Option(help="write a Perfetto trace")] = None,
    svg: Annotated[Path | None, typer.Option(help="write a picture")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run a plan in the simulator: one step, drawn."""
    from planner import show

    for path in (trace, svg):
        if path is not None:
            files.refuse_overwrite(path, force)
    from planner.simulate import period_of_plan, simulate_plan
    from planner.trace import perfetto

    loaded = right_plan(plan)
    timeline = simulate_plan(loaded)
    if trace is not None:
        files.write_whole(trace, perfetto(loaded, {"predicted": timeline}))
    if svg is not None:
        files.write_whole(svg, show.svg(timeline))
    data = {"makespan_ns": timeline.makespan_ns, "period_ns": period_of_plan(loaded)}
    terminal.Output(as_json=as_json).result(data, lambda: show.terminal(timeline))


if TYPE_CHECKING:
    from planner.explore import Frontier
    from planner.plan import Plan
    from planner.profile import Profile
    from planner.report import Contents
    from planner.simulate import RunRecord


def register_report(app: typer.Typer, record: Callable[[Path], RunRecord]) -> None:
    """`record` reads a run folder, which is the runtime's business."""

    def report(
        plan: PlanFile,
        run: Annotated[
            Path | None, typer.Argument(help="its run folder: measured beside predicted", metavar="[RUN]")
        ] = None,
        profile: Annotated[Path | None, typer.Option(help="memory over time, and every layer's cost")] = None,
        cluster: Annotated[Path | None, typer.Option(help="the machines, for --frontier")] = None,
        frontier: Annotated[
            bool, typer.Option("--frontier", help="solve for less memory and fewer devices too")
        ] = False,
        against: Annotated[
            Path | None, typer.Option(metavar="PLAN|RUN", help="another one, side by side with this")
        ] = None,
        trace: Annotated[
            Path | None, typer.Option(metavar="FILE", help="write all as a trace for Perfetto too")
        ] = None,
        profiler: Annotated[
            list[Path] | None,
            typer.Option(metavar="FILE", help="of a rank, from `launch --profile-step`: into the trace"),
        ] = None,
        output: Out = None,
        force: Force = False,
        as_json: Json = False,
    ) -> None:
        """Write a plan, its proof and its run as one page for a browser."""
        from planner import profile as profiles
        from planner.advice import Sources
        from planner.report import Contents, render
        from planner.trace import read_rank_trace

        out = terminal.Output(as_json=as_json)
        path = output or Path(f"{plan.stem}-report.html")
        for written in filter(None, (path, trace)):
            files.refuse_overwrite(written, force)
        chosen, run = right_plan(plan), plan if run is None and plan.is_dir() else run
        costs = profiles.load(profile) if profile is not None else None
        ran = record(run) if run is not None else None
        if profiler and ran is None:
            raise BadInput("--profiler without a run", allowed="report PLAN RUN --profiler FILE")
        found = Contents(
            plan=chosen,
            run=ran,
            profile=costs,
            frontier=_frontier(chosen, costs, cluster) if frontier else None,
            sources=Sources(plan=plan, run=run, profile=profile, cluster=cluster),
            beside=_other(against, record) if against is not None else None,
            profiled=[read_rank_trace(file, ran.measured) for file in profiler or () if ran is not None],
        )
        files.write_whole(path, render(found))
        if trace is not None:
            files.write_whole(trace, found.trace)
        data = {"report": str(path), "plan": str(plan), "run": str(run) if run is not None else None}
        data |= {"trace": str(trace)} if trace is not None else {}
        more = f"\nwritten to {trace}: open it in ui.perfetto.dev" if trace is not None else ""
        out.result(data, lambda: f"written to {path}: open it in a browser{more}")

    app.command(
        "report",
        epilog="Example: shardwright report plan.yaml runs/gpt2-plan-20260101-120000 --profile profile.yaml -o report.html",
    )(report)


def _other(file: Path, record: Callable[[Path], RunRecord]) -> Contents:
    from planner.report import Contents

    if not file.is_dir():
        return Contents(plan=right_plan(file))
    run = record(file)
    return Contents(plan=run.plan, run=run)


def _frontier(plan: Plan, costs: Profile | None, cluster: Path | None) -> Frontier:
    from planner import cluster as clusters
    from planner.explore import frontier as trace
    from planner.milp import Question

    if costs is None or cluster is None:
        raise BadInput("--frontier solves again", allowed="together with --profile and --cluster")
    question = Question(
        profile=costs,
        cluster=clusters.load(cluster),
        batch=plan.batch.samples,
        precision=plan.precision,
        execution=plan.execution,
    )
    with terminal.patient("solving for less memory and fewer devices"):
        return trace(question)


if TYPE_CHECKING:
    from planner.calibrate import Observation

Observe = Callable[[Path], "Observation"]


def register_calibrate(app: typer.Typer, observe: Observe) -> None:
    app.command("calibrate", epilog="Example: shardwright calibrate runs/gpt2-plan-20260101-120000")(
        _command(observe)
    )


def _command(observe: Observe) -> Callable[..., None]:
    def calibrate(
        runs: Annotated[list[Path], typer.Argument(help="folders of finished runs", metavar="RUN...")],
        output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="where to write")] = Path(
            "calibration.yaml"
        ),
        force: Force = False,
        as_json: Json = False,
    ) -> None:
        """Fit what the costs get wrong to the traces of runs, with the error that is left."""
        from planner import calibrate as lessons
        from planner import cluster as clusters
        from planner import show

        files.refuse_overwrite(output, force)
        found = lessons.fit([observe(folder) for folder in runs])
        files.write_whole(output, clusters.dump_corrections(found))
        data = {"calibration": str(output), **found.model_dump(mode="json", exclude_none=True)}
        terminal.Output(as_json=as_json).result(
            data, lambda: f"{show.corrections_text(found)}\n\nwritten to {output}"
        )

    return calibrate
