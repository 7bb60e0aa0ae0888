"""Runs every benchmark, each in its own process, and writes what they found to RESULTS.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Result, Table, markdown
from benchmarks.quoted import RESULTS, renew, sections

HERE = Path(__file__).parent
NOT_BENCHMARKS = {
    "__init__",
    "__main__",
    "candidates",
    "compute_stages",
    "harness",
    "on_cluster",
    "pool",
    "quoted",
    "slow_link",
}


def scripts() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def result_of(name: str, quick: bool) -> Result | str:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{name} failed: {done.stderr.strip().splitlines()[-1:]}"
    facts = json.loads(done.stdout)
    tables = [
        Table(**{**table, "columns": tuple(table["columns"]), "notes": tuple(table["notes"])})
        for table in facts.pop("tables")
    ]
    return Result(**facts, tables=tables)


def _there() -> dict[str, str]:
    """The sections of scripts that are still there, as they were written."""
    found = sections(RESULTS.read_text()) if RESULTS.exists() else {}
    return {name: f"## {name}{text.rstrip()}\n" for name, text in found.items() if name in scripts()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample of each, under a minute")
    parser.add_argument("only", nargs="*", help=f"of {', '.join(scripts())}")
    options = parser.parse_args()
    there, failed = _there(), 0
    parts = dict(there) if options.only else {}
    for name in options.only or scripts():
        print(f"{name} ...", file=sys.stderr, flush=True)
        result = result_of(name, options.quick)
        failed += isinstance(result, str)
        if isinstance(result, Result) and not result.tables and name in there:
            print(f"{result.claim} What it wrote before is kept.", file=sys.stderr)
            parts[name] = there[name]
        else:
            parts[name] = f"## {name}\n\n{result}\n" if isinstance(result, str) else markdown(result)
    text = "# Results\n\nWritten by `python -m benchmarks` (`make bench` runs all, whole); each section says on what machine, under what load and when.\n\n"
    ordered = [name for name in (*parts, *scripts()) if name in parts]
    RESULTS.write_text(text + "\n".join(parts[name] for name in dict.fromkeys(ordered)))
    if "demo" in parts:
        renew(HERE.parent / "README.md", parts["demo"])
    return failed


if __name__ == "__main__":
    sys.exit(main())
