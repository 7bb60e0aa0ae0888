"""Free beats pinned: no pin of a question gives a faster plan than the question without it.

python -m benchmarks pinned --journal=pinned.jsonl --seconds=3600     goes on where it was stopped, for an hour
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Cell, Journal, Result, Table, above, main
from benchmarks.solver import INSTANCES, P100, Instance, captured, chain, flat, shipped
from planner.cluster import with_nodes
from planner.configurations.configurations import Configuration
from planner.errors import Infeasible
from planner.milp import Question, solve, solve_with_search
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


def solved_ns(question: Question) -> int | None:
    """Returns the nanoseconds of a step; None where nothing fits."""
    try:
        return solve(question).prediction.step_ns
    except Infeasible:
        return None


def row(instance: Instance, journal: Journal) -> tuple[tuple[Cell, ...], int]:
    """Returns the row of a question, and how many of its pins the time has not sufficed for."""
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
    known, asked = journal.known(), dict[str, int | None]()
    pins = {
        f"{instance.name}: {shape.family} {pins_of(shape)}": shape
        for shape in (*(shape for _, shape in met[:BEST]), *drawn)
    }
    for key, shape in pins.items():
        if key not in known and not journal.over:
            pinned = replace(question, fix={**question.fix, **pins_of(shape)}, schedules=(shape.family,))
            known[key] = journal.note(key, solved_ns(pinned))
        if key in known:
            asked[key] = known[key]
    took = [ns for ns in asked.values() if ns is not None]
    own = free.prediction.step_ns
    best = min([own, *took])
    gap = 0.0 if free.certificate is None else free.certificate.gap * 100
    return (instance.name, len(took), own / 1e6, best / 1e6, (own / best - 1) * 100, gap), len(pins) - len(
        asked
    )


def run(quick: bool) -> Result:
    return result_of(quick, Journal())


def result_of(quick: bool, journal: Journal) -> Result:
    """Returns what pins gain; of a part of them where the time of the journal was over before."""
    rows, left = list[tuple[Cell, ...]](), 0
    chosen = [each for each in (*INSTANCES[:-1], *MORE) if each.quick or not quick]
    for number, each in enumerate(chosen):
        if journal.over:
            left += len(chosen) - number
            break
        found, unasked = row(each, journal)
        rows.append(found)
        left += unasked > 0
    gained = [(str(r[0]), r[4]) for r in rows]
    proved = [(str(r[0]), r[4]) for r in rows if r[5] == 0]
    missed = [
        *above("What a pin gains", gained, ALLOWED, " %"),
        *above("What a pin gains at gap 0", proved, 0, " %"),
    ]
    if left:
        missed.append(f"{left} of {len(chosen)} questions were not asked with all pins; `--journal` goes on.")
    table = Table(
        title="free and pinned",
        columns=("question", "pins", "free, ms", "best pinned, ms", "gained by a pin, %", "gap, %"),
        rows=rows,
    )
    return Result(name="pinned", claim=CLAIM, missed=tuple(missed), tables=[table])


def command(argv: Sequence[str]) -> None:
    """Runs the benchmark; with options of its own, from a journal and for a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--journal", type=Path, help="answers as they come; pins in it are not asked again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further pin is asked")
    options, rest = parser.parse_known_args(argv)
    if len(rest) < len(argv):
        journal = Journal(options.journal, time.monotonic() + options.seconds)
        main(lambda quick: result_of(quick, journal), rest)
    else:
        main(run)


if __name__ == "__main__":
    command(sys.argv[1:])
