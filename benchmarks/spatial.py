"""Operations on shards: exact in every case, and what sharing a sample costs over computing the same parts alone.

The first table runs every case over threads in fp64, the second trains networks under splits in space and beside the
other axes in processes; `benchmarks.sharing` times the rest.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from math import prod
from operator import itemgetter
from pathlib import Path

from benchmarks import sharing
from benchmarks.harness import Cell, Result, Table, above, main
from planner.errors import BadInput
from tests.pool import Pool
from tests.runtime.spatial import matrix, threads
from tests.runtime.spatial.equality import Reference, differences, on_shards
from tests.runtime.spatial.variants import Variant, variants

EXACT = 1e-12


def run(quick: bool) -> Result:
    tables = [_exactness(quick), _networks(quick), *sharing.tables(quick)]
    return Result(
        name="spatial",
        claim="Every operation on shards equals one process within 1e-12 in fp64 or is refused by name before it "
        "runs; sharing costs at most 5 % over the same shards alone for a CosmoFlow trunk and a U-Net, 10 % for a "
        "large conv3d, 50 % for a small one.",
        missed=missed(*(table.rows for table in tables)),
        tables=tables,
    )


Rows = Sequence[tuple[Cell, ...]]


def missed(operations: Rows, networks: Rows, overheads: Rows, faster: Rows) -> tuple[str, ...]:
    """Returns what was missed, from the rows of the four tables; the last of the first is of all operations."""
    return (
        *above("The number of wrong operation cases", [("", operations[-1][3])], 0),
        *above(
            "The number of networks that differ from one process",
            [("", sum(not row[5] for row in networks))],
            0,
        ),
        *sharing.missed(overheads, faster),
    )


def _exactness(quick: bool) -> Table:
    chosen = list(variants())
    if quick:
        chosen = random.Random(1).sample(chosen, 60)
    count: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    worst: dict[str, float] = defaultdict(float)
    latest: tuple[tuple[str, str], Reference] | None = None
    print(f"{len(chosen)} operation cases ...", file=sys.stderr, flush=True)
    for variant in chosen:
        key = (variant.case.name, variant.parts)
        if latest is None or latest[0] != key:
            latest = (key, variant.reference())
        label = f"{variant.parts}, {'x'.join(map(str, variant.grid))}"
        outcome, apart = _outcome(variant, latest[1])
        count[label][outcome] += 1
        worst[label] = max(worst[label], apart)
    rows: list[tuple[Cell, ...]] = [(label, *count[label], worst[label]) for label in sorted(count)]
    rows.append(("all", *(sum(row[i] for row in count.values()) for i in range(3)), max(worst.values())))
    return Table(
        title="Operation cases against one process, fp64",
        columns=("parts and ranks", "exact", "refused by name", "wrong", "largest relative difference"),
        rows=rows,
        notes=("Output, input gradients, parameter gradients and running statistics.",),
    )


def _networks(quick: bool) -> Table:
    """Five losses of every network under every hybrid of axes, in processes, against one process."""
    light = [case for case in matrix.CASES if case[0] in ("cosmoflow", "unet3d")]
    cases = random.Random(1).sample(light, 3) if quick else matrix.CASES
    rows: list[tuple[Cell, ...]] = []
    for network, beside in groupby(cases, key=itemgetter(0)):
        pool = Pool(["torch", "tests.runtime.spatial.jobs"])  # workers keep what they captured
        try:
            for _, hybrid in beside:
                print(f"{network}, {hybrid} ...", file=sys.stderr, flush=True)
                with tempfile.TemporaryDirectory() as folder:
                    found = matrix.apart(network, hybrid, pool, Path(folder))
                rows.append((network, hybrid, found.first, found.later, found.rounding, found.equal))
        finally:
            pool.close()
    return Table(
        title=f"Networks on shared samples in the runtime, losses of {matrix.STEPS} steps, fp64, relative to one process",
        columns=("network", "ranks", "first loss", "worst loss", "of one rounding alone", "equal"),
        rows=rows,
        notes=("A rounding of the starting weights is tried where losses are more than 1e-12 apart.",),
    )


def _outcome(variant: Variant, ref: Reference) -> tuple[int, float]:
    """0 exact, 1 refused, 2 wrong; and the largest difference."""
    try:
        how = variant.analysed(ref)
    except BadInput:
        return (1, 0.0) if variant.case.refused else (2, float("inf"))
    made = threads.run(prod(variant.grid), lambda wire: on_shards(ref, variant.grid, how, wire))
    apart = max(differences(ref, how, made, variant.grid).values())
    return (0 if apart < EXACT and not variant.case.refused else 2), apart


if __name__ == "__main__":
    main(run)
