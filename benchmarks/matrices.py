"""The matrices of which the tests draw a sample by seed, every case of them: as `make test` runs them, and no test less."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

from benchmarks.harness import Result, Table, main
from tests.runtime.spatial import operators

ROOT = Path(__file__).parents[1]
DRAWS = "from tests.draws import"
COUNTED = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def files() -> list[Path]:
    """Returns the files of tests that draw a sample; the operators of torch are counted here."""
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if DRAWS in path.read_text())
    return sorted(path for path in found if path.name != "test_operators.py")


def judged(path: Path, seed: str) -> dict[str, int]:
    """Returns how many tests of a file passed, failed and were skipped.

    Args: `seed` is a seed of the draws, or `all` for every case.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "SHARDWRIGHT_TEST_SEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = {what.rstrip("s"): int(count) for count, what in COUNTED.findall(done.stdout.splitlines()[-1])}
    return counts if done.returncode in (0, 5) else {"failed": 1, **counts}


SHARE = 380 / 434  # of torch's operators that shards are to be exact for


def operators_of_torch(quick: bool) -> tuple[Table, list[str]]:
    """Returns how torch's operators end between convolutions on shards, and what is wrong or too little of it.

    Args: a `quick` run takes every fiftieth operator.
    """
    warnings.simplefilter("ignore")  # torch's own, of its samples
    names = sorted(operators.database())[:: 50 if quick else 1]
    ended: dict[str, list[str]] = {"exact on shards": [], "gathered around": [], "refused": [], "wrong": []}
    checks = 0
    for name in names:
        try:
            found = list(operators.judged(name))
        except Exception as error:  # whatever it is: neither exact nor refused
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            ended["wrong"].append(name)
            continue
        checks += len(found)
        if any(x.refused for x in found):
            ended["refused"].append(name)
        elif found:
            shards = all(x.ended == operators.SHARDS for x in found)
            ended["exact on shards" if shards else "gathered around"].append(name)
    count = sum(map(len, ended.values()))
    rows = [
        (how, len(found), ", ".join(found) if how != "exact on shards" else "")
        for how, found in ended.items()
    ]
    title = f"{count} operators of torch between convolutions, {checks} checks"
    exact = len(ended["exact on shards"]) + len(ended["gathered around"])
    missed = [f"{len(ended['wrong'])} operators of torch are wrong on shards."] if ended["wrong"] else []
    if exact < SHARE * count:
        missed.append(f"{exact} of {count} operators of torch are exact on shards; the aim is {SHARE:.0%}.")
    return Table(title=title, columns=("on shards", "operators", "names"), rows=rows), missed


def run(quick: bool) -> Result:
    rows = []
    of_torch, missed = operators_of_torch(quick)
    for path in files()[: 2 if quick else None]:
        found = judged(path, "0" if quick else "all")
        failed = found.get("failed", 0) + found.get("error", 0)
        name = path.relative_to(ROOT / "tests").as_posix()
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        rows.append((name, found.get("passed", 0), found.get("skipped", 0), failed))
    failing = [row for row in rows if row[3]]
    return Result(
        name="matrices",
        claim="Every case of the matrices that tests draw from passes.",
        missed=(*missed, *(f"{failed} cases of {name} failed." for name, _, _, failed in failing)),
        tables=[
            Table(title="Cases", columns=("tests", "passed", "skipped", "failed"), rows=list(rows)),
            of_torch,
        ],
    )


if __name__ == "__main__":
    main(run)
