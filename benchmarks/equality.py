"""Training under plans beside the same in one process: every family, depth and number of micro-batches, real models.

The tests of the repository take a sample of these by seed; this is all of them. Each plan trains for five steps in
processes over gloo. The reference is the captured graph in one process with the same micro-batches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.harness import Cell, Result, Table, above, main
from planner.errors import BadInput
from planner.plan import Plan
from planner.schedule import FAMILIES, generate
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime import compare
from tests.runtime.compare import Distance
from tests.runtime.plans import plan_for

HERE = "tests/runtime/workloads/"
STEPS = 5
TOLERANCE, DOUBLE = 1e-6, 1e-12  # relative to the largest element of a tensor
SMALL: tuple[tuple[str, dict[str, str], float], ...] = (
    (HERE + "mlp.py", {"layers": "9"}, TOLERANCE),
    (HERE + "branches.py", {"double": "True"}, DOUBLE),
)
LARGE: tuple[tuple[str, dict[str, str], float], ...] = (
    (HERE + "gpt2.py", {"size": "tiny", "seq": "16"}, TOLERANCE),
    (HERE + "bert.py", {"size": "tiny", "dropout": "0", "seq": "16"}, TOLERANCE),
    (HERE + "lstm.py", {"size": "tiny", "layers": "6"}, TOLERANCE),
    (HERE + "unet3d.py", {"size": "tiny"}, TOLERANCE),
    (HERE + "hf_llama.py", {}, TOLERANCE),
    (HERE + "monai_unet.py", {}, TOLERANCE),
    (HERE + "resnet50.py", {"side": "64"}, TOLERANCE),
)


@dataclass(frozen=True)
class Case:
    workload: str
    arguments: dict[str, str]
    tolerance: float
    family: str
    workers: int
    micros: int


def cases(quick: bool) -> Iterator[Case]:
    """Of a depth D, as many micro-batches as D, twice that, and an odd number, where the family takes it."""
    for (workload, arguments, tolerance), family, workers in product(
        SMALL[1:] if quick else (*SMALL, *LARGE), sorted(FAMILIES), (2,) if quick else (2, 3, 4)
    ):
        for micros in sorted({workers, 2 * workers, 2 * workers + 1}):
            try:
                generate(family, workers=workers, micros=micros)
            except BadInput:
                continue
            yield Case(workload, arguments, tolerance, family, workers, micros)


def compared(pool: Pool, case: Case) -> tuple[Plan, Distance]:
    _, captured = captured_of(case.workload, case.arguments, 2)
    plan = plan_for(
        captured.graph,
        case.workload,
        arguments=case.arguments,
        family=case.family,
        workers=case.workers,
        micros=case.micros,
    )
    with tempfile.TemporaryDirectory() as folder:
        have = compare.run(pool, plan, Path(folder), steps=STEPS)
        return plan, compare.distance(compare.expected(plan, Path(folder), steps=STEPS), have)


def row(name: str, found: list[tuple[Case, Plan, Distance]]) -> tuple[Cell, ...]:
    single = [apart for _, plan, apart in found if len(plan.schedule.place) == 1]
    alike = sum(apart.loss == 0 and not any(apart.grads.values()) for apart in single)
    worst = max(apart.loss for _, _, apart in found)
    grads = max(max(apart.grads.values()) for _, _, apart in found)
    after = max(max(apart.after.values()) for _, _, apart in found)
    over = sum(max(apart.loss, *apart.grads.values()) > case.tolerance for case, _, apart in found)
    return name, len(found), len(single), alike, worst, grads, after, over


def table(quick: bool) -> Table:
    by_model: dict[str, list[tuple[Case, Plan, Distance]]] = {}
    pool = Pool(["torch", "runtime.train.training", "tests.runtime.warm"])
    try:
        for case in cases(quick):
            by_model.setdefault(Path(case.workload).stem, []).append((case, *compared(pool, case)))
    finally:
        pool.close()
    return Table(
        title=f"{STEPS} steps under plans and in one process",
        columns=(
            "model",
            "plans",
            "of one pipe",
            "of these to the bit",
            "loss apart, most",
            "a gradient, most",
            "a weight after all steps, most",
            "beyond tolerance",
        ),
        rows=[row(name, found) for name, found in by_model.items()],
        notes=(
            "Apart: the largest difference over a tensor, over its largest element. Tolerance of losses and gradients: "
            "1e-6, of branches (in double precision) 1e-12. To the bit: losses of all steps and every gradient of the "
            "first, tied weights too.",
        ),
    )


def missed(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns what was missed: plans of one pipe that are not equal to the bit, and plans beyond tolerance."""
    apart = [(str(name), int(single or 0) - int(alike or 0)) for name, _, single, alike, *_ in rows]
    differ = ", ".join(f"{name} {count}" for name, count in apart if count)
    pipes = sum(int(row[2] or 0) for row in rows)
    total, beyond = sum(count for _, count in apart), sum(int(row[7] or 0) for row in rows)
    bits = f"{total} of {pipes} plans of one pipe are not equal to the bit ({differ}); {beyond} plans are beyond tolerance."
    rest = above("The number of plans beyond tolerance", ((str(row[0]), row[7]) for row in rows), 0)
    return (*((bits,) if total else ()), *rest)


def run(quick: bool) -> Result:
    found = table(quick)
    return Result(
        name="equality",
        claim="Training under any plan is that of one process: to the bit in one pipe, to rounding where sums are reordered.",
        missed=missed(found.rows),
        tables=[found],
    )


if __name__ == "__main__":
    main(run)
