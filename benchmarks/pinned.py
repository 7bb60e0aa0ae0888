"""Free beats pinned: no pin of a question gives a faster plan than the question without it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.solver import INSTANCES, P100, Instance, captured, chain, flat, shipped
from planner.cluster import with_nodes
from planner.errors import Infeasible
from planner.milp import Question, solve, solve_with_search
from planner.milp.configurations.configurations import Configuration
from planner.milp.search.candidates import ranked

CLAIM = (
    "None of the 20 best configurations of a question, and none of 50 drawn ones, gives a plan when pinned that is more "
    "than 0.5 % faster than the answer without pins; where the gap is 0, none is faster at all."
)
BEST, DRAWN, ALLOWED = 20, 50, 0.5
H100 = "H100-80GB"
VNET = str(Path(__file__).parent / "adapters" / "vnet.py")
MORE = (
    Instance(
        name="GPT-2 medium, 16 devices of two nodes",
        profile=captured("gpt2", H100, (1, 2, 4), size="medium"),
        cluster=shipped("sixteen-nodes"),
        batch=64,
        fix={"devices": 16},
    ),
    Instance(
        name="chain of 24 layers, a batch of 7",
        profile=chain(24, P100, (1,)),
        cluster=flat(4, P100),
        batch=7,
        quick=True,
    ),
    Instance(
        name="chain of 12 layers, rolling updates",
        profile=chain(12, P100, (1,)),
        cluster=flat(4, P100),
        batch=8,
        fix={"update": "rolling"},
        quick=True,
    ),
    Instance(
        name="chain of 24 layers, one device",
        profile=chain(24, P100, (1, 2)),
        cluster=flat(1, P100),
        batch=8,
        quick=True,
    ),
    Instance(
        name="V-Net of 448 cubed with grids, tight memory, 128 devices",
        profile=captured(
            VNET, H100, (1,), precision="bf16", grids=((2,), (4,), (2, 2), (2, 2, 2)), width="32"
        ),
        cluster=lambda: with_nodes(shipped("h100x8")(), 16),
        batch=64,
    ),
)


def pins_of(shape: Configuration) -> dict[str, object]:
    return {
        "data": shape.data,
        "pipeline": shape.workers,
        "micro": shape.micro,
        "chunks": shape.chunks,
        "shard": shape.shard,
        "spatial": "x".join(map(str, shape.grid)) or 1,
    }


def row(instance: Instance) -> tuple[Cell, ...]:
    question = Question(
        profile=instance.profile(),
        cluster=instance.cluster(),
        batch=instance.batch,
        fix=instance.fix,
        schedules=instance.schedules,
    )
    free, found = solve_with_search(question.instance())
    met = sorted((t.answer.ns, t.shape) for t in found.tried.values() if t.answer is not None)
    every = ranked(found.instance)
    drawn = random.Random(0).sample(every, min(DRAWN, len(every)))
    best, asked, seen = free.prediction.step_ns, 0, set[str]()
    for shape in [*(shape for _, shape in met[:BEST]), *drawn]:
        if str((shape.family, pins_of(shape))) not in seen:
            seen.add(str((shape.family, pins_of(shape))))
            pinned = replace(question, fix={**question.fix, **pins_of(shape)}, schedules=(shape.family,))
            try:
                best, asked = min(best, solve(pinned).prediction.step_ns), asked + 1
            except Infeasible:
                continue
    gained = (free.prediction.step_ns / best - 1) * 100
    gap = 0.0 if free.certificate is None else free.certificate.gap * 100
    return instance.name, asked, free.prediction.step_ns / 1e6, best / 1e6, gained, gap


def run(quick: bool) -> Result:
    rows = [row(each) for each in (*INSTANCES[:-1], *MORE) if each.quick or not quick]
    missed = above("What a pin gains", [(str(r[0]), r[4]) for r in rows], ALLOWED, " %")
    missed += above("What a pin gains at gap 0", [(str(r[0]), r[4]) for r in rows if r[5] == 0], 0, " %")
    table = Table(
        title="free and pinned",
        columns=("question", "pins", "free, ms", "best pinned, ms", "gained by a pin, %", "gap, %"),
        rows=rows,
    )
    return Result(name="pinned", claim=CLAIM, missed=tuple(missed), tables=[table])


if __name__ == "__main__":
    main(run)
