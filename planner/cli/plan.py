"""`shardwright plan`: the fastest plan, a front of plans, or the same training over several devices or batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import typer

from planner import files, terminal
from planner.cli.app import Measure, Tools, add_command, whole_numbers
from planner.cli.export import register_export
from planner.cli.inspect import (
    Observe,
    _show_command,
    register_report,
    simulate,
    verify,
)
from planner.cli.layouts import register_layouts
from planner.cli.plan_options import EXAMPLE, PANELS, PlanOptions
from planner.cli.profile import (
    PROFILE_PANELS,
    ProfileOptions,
    costs_of,
    init,
    list_names,
    measure_with,
    profile,
)
from planner.cli.scavenge import register_scavenge
from planner.errors import BadInput, Interrupted

if TYPE_CHECKING:
    from planner.cluster import Cluster
    from planner.explore import Goal
    from planner.milp import Question
    from planner.plan import Plan


def register_plan(app: typer.Typer, measure: Measure, observe: Observe) -> None:
    about = "Find the fastest plan that fits, with a proof."
    add_command(
        app,
        "plan",
        PlanOptions,
        lambda given: plan(given, measure, observe),
        about=about,
        example=EXAMPLE,
        panels=PANELS,
    )


def plan(given: PlanOptions, measure: Measure, observe: Observe) -> None:
    from planner import cluster as clusters
    from planner import show
    from planner.configurations import pins
    from planner.kept import kept_asked, shares_asked
    from planner.limits import SearchWatch, effort_named
    from planner.milp import Question
    from planner.workload import parse_settings

    shares = shares_asked(given.kept)
    goal = _goal(given.batch, given.devices, given.frontier, shares)
    line = terminal.LiveLine(f"planning {given.named}", anyway=given.progress)
    watch = SearchWatch(lambda found: line.tell(show.words(found), found.spent))
    effort = effort_named(given.effort, watch)
    machines = clusters.load(given.cluster)
    machines = machines if given.nodes is None else clusters.with_nodes(machines, given.nodes)
    machines = corrected_machines(machines, given.calibration, given.replan_from, observe)
    fixed = _fixed(parse_settings(given.fix or [], "--fix"), goal)
    # Before anything is measured: what means nothing, and what cannot be written.
    given.refuse_baseline(single=goal.single)
    pinned = pins(fixed, given.families)
    if given.workload is not None:
        given.place(given.workload, goal)
    costs = costs_of(given, measure, machines, goal, pinned)
    costs = replace(costs, kept=kept_asked(costs.graph, given.kept))
    if not costs.types and costs.device not in {group.device for group in machines.nodes}:
        given.out.note(show.other_device(costs.device, machines))
    question = Question(
        profile=costs,
        cluster=machines,
        batch=max(goal.batches, default=1),
        fix=fixed,
        schedules=given.families,
        precision=given.precision,
        execution=given.execution,
        effort=effort,
    )
    answer = _one if goal.single else _front if goal.frontier else _sweep
    try:
        with watch.stoppable(SIGTERM, say=given.out.note), line:  # `timeout` and batch systems send it
            data, text = answer(question, goal, given)
    except KeyboardInterrupt:
        raise Interrupted(_ENDED if watch.stopped else "interrupted") from None
    if watch.stopped:
        data["stopped"] = True
    given.out.result(data, lambda: text)


_ENDED = "stopped: nothing found yet"


def _goal(batch: str, devices: str | None, frontier: bool, shares: tuple[float, ...]) -> Goal:
    from planner.explore import Goal

    batches = () if batch == "auto" else whole_numbers(batch, "--batch")
    counts = whole_numbers(devices, "--devices") if devices is not None else ()
    several = shares if len(shares) > 1 else ()
    if (len(batches) != 1) + (len(counts) > 1) + frontier + bool(several) > 1:
        raise BadInput(
            "several batches, several counts of devices, several shares kept and --frontier exclude each other",
            allowed="one of them at a time",
        )
    return Goal(batches=batches, devices=counts, frontier=frontier, shares=several)


def _fixed(given: Mapping[str, str], goal: Goal) -> dict[str, object]:
    if not goal.devices:
        return dict(given)
    if "devices" in given:
        raise BadInput("devices is fixed, and --devices is given", where="--devices", allowed="one of them")
    return {**given, "devices": max(goal.devices)}


Answer = tuple[dict[str, object], str]


def _one(question: Question, goal: Goal, where: PlanOptions) -> Answer:
    from planner import explore, milp, show
    from planner import plan as plans

    path, present = where.place(question.profile.workload, goal), where.priced(question)
    why = explore.explain(question) if where.explain else None
    found = why.plan if why is not None else milp.solve(question)
    files.write_whole(path, plans.dump(found))
    data: dict[str, object] = {
        "plan": str(path),
        **found.model_dump(mode="json", include={"axes", "prediction"}),
    }
    data["certificate"] = show.proof_data(found)
    layers = [*show.plan_lines(found), *_frozen(found, question)]
    if present is not None:
        data["baseline"], told = present.compared(found)
        layers += told
    layers.append(_written(path, where))
    if why is not None:
        data["explanation"] = show.data(why)
        layers += ["", show.text(why)]
    if where.proof:
        layers += ["", show.proof_text(found)]
    return data, "\n".join(layers)


def _written(path: Path, where: PlanOptions) -> str:
    """Returns where the plan lies, and which layers of the answer were not asked for."""
    more = [] if where.explain else ["--explain: why this plan"]
    more += [] if where.proof else ["--proof: what was searched"]
    return "     ".join([f"plan written to {path}", *more])


def _frozen(found: Plan, question: Question) -> list[str]:
    """A family that is asked for keeps its own orders, and another question may find better ones in it."""
    fixed = question.fix.get("schedule")
    named = [str(fixed)] if fixed is not None else [*(question.schedules or ())]
    if not named or "listed" in named or len(found.stages) == 1:
        return []
    families = ",".join([*named, "listed"])
    return [
        f"  its order is the family's own: `--schedule {families}` also reschedules orders for these costs, which may be faster"
    ]


def _front(question: Question, goal: Goal, where: PlanOptions) -> Answer:
    from planner import milp, show
    from planner.explore import frontier

    folder = where.place(question.profile.workload, goal)
    front = frontier(question)
    if not front.rows:
        milp.solve(question)  # says why nothing fits, and what would
    named = front.named()
    files = {name: folder / f"{name}.yaml" for name in named}
    _write(folder, {files[name]: row.plan for name, row in named.items()}, where)
    return show.data(front, files=files), f"{show.text(front, files=files)}\n\nwritten to {folder}"


def _sweep(question: Question, goal: Goal, where: PlanOptions) -> Answer:
    from planner import milp, show
    from planner.explore import over_batches, over_devices, over_kept

    what, folder = goal.what, where.place(question.profile.workload, goal)
    if goal.shares:
        sweep = over_kept(question, goal.shares)
    elif len(goal.devices) > 1:
        sweep = over_devices(question, goal.devices)
    else:
        sweep = over_batches(question, goal.batches or None)
    found = {row.asked: row.plan for row in sweep.rows if row.plan is not None}
    if not found:
        milp.solve(question)
    files = {count: folder / f"{what}-{str(count).removesuffix('.0')}.yaml" for count in found}
    _write(folder, {files[count]: plan for count, plan in found.items()}, where)
    return show.data(sweep, files=files), f"{show.text(sweep)}\n\nwritten to {folder}"


def _write(folder: Path, plans: Mapping[Path, Plan], where: PlanOptions) -> None:
    from planner.plan import dump

    texts = {path.name: dump(plan) for path, plan in plans.items()}
    files.write_folder(folder, texts)


def register(app: typer.Typer, tools: Tools) -> None:
    add_command(
        app,
        "profile",
        ProfileOptions,
        lambda given: profile(given, tools),
        about="Measure what every layer of a model costs on a device.",
        example="shardwright profile gpt2 --device cpu --micro 1,2,4 -o gpt2.yaml",
        panels=PROFILE_PANELS,
    )
    app.command("init", epilog="Example: shardwright init hf:gpt2 --task causal-lm -o gpt2_lm.py")(init)
    register_plan(app, measure_with(tools), tools.observe)
    app.command("verify", epilog="Example: shardwright verify plan.yaml --profile gpt2.yaml")(verify)
    app.command("show", epilog="Example: shardwright show plan.yaml")(_show_command(tools))
    app.command("simulate", epilog="Example: shardwright simulate plan.yaml --svg timeline.svg")(simulate)
    register_layouts(app, measure_with(tools))
    register_report(app, tools.record)
    register_export(app)
    app.command("list", epilog="Example: shardwright list clusters")(list_names)
    register_scavenge(app)


def corrected_machines(
    machines: Cluster, calibration: Path | None, run: Path | None, observe: Observe
) -> Cluster:
    """The machines with what runs have shown of them: those of a file, or one run alone."""
    from planner import calibrate as lessons
    from planner import cluster as clusters

    if calibration is not None and run is not None:
        raise BadInput("--calibration and --replan-from exclude each other")
    if calibration is not None:
        return lessons.with_corrections(machines, clusters.load_corrections(calibration))
    if run is not None:
        return lessons.with_corrections(machines, lessons.fit([observe(run)]))
    return machines
