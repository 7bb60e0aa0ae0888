"""The commands that look at a plan file: verify, show and simulate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli.app import Force, Json, PlanFile, Tools
from planner.errors import BadInput, BadPlan

if TYPE_CHECKING:
    from planner.errors import Violation
    from planner.plan import Plan


def verify(
    plan: PlanFile,
    profile: Annotated[Path | None, typer.Option(help="judge costs and memory too")] = None,
    cluster: Annotated[Path | None, typer.Option(help="judge places and limits too")] = None,
    as_json: Json = False,
) -> None:
    """Judge a plan from the problem statement, whoever wrote it."""
    from planner import cluster as clusters
    from planner import plan as plans
    from planner import profile as profiles
    from planner import verify

    found = verify.violations(
        plans.load(plan),
        profile=profiles.load(profile) if profile else None,
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
        raise BadPlan("\n".join([f"{plan}: {count}", *(f"  {violation}" for violation in found)]))


def _show_command(tools: Tools) -> Callable[..., None]:
    def show(
        file: Annotated[
            Path, typer.Argument(help="a plan, profile, cluster or run", metavar="PLAN|PROFILE|CLUSTER|RUN")
        ],
        proof: Annotated[bool, typer.Option("--proof", help="of a plan: what was searched")] = False,
        as_json: Json = False,
    ) -> None:
        """Say in a few lines what a file holds, or how a run went."""
        data, text = tools.show_run(file) if file.is_dir() else _contents(file, proof)
        terminal.Output(as_json=as_json).result(data, lambda: text)

    return show


def _contents(file: Path, proof: bool) -> tuple[dict[str, object], str]:
    from planner import cluster as clusters
    from planner import files, show
    from planner import profile as profiles
    from planner.cli import calibrate

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
        return known.model_dump(mode="json"), calibrate.text(known)
    raise BadInput(
        "is no plan, profile, cluster or calibration",
        where=str(file),
        allowed="a file with schedule, costs, links or rests_on",
    )


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

    loaded = right_plan(plan)
    timeline = simulate_plan(loaded)
    if trace is not None:
        files.write_whole(trace, show.perfetto(timeline))
    if svg is not None:
        files.write_whole(svg, show.svg(timeline))
    data = {"makespan_ns": timeline.makespan_ns, "period_ns": period_of_plan(loaded)}
    terminal.Output(as_json=as_json).result(data, lambda: show.terminal(timeline))
