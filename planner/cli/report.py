"""The command `report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli.app import Force, Json, Out, PlanFile
from planner.cli.inspect import right_plan
from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.explore import Frontier
    from planner.plan import Plan
    from planner.profile import Profile
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
        output: Out = None,
        force: Force = False,
        as_json: Json = False,
    ) -> None:
        """Write a plan, its proof and its run as one page for a browser."""
        from planner import profile as profiles
        from planner.report import Contents, render

        out = terminal.Output(as_json=as_json)
        path = output or Path(f"{plan.stem}-report.html")
        files.refuse_overwrite(path, force)
        chosen = right_plan(plan)
        costs = profiles.load(profile) if profile is not None else None
        found = Contents(
            plan=chosen,
            run=record(run) if run is not None else None,
            profile=costs,
            frontier=_frontier(chosen, costs, cluster) if frontier else None,
        )
        files.write_whole(path, render(found))
        data = {"report": str(path), "plan": str(plan), "run": str(run) if run is not None else None}
        out.result(data, lambda: f"written to {path}: open it in a browser")

    app.command(
        "report",
        epilog="Example: shardwright report plan.yaml runs/gpt2-plan-20260101-120000 --profile profile.yaml -o report.html",
    )(report)


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
