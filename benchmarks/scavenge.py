"""What idle nodes are worth: the decision over whole logs, against equal shares and the ceiling, and how long it takes.

The public log is that of Summit which BFTrainer's authors published. It is fetched, or read from a copy of their folder
`dataset` that the variable SHARDWRIGHT_BFTRAINER names. Where it cannot be had, its tables say "not run".
The synthetic logs have the published statistics: 8 % of nodes idle, more than half of the spells shorter than ten
minutes.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from random import Random

from benchmarks import summit
from benchmarks.harness import Cell, Result, Table, above, below, main
from planner.errors import BadInput
from planner.scavenge import (
    Curve,
    ElasticJob,
    Holding,
    IdleLog,
    Spell,
    decide_by_milp,
    equal_share,
    gain,
    knapsack,
    log_of_spells,
    planned,
    repeated,
    replay,
)

COPY = "SHARDWRIGHT_BFTRAINER"
AIM_S, AIM_AHEAD, AIM_EFFICIENCY = 0.5, 0.07, 0.88
LOOKS = (10.0, 60.0, 120.0, 300.0, 600.0)
AT_ONCE = 10
# The ends of a published job (ShuffleNet, images/s on 1 and 64 nodes), with a power law between: for synthetic logs.
ONE, LAST, SIZES = 2831.0, 145_082.0, 64


def power_law() -> ElasticJob:
    power = log(LAST / ONE) / log(SIZES)
    curve = Curve(rates={nodes: ONE * nodes**power for nodes in range(1, SIZES + 1)})
    return ElasticJob(name="shufflenet", curve=curve.in_units("speed-up"))


def synthetic(seed: int, nodes: int, days: float) -> IdleLog:
    """Draws a log: each node is busy for hours, then idle for minutes, and now and then idle for long."""
    draw, seconds = Random(seed), days * 86400
    spells = []
    for node in range(nodes):
        now = -draw.uniform(0, 7200)
        while now < seconds:
            now += draw.lognormvariate(8.6, 1.0)
            end = now + draw.lognormvariate(6.15, 1.15)
            if now < seconds and end > 0:
                spells.append(Spell(node, now, end))
            now = end
    return log_of_spells([f"n{i}" for i in range(nodes)], spells, 0.0, seconds)


def table_of(log: IdleLog, title: str, jobs: Sequence[ElasticJob], looks: Sequence[float] = LOOKS) -> Table:
    """Replays a log under every policy."""
    lengths = sorted(spell.end_s - spell.begin_s for spell in log.spells)
    found = {"equal share": replay(log, jobs, equal_share)}
    found |= {f"knapsack, {seconds:g} s": replay(log, jobs, planned(seconds)) for seconds in looks}
    found["ceiling"] = replay(log, jobs, planned(), free=True)
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            round(row.efficiency, 4),
            round(row.share(row.lost_to_rescaling), 4),
            round(row.share(row.lost_to_preemption), 4),
            row.rescales,
            row.preemptions,
            round(row.unused_node_s / log.idle_node_s, 4),
        )
        for name, row in found.items()
    ]
    short = sum(length < 600 for length in lengths) / len(lengths)
    notes = (
        f"{len(log.nodes)} nodes, {(log.end_s - log.begin_s) / 86400:.1f} days, {len(lengths)} spells; "
        f"{log.average:.1f} nodes idle on average ({log.average / len(log.nodes):.1%}); {short:.0%} of spells are "
        f"shorter than ten minutes. {len(jobs)} jobs at a time.",
        "What the ceiling leaves unused lies beyond what so many jobs can take: no policy has it.",
    )
    return Table(
        title=title,
        columns=(
            "policy",
            "efficiency",
            "lost to rescaling",
            "to preemption",
            "rescales",
            "preempted",
            "unused",
        ),
        rows=rows,
        notes=notes,
    )


def drawn(seed: int) -> tuple[list[Holding], int, float]:
    draw = Random(seed)
    holdings = []
    for j in range(draw.randint(1, 6)):
        sizes = draw.sample(range(1, 12), draw.randint(1, 5))
        job = ElasticJob(
            name=f"j{j}", curve=Curve(rates={size: draw.uniform(0.5, 1) * size**0.8 for size in sizes})
        )
        nodes = draw.choice([0, *sizes])
        holdings.append(Holding(job=job, nodes=nodes, worth=job.worth(nodes)))
    return holdings, sum(h.nodes for h in holdings) + draw.randint(0, 10), draw.choice([5.0, 30.0, 120.0])


def two_ways(count: int) -> Table:
    """Compares the knapsack with the same problem as a program."""
    worst, own_s, milp_s = 0.0, list[float](), list[float]()
    for seed in range(count):
        holdings, idle, ahead = drawn(seed)
        start = time.process_time()
        sizes = knapsack(holdings, idle, ahead)
        own_s.append(time.process_time() - start)
        start = time.process_time()
        other = [nodes for nodes, _ in decide_by_milp(holdings, {"": idle}, ahead)]
        milp_s.append(time.process_time() - start)
        totals = [sum(gain(h, n, ahead) for h, n in zip(holdings, s, strict=True)) for s in (sizes, other)]
        worst = max(worst, abs(totals[0] - totals[1]) / max(1.0, abs(totals[1])))
    return Table(
        title="The knapsack and the same decision as a program",
        columns=("instances", "largest relative difference", "knapsack ms", "program ms"),
        rows=[(count, worst, 1e3 * statistics.median(own_s), 1e3 * statistics.median(milp_s))],
        notes=("Medians of processor time.",),
    )


def large() -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for jobs, idle, most in ((10, 640, 64), (100, 1000, 64), (100, 1000, 1000)):
        draw = Random(1)
        holdings = []
        for j in range(jobs):
            power = draw.uniform(0.7, 0.95)
            job = ElasticJob(name=f"{j}", curve=Curve(rates={k: k**power for k in range(1, most + 1)}))
            nodes = draw.randint(1, 9)
            holdings.append(Holding(job=job, nodes=nodes, worth=job.worth(nodes)))
        start = time.process_time()
        knapsack(holdings, idle)
        rows.append((jobs, idle, most, time.process_time() - start))
    return rows


def public(copy: Path | None, quick: bool) -> Iterator[Table]:
    """Yields the tables of the public log, or one that says why there are none.

    Args: `copy` is a folder with the authors' files; None fetches them.
    """
    try:
        whole = summit.log(copy, 1024)
        sets = {
            name: repeated(summit.jobs(copy, name), AT_ONCE) for name in (summit.SHUFFLENET, summit.IMAGENET)
        }
    except BadInput as error:
        columns, rows = ("policy", "efficiency"), [("all", "not run")]
        yield Table(
            title="The public log", columns=columns, rows=list[tuple[Cell, ...]](rows), notes=(str(error),)
        )
        return
    for name, jobs in sets.items():
        for days in (0.2,) if quick else (3.7, 14.9):
            title = f"The public log, {name.split('-')[0]} to {name.split('-')[1]}, {days} days"
            looks = LOOKS if days < 10 and not quick else (120.0,)
            yield table_of(whole.cut(seconds=days * 86400), title, jobs, looks)


def run(quick: bool) -> Result:
    jobs = repeated([power_law()], AT_ONCE)
    looks = (120.0,) if quick else LOOKS
    drawn_logs = [
        synthetic(seed, 128 if quick else 256, 0.5 if quick else 1.0) for seed in range(1 if quick else 2)
    ]
    ours = [
        table_of(each, f"Synthetic log, seed {seed}", jobs, looks) for seed, each in enumerate(drawn_logs)
    ]
    copy = os.environ.get(COPY)
    found = list(public(Path(copy) if copy else None, quick))
    tables = [*ours, *found]
    decided = Table(
        title="One decision",
        columns=("jobs", "nodes", "sizes of a job", "seconds"),
        rows=large(),
        notes=("Processor time.",),
    )
    return Result(
        name="scavenge",
        claim="Aims: 100 jobs on 1,000 nodes decided in 0.5 s; on the public log 0.88 of dedicated nodes over 14 days, and "
        "7 points more than equal shares.",
        missed=(
            *above("A decision", ((f"{row[2]} sizes", row[3]) for row in decided.rows), AIM_S, " s"),
            *_missed(found, quick),
        ),
        tables=[*tables, two_ways(50 if quick else 500), decided],
    )


def _missed(tables: Sequence[Table], quick: bool) -> tuple[str, ...]:
    """Returns what was missed on the public log; nothing is said of one that was not run whole."""
    by_name = {table.title: {str(row[0]): row[1] for row in table.rows} for table in tables if not quick}
    whole = {title: row for title, row in by_name.items() if "14.9" in title}
    lead = {
        title: float(row["knapsack, 120 s"] or 0) - float(row["equal share"] or 0)
        for title, row in whole.items()
    }
    return (
        *below(
            "Efficiency over 14 days",
            ((t, row["knapsack, 120 s"]) for t, row in whole.items()),
            AIM_EFFICIENCY,
        ),
        *below("The lead over equal shares", lead.items(), AIM_AHEAD),
    )


if __name__ == "__main__":
    main(run)
