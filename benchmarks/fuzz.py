"""Hostile files through the commands that read files: every one ends in a message of ours, or rightly works.

Right plans, clusters, profiles, calibrations, run folders, captured models, masks, checkpoints, layouts, logs, settings
and volumes are changed in one to three places by seed: values of other types and sizes, missing and repeated parts,
names that steer a terminal, torn lines, wrong arrays. Each changed file goes through one command. An exception that is
not ours, text that would reach a terminal raw, and a command that takes longer than the guard are faults.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import shardwright as sw
from benchmarks.harness import Result, Table, main
from benchmarks.mutants import KINDS, Seeds, judged, seeds

INPUTS, QUICK_INPUTS = 2000, 20  # of each kind


@dataclass(frozen=True)
class Fault:
    """A fault that a hostile input has shown, with the number that makes the input again."""

    kind: str
    number: int
    words: str
    what: str


def fuzzed(
    given: Seeds, folder: Path, numbers: Sequence[int]
) -> tuple[Counter[tuple[str, int]], list[Fault]]:
    """Sends one hostile input for each number through a command.

    Args: `folder` is for the inputs; a number always makes the same input.
    Returns: how often each kind of input ended in each status, and the faults.
    """
    seen: Counter[tuple[str, int]] = Counter()
    faults = []
    for number in numbers:
        kind = list(KINDS)[number % len(KINDS)]
        words = KINDS[kind](given, folder, random.Random(number))
        found = judged(words)
        seen[kind, found.status] += 1
        if found.fault:
            faults.append(Fault(kind, number, " ".join(words), found.fault))
    return seen, faults


def placeless(text: str) -> str:
    """Returns a text whose absolute paths are names alone: where they lay says nothing.

    Example: placeless("show /a/b/plan.yaml --cluster=x/y.yaml") is "show …/plan.yaml --cluster=x/y.yaml".
    """
    return re.sub(r"(?<![^\s=])/\S*/", "…/", text)


def run(quick: bool) -> Result:
    count = (QUICK_INPUTS if quick else INPUTS) * len(KINDS)
    costs = sw.profile("mlp", device="roofline:H100-80GB", micro=(1, 2), layers=4)
    with tempfile.TemporaryDirectory() as place:
        right, spoilt = Path(place) / "right", Path(place) / "spoilt"
        right.mkdir(), spoilt.mkdir()
        seen, faults = fuzzed(seeds(right, costs), spoilt, range(count))
    heads = {0: "worked", 1: "status 1", 2: "wrong input", 3: "infeasible", 4: "wrong plan"}
    rows = [
        (kind, *(seen[kind, status] for status in heads), sum(fault.kind == kind for fault in faults))
        for kind in KINDS
    ]
    tables = [
        Table(
            title="Hostile inputs by how their command ended",
            columns=("input", *heads.values(), "faults"),
            rows=rows,
        )
    ]
    if faults:
        listed = [tuple(placeless(str(x)) for x in asdict(fault).values()) for fault in faults[:50]]
        tables.append(Table(title="Faults", columns=("input", "number", "command", "what"), rows=listed))
    missed = (
        (f"{len(faults)} of {count:,} hostile inputs end in a fault, and the aim is none.",) if faults else ()
    )
    return Result(
        name="fuzz",
        claim="Whatever is wrong in a file that somebody hands over, the commands that read it end in one message of "
        f"ours, print nothing that steers a terminal, and end: {count:,} inputs of {len(KINDS)} kinds by seed, no faults.",
        tables=tables,
        missed=missed,
    )


if __name__ == "__main__":
    main(run)
