"""What `shardwright demo` prints here: two small models, planned and run on two processes. The README quotes it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import Result, Table, above, main

FOLDERS = ("plan, trace", "to look at")  # lines that name one, another each time


AIM_S = 60


def printed() -> list[str]:
    command = [sys.executable, "-m", "shardwright", "demo"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.strip()]


def run(quick: bool) -> Result:
    start = time.perf_counter()
    lines = printed()
    took_s = time.perf_counter() - start
    return Result(
        name="demo",
        claim="Two models from capture to a measured run, in a minute.",
        missed=above("The demo", [("", took_s)], AIM_S, " s"),
        tables=[
            Table(
                title="As printed",
                columns=("line",),
                rows=[(f"`{line}`",) for line in lines if not line.startswith(FOLDERS)],
                notes=(f"{took_s:.0f} s in all.",),
            )
        ],
    )


if __name__ == "__main__":
    main(run)
