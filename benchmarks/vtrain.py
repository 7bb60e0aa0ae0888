"""Regret on measured plans (VIA-Research/vTrain, A100): how much slower the plan is that we would have chosen.

A job is a model, a batch and a number of GPUs; its measured plans of tensor degree 1 are the answers. Each is priced by
our cost model and simulator, with five constants fitted to the plans of models of another width or depth, and the
cheapest is chosen. Beside it the trivial rule: the most replicas, then the largest micro-batch.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.adapters import public, vtrain
from benchmarks.adapters.vtrain import Constants, Measured
from benchmarks.harness import Cell, Result, Table, above, main
from planner.cluster import Link, slots, spread, sum_s
from planner.milp import Question, solve
from planner.simulate import period_of_plan

GPUS_OF_A_NODE = 8
AIMS = {"mean": 1.0, "95th percentile": 5.0, "worst": 10.0}  # regret, per cent


def priced_s(row: Measured, known: Constants, wire: Link) -> float:
    """Equal blocks a stage, the embedding with the first, the head with the last: as they were run."""
    step = row.layers // row.pipeline
    cuts = [0, *(1 + step * stage for stage in range(1, row.pipeline)), row.layers + 2]
    stages = [[str(layer) for layer in range(low, high)] for low, high in pairwise(cuts)]
    fix = {
        "data": row.data,
        "pipeline": row.pipeline,
        "micro": row.micro,
        "schedule": "1f1b",
        "stages": stages,
        "recompute": "false",
        "shard": "false",
    }
    machines = vtrain.cluster(row.gpus, wire)
    plan = solve(
        Question(profile=vtrain.costs(row, known, (row.micro,)), cluster=machines, batch=row.batch, fix=fix)
    )
    late = known.message_s * 1e9
    hops = tuple(hop.model_copy(update={"ns": round(late)}) for hop in plan.hops)
    return period_of_plan(public.in_turn(plan.model_copy(update={"hops": hops}))) * 1e-9


def predicted(rows: Sequence[Measured], wire: Link) -> dict[Measured, float]:
    """Each model by constants that have seen none of its plans."""
    found: dict[Measured, float] = {}
    for model in sorted({(row.hidden, row.layers) for row in rows}):
        others = [row for row in rows if (row.hidden, row.layers) != model]
        known = vtrain.fit(others, wire)
        found |= {row: priced_s(row, known, wire) for row in rows if (row.hidden, row.layers) == model}
    return found


def rule(rows: Sequence[Measured]) -> Measured:
    return max(rows, key=lambda row: (row.data, row.micro))


def regrets(rows: Sequence[Measured], said: dict[Measured, float]) -> Iterator[tuple[float, float]]:
    """Ours and the rule's, of every job with a choice."""
    jobs: dict[tuple[int, ...], list[Measured]] = defaultdict(list)
    for row in rows:
        jobs[row.job].append(row)
    for answers in jobs.values():
        if len(answers) > 1:
            best = min(row.step_s for row in answers)
            ours = min(answers, key=said.__getitem__)
            yield ours.step_s / best - 1, rule(answers).step_s / best - 1


def regret_table(rows: Sequence[Measured], wire: Link, left_out: str) -> Table:
    said = predicted(rows, wire)
    found = list(regrets(rows, said))
    wrong = [row for row in found if row[1] > 0]
    errors = [abs(said[row] / row.step_s - 1) for row in rows]
    lines: list[tuple[Cell, ...]] = []
    for name, part in (("all jobs", found), ("jobs where the rule is wrong", wrong)):
        for who, column in (("ours", 0), ("most replicas, largest micro-batch", 1)):
            values = [row[column] for row in part]
            lines.append((name, len(part), who, *_shares(values)))
    return Table(
        title="Regret of the chosen plan, tensor degree 1",
        columns=("jobs", "number", "choice", "best chosen", "mean", "95th percentile", "worst"),
        rows=lines,
        notes=(
            f"Step time of all {len(rows)} plans: error {statistics.median(errors):.1%} median, "
            f"{float(np.percentile(errors, 95)):.1%} at the 95th percentile, {max(errors):.1%} at worst.",
            "The constants are fitted to plans of other models (width or depth), never to the job that is scored.",
            left_out,
        ),
    )


def _shares(values: Sequence[float]) -> tuple[Cell, ...]:
    if not values:
        return (None,) * 4
    share = f"{sum(value == 0 for value in values)} of {len(values)}"
    return (share, *(f"{x:.2%}" for x in (statistics.fmean(values), np.percentile(values, 95), max(values))))


def unscored(folder: Path) -> str:
    """What is left out, and why."""
    every = vtrain.degrees(folder)
    single, multi = every["single.csv"], every.get("multi.csv", [])
    scored = single.count(1)
    return (
        f"Of {len(single) + len(multi)} measured plans {scored} are scored. Not scored: {len(single) - scored} on one "
        f"node of a tensor degree above 1, which our plans do not have, and all {len(multi)} over several nodes "
        f"({multi.count(1)} of tensor degree 1): the all-reduce tables end at {GPUS_OF_A_NODE} GPUs of one node, nothing "
        "tells what a link between nodes gave there, and to fit it to those plans would be to score what was fitted."
    )


def sums_table(folder: Path) -> Table:
    """The ring of the cost model beside the tables; of every number of GPUs by the tables of the others."""
    tables = vtrain.all_reduces(folder)
    lines: list[tuple[Cell, ...]] = []
    for gpus, table in tables.items():
        wire = vtrain.link({other: rows for other, rows in tables.items() if other != gpus})
        machines = vtrain.cluster(gpus, wire)
        everyone = spread(machines, slots(machines))
        errors = [sum_s(machines, everyone, int(size)) / s - 1 for size, s in table.tolist()]
        small = [abs(e) for e, (size, _) in zip(errors, table.tolist(), strict=True) if size < 16 * 2**20]
        large = [abs(e) for e, (size, _) in zip(errors, table.tolist(), strict=True) if size >= 16 * 2**20]
        lines.append(
            (
                gpus,
                len(errors),
                f"{statistics.median(small):.1%}",
                f"{statistics.median(large):.1%}",
                f"{max(map(abs, errors)):.1%}",
            )
        )
    return Table(
        title="NCCL all-reduce on A100: the cost model's ring, latency and bandwidth from the other tables",
        columns=("GPUs", "sizes", "median error below 16 MiB", "from 16 MiB on", "at worst"),
        rows=lines,
    )


def missed(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns what was missed of the three aims, from the row of our choice over all jobs."""
    ours = zip(AIMS.items(), rows[0][4:], strict=True)
    return tuple(
        sentence
        for (name, aim), share in ours
        if share is not None
        for sentence in above(f"The regret ({name})", [("", float(str(share).rstrip("%")))], aim, " %")
    )


def run(quick: bool) -> Result:
    folder = public.folder("vtrain")
    claim = (
        "Aim: mean regret 1 %, 95th percentile 5 %, worst 10 %; the trivial rule has 2.9, 18.7 and 20.3 %."
    )
    if folder is None:
        return Result(name="vtrain", claim=f"{claim} {public.absent('vtrain')}", tables=[])
    wire = vtrain.link(vtrain.all_reduces(folder))
    rows = vtrain.measured(folder)
    if quick:
        jobs = sorted({row.job for row in rows})[::3]
        rows = [row for row in rows if row.job in jobs]
    found = regret_table(rows, wire, unscored(folder))
    return Result(name="vtrain", claim=claim, missed=missed(found.rows), tables=[found, sums_table(folder)])


if __name__ == "__main__":
    main(run)
