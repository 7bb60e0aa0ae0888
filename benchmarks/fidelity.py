"""Predicted beside measured: plans of several models and families, solved from profiles of this machine and run on it.

Two ranks compute for real, one core each; four and eight ranks, more than this machine may have cores, sleep for
their planned times inside the real runtime, with real messages. Marked apart.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Cell, Result, Table, main
from planner import measure
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import Infeasible
from planner.milp.solve import solve
from planner.plan import Plan
from planner.profile import Profile
from planner.workload import load
from runtime import local, report_run

STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    workload: str
    arguments: dict[str, str]
    batch: int
    fix: dict[str, object]
    sleep: bool = False


MODELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("gpt2", {"size": "tiny"}),
    ("unet3d", {"size": "tiny"}),
    ("mlp", {"width": "512", "layers": "8"}),
)


def cases(quick: bool) -> Iterator[Case]:
    models = MODELS[:1] if quick else MODELS
    for name, arguments in models:
        for fix in (
            {"data": 2, "pipeline": 1},
            *({"pipeline": 2, "schedule": x} for x in ("1f1b", "zb-h1", "chimera")),
        ):
            yield Case(workload=name, arguments=arguments, batch=8, fix=fix)
    for family in ("1f1b",) if quick else ("1f1b", "zb-h1", "chimera", "chimera-zb"):
        fix = {"pipeline": 4, "schedule": family, "micro": 1}
        yield Case(workload="gpt2", arguments={"size": "tiny"}, batch=8, fix=fix, sleep=True)


def machines(ranks: int) -> Cluster:
    """Processes of one machine: the link is that of its loopback, as the runtime's own messages see it."""
    group = NodeGroup(count=1, device="cpu", devices_per_node=ranks, memory_bytes=2 * 2**30)
    return Cluster(
        name="here", nodes=(group,), links=Links(node=Link(latency_s=2e-4, bandwidth_bytes_per_s=2e9))
    )


def slowed(profile: Profile, factor: float) -> Profile:
    """The same model with every layer slower, so that sleeping stages are long against the clock's grain."""
    from dataclasses import replace

    def longer(cost: object) -> object:
        times = {
            name: replace(getattr(cost, name), median=getattr(cost, name).median * factor, spread=0.0)
            for name in ("forward", "backward", "input_grad", "weight_grad")
        }
        return replace(cost, **times)  # type: ignore[type-var]

    return replace(profile, costs={key: longer(cost) for key, cost in profile.costs.items()})


def measured_ns(plan: Plan, case: Case) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        content = "sleep" if case.sleep else "layers"
        local.launch(plan, folder, steps=STEPS, content=content).wait().check()
        found = report_run.comparison(Path(folder))
    return found.predicted_step_ns, found.measured_step_ns


def row(case: Case, profile: Profile) -> tuple[Cell, ...]:
    ranks = 4 if case.sleep else 2
    name = " ".join(f"{key}={value}" for key, value in case.fix.items())
    kind = "sleep" if case.sleep else "compute"
    try:
        plan = solve(profile, machines(ranks), batch=case.batch, fix=case.fix)
    except Infeasible as error:
        return (case.workload, name, kind, str(error), None, None, None)
    predicted, measured = measured_ns(plan, case)
    micros = f"{plan.batch.micros} x {plan.batch.micro}"
    return (case.workload, name, kind, micros, predicted / 1e6, measured / 1e6, measured / predicted)


def run(quick: bool) -> Result:
    profiles: dict[str, Profile] = {}
    rows = []
    for case in cases(quick):
        key = f"{case.workload} {case.arguments} {case.sleep}"
        if key not in profiles:
            found = measure.profile(load(case.workload, case.arguments), "cpu", micros=(1, 2))
            profiles[key] = slowed(found, 20.0) if case.sleep else found
        rows.append(row(case, profiles[key]))
    notes = []
    for kind in ("compute", "sleep"):
        errors = [abs(r[6] - 1) for r in rows if r[2] == kind and isinstance(r[6], float)]
        if errors:
            notes.append(f"{kind}: error {statistics.median(errors):.1%} median, {max(errors):.1%} at worst.")
    columns = ("model", "decisions", "stages", "micro-batches", "predicted ms", "measured ms", "ratio")
    return Result(
        name="fidelity",
        claim="Step time within 10 % (median) where stages compute, within 5 % where they sleep.",
        tables=[Table(title="Predicted against measured", columns=columns, rows=rows, notes=tuple(notes))],
    )


if __name__ == "__main__":
    main(run)
