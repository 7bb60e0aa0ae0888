"""Torch's own operators, each between two convolutions on shards: exact, gathered around, or refused before they run.

python -m benchmarks operators --journal=operators.jsonl --seconds=500     goes on where it was stopped
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Result, Table, main
from tests.runtime.spatial import operators

ROOT = Path(__file__).parents[1]
SHARE = 380 / 434  # of the operators that have such samples, which shards are to be exact for
SHARDS, AROUND, REFUSED = "exact on shards", "gathered around", "refused"
WRONG, CRASHED = "wrong", "a traceback"
NONE = "no samples"
COLUMNS = ("on 2 and 3 shards and on 2x2", "operators", "names")


class Ended(NamedTuple):
    """How the samples of an operator ended over all grids."""

    how: str  # one of the words above
    checks: int = 0  # samples times grids
    said: str = ""  # by what refuses it, or what is wrong
    seconds: float = 0.0


def judged(name: str) -> Ended:
    """Returns how an operator ends: the worst of its samples over all grids."""
    try:
        found = list(operators.judged(name))
    except AssertionError as wrong:
        return Ended(WRONG, said=str(wrong))
    except Exception as error:  # whatever it is: neither exact nor refused
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Ended(CRASHED, said=f"{type(error).__name__} in {Path(place.filename).name}: {error}")
    if refusals := [x.ended for x in found if x.refused]:
        return Ended(REFUSED, len(found), refusals[0])
    if not found:
        return Ended(NONE)
    return Ended(SHARDS if all(x.ended == operators.SHARDS for x in found) else AROUND, len(found))


@dataclass(frozen=True)
class Journal:
    """What was judged so far, by operator; no further one is begun once the time is over."""

    path: Path | None = None
    end_s: float = math.inf

    def known(self) -> dict[str, Ended]:
        there = self.path is not None and self.path.exists()
        lines = self.path.read_text().splitlines() if there and self.path is not None else []
        return {name: Ended(*row) for name, row in map(json.loads, lines)}

    def judge(self, names: Sequence[str], judge: Callable[[str], Ended] = judged) -> dict[str, Ended]:
        """Returns how operators end, as far as there is time; those that were judged before are not judged again."""
        known = self.known()
        for name in names:
            if name in known or time.monotonic() > self.end_s:
                continue
            start = time.perf_counter()
            known[name] = judge(name)._replace(seconds=time.perf_counter() - start)
            print(f"{name}: {known[name].how} {known[name].said}", file=sys.stderr, flush=True)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([name, known[name]]) + "\n")
        return {name: known[name] for name in names if name in known}


def run(quick: bool) -> Result:
    """Returns how each operator of torch ends that has a gradient in fp64 and samples of three to five dimensions.

    Args: a `quick` run takes every fiftieth operator.
    """
    return result_of(quick, Journal())


def result_of(quick: bool, journal: Journal) -> Result:
    """Returns what was judged; a part of it where the time of the journal was over before."""
    warnings.simplefilter("ignore")  # torch's own, of its samples
    names = sorted(operators.database())[:: 50 if quick else 1]
    before_s = sum(x.seconds for name, x in journal.known().items() if name in names)
    found = journal.judge(names)
    ended = {how: [name for name, x in found.items() if x.how == how] for how in (SHARDS, AROUND, REFUSED)}
    failed = {how: [name for name, x in found.items() if x.how == how] for how in (WRONG, CRASHED)}
    count = sum(map(len, ended.values())) + sum(map(len, failed.values()))
    exact = len(ended[SHARDS]) + len(ended[AROUND])
    checks = sum(x.checks for x in found.values())
    missed = [f"{len(bad)} operators: {how} ({', '.join(bad)})." for how, bad in failed.items() if bad]
    if exact < SHARE * count:
        missed.append(f"{exact} of {count} operators are exact; the aim is {SHARE:.0%}.")
    rows = [
        (how, len(those), ", ".join(those) if how != SHARDS else "")
        for how, those in {**ended, **failed}.items()
    ]
    refusals = [
        (name, x.said.replace(f"{ROOT}/", "").replace("|", "/"))
        for name, x in found.items()
        if x.how == REFUSED
    ]
    return Result(
        name="operators",
        claim="Torch's own operators between convolutions are exact on shards, or through a gather around them, or "
        f"refused before they run: none is wrong, and {SHARE:.0%} are exact.",
        missed=tuple(missed),
        tables=[
            Table(
                title=f"{count} operators of torch between convolutions: {checks} checks, {exact} operators exact",
                columns=COLUMNS,
                rows=list(rows),
                notes=(
                    f"Of {len(found)} operators with a gradient in fp64, {len(found) - count} have no samples of three to "
                    "five dimensions, or draw their numbers.",
                    "Exact is within 1e-12 of one process: the output, and the gradients of the input and of all "
                    "parameters.",
                    "An operator is gathered around, or refused, where one of its samples is.",
                ),
            ),
            Table(title="Refusals", columns=("operator", "message"), rows=list(refusals)),
        ],
        seconds=before_s,
        part=len(found) < len(names),
    )


def command(argv: Sequence[str]) -> None:
    """Runs the benchmark; with options of its own, from a journal and for a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--journal", type=Path, help="operators as they are judged; those in it are not judged again"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after which no further operator is begun"
    )
    options, rest = parser.parse_known_args(argv)
    journal = Journal(options.journal, time.monotonic() + options.seconds)
    if len(rest) < len(argv):
        main(lambda quick: result_of(quick, journal), rest)
    else:
        main(run)


if __name__ == "__main__":
    command(sys.argv[1:])
