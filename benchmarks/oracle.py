"""The solver beside exhaustion: random small questions by seed, every shape and cut of each judged by the simulator.

    python -m benchmarks.oracle --instances 2000 --first 0

A seed that differs is named, so that it can be looked at again: `--instances 1 --first SEED`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from benchmarks.harness import Cell, Result, Table, above, main, markdown
from planner.plan import Plan
from tests.planner.milp.random_cases import (
    FROZEN,
    Case,
    answer,
    beaten,
    branched,
    case,
    crowded,
    differences,
    in_own_order,
    low_limits,
    pruned,
    shared,
    unasked,
)

CLAIM = (
    "On random small questions (chains and graphs with skips and branches, every family with a frozen order, tight and "
    "ample memory, barrier and rolling updates; three families named, or none; replicas that may share gradients or parameters, where no plan of replicas alone is faster either; weights of which random shares are kept) the plan's time equals the best of an "
    "exhaustive search that shares no code with the solver, or is less by an order listed anew where no family was "
    "named, and the certificate says so: no differences. Asked again, and beside it a model with towers, branches, heads or "
    "skips, with every threshold of the solver so low that the question crosses it, no plan beats the bound."
)
INSTANCES, QUICK = 2000, 30
_KINDS, _SHARED, _PRUNED = 5, 3, 4
_TOLD = 50  # questions between two lines of progress


def kind(given: Case, plan: Plan | None) -> str:
    if plan is None:
        return "fits nowhere"
    again = ", recomputing" if any(stage.recompute for stage in plan.stages) else ""
    depth = "one stage" if len(plan.stages) == 1 else f"{len(plan.stages)} stages of {plan.schedule.family}"
    held = {stage.shard.what for stage in plan.stages if stage.shard is not None}
    parts = "".join(f", {what} in parts" for what in sorted(held))
    kept = "" if plan.kept is None else ", pruned"
    return f"{given.update}: {depth}{again}{parts}{kept}"


def question(seed: int) -> Case:
    """Of five in a row one names no family, one has several stages on workers that lack memory, one replicas that share,
    and one pruned weights."""
    return {0: unasked, 2: crowded, _SHARED: shared, _PRUNED: pruned}.get(seed % _KINDS, case)(seed)


def judged(first: int, count: int) -> Result:
    kinds: Counter[str] = Counter()
    families: Counter[str] = Counter()
    wrong: list[tuple[Cell, ...]] = []
    solving = 0.0
    for seed in range(first, first + count):
        given = question(seed)
        start = time.process_time()
        plan = answer(given)
        solving += time.process_time() - start
        kinds[kind(given, plan)] += 1
        families.update(given.families)
        wrong += [(seed, each) for each in differences(given, plan)]
        if seed % _KINDS == _SHARED:
            wrong += [(seed, each) for each in beaten(given, plan)]
        for hard in (given, branched(seed)):
            with low_limits():
                found = answer(hard)
            wrong += [(seed, f"limits low: {each}") for each in in_own_order(hard, found)]
        if (seed + 1 - first) % _TOLD == 0:
            print(
                f"{seed + 1 - first} of {count} questions, {len(wrong)} differences",
                file=sys.stderr,
                flush=True,
            )
    rows: list[tuple[Cell, ...]] = [(name, number) for name, number in sorted(kinds.items())]
    least = min(families[name] for name in FROZEN)
    return Result(
        name="oracle",
        claim=CLAIM,
        missed=above("The number of questions that differ", [("", len({row[0] for row in wrong}))], 0),
        tables=[
            Table(
                title="differences",
                columns=("seed", "difference"),
                rows=wrong,
                notes=(
                    f"{len({row[0] for row in wrong})} of {count} questions differ, seeds {first} to {first + count - 1}; "
                    f"each of the {len(FROZEN)} families was asked for in at least {least} of them, and every fifth "
                    f"names none; the solver took "
                    f"{solving / count:.2f} CPU seconds a question",
                ),
            ),
            Table(title="plans found", columns=("plan", "questions"), rows=rows),
        ],
    )


def run(quick: bool) -> Result:
    return judged(0, QUICK if quick else INSTANCES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--instances", type=int, help="so many questions")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given, _ = parser.parse_known_args()
    if given.instances is None:
        main(run)
    else:
        print(markdown(judged(given.first, given.instances)))
