"""The matrices of which the tests draw a sample by seed, every case of them: as `make test` runs them, and no test less."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Result, Table, main
from tests import budget

ROOT = Path(__file__).parents[1]
DRAWS = "from tests.draws import"
COUNTED = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def files() -> list[Path]:
    """Returns the files of tests that draw a sample; torch's operators are counted by `benchmarks.operators`."""
    costly = {ROOT / budget.file(test) for test in budget.known()}
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if DRAWS in path.read_text())
    return sorted(path for path in costly.union(found) if path.name != "test_operators.py")


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


def run(quick: bool) -> Result:
    rows = []
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
        missed=tuple(f"{failed} cases of {name} failed." for name, _, _, failed in failing),
        tables=[
            Table(title="Cases", columns=("tests", "passed", "skipped", "failed"), rows=list(rows)),
        ],
    )


if __name__ == "__main__":
    main(run)
