"""Runs every benchmark, each in its own process, and writes what they found to RESULTS.md."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import MISSED, Result, Table, markdown
from benchmarks.quoted import RESULTS, renew, sections

HERE = Path(__file__).parent
NOT_BENCHMARKS = {
    "__init__",
    "__main__",
    "candidates",
    "compute_stages",
    "harness",
    "near_samples",
    "on_cluster",
    "pool",
    "quoted",
    "replay",
    "sharing",
    "slow_link",
    "summit",
    "two_rails",
}


def scripts() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def result_of(name: str, quick: bool, own: Sequence[str] = ()) -> Result | str:
    """Returns what a script has found, or why it found nothing.

    Args: `own` are options that only this script has.
    """
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else []), *own]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(command, cwd=HERE.parent, stdout=output, stderr=errors, check=False)
        output.seek(0)
        errors.seek(0)
        said, complained = output.read(), errors.read()
    if done.returncode:
        print(complained, end="", file=sys.stderr, flush=True)
        return f"{name} failed: {cause(done.returncode, complained)}"
    facts = json.loads(said.splitlines()[-1])  # what runs of a script say comes before
    tables = [
        Table(**{**table, "columns": tuple(table["columns"]), "notes": tuple(table["notes"])})
        for table in facts.pop("tables")
    ]
    return Result(**{**facts, "missed": tuple(facts.get("missed", ()))}, tables=tables)


def cause(status: int, complained: str) -> str:
    """Why a script gave no result: its own last words, or what ended it before it could say."""
    said = complained.strip().splitlines()[-1:]
    if status > 0:
        return said[0] if said else f"exit status {status}; it said nothing"
    number = signal.Signals(-status)
    memory = ", as the kernel does where memory runs out" if number is signal.SIGKILL else ""
    last = f"the last it said: {said[0]}" if said else "it said nothing"
    return f"ended by {number.name}{memory}; {last}"


def _there() -> dict[str, str]:
    """The sections of scripts that are still there, as they were written."""
    found = sections(RESULTS.read_text()) if RESULTS.exists() else {}
    return {name: f"## {name}{text.rstrip()}\n" for name, text in found.items() if name in scripts()}


HEADER = """# Results

Written by `python -m benchmarks` (`make bench` runs all, whole); each section says on what machine, under what load and when.
"""


def _write(parts: Mapping[str, str]) -> None:
    """Writes RESULTS.md after every script, so that one that takes the others with it leaves what they found."""
    RESULTS.write_text("\n".join([HEADER, missed(parts), *parts.values()]))


def missed(parts: Mapping[str, str]) -> str:
    """Returns the list of what was missed in all sections, with the oldest date that any of them was measured on.

    Args: `parts` are the sections of RESULTS.md by name, each as it is written there.
    """
    dates = [date for text in parts.values() for date in _DATE.findall(text)]
    since = f" (sections measured since {min(dates)})" if dates else ""
    items = [f"- {name}: {sentence}" for name, text in parts.items() for sentence in _missed_in(text)]
    return f"What was missed{since}:\n\n" + "\n".join(items or ["Nothing."]) + "\n"


_DATE = re.compile(r"^Measured in .*?: date (\d{4}-\d\d-\d\d)", re.MULTILINE)


def _missed_in(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(MISSED):
            yield line.removeprefix(MISSED).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample of each, under a minute")
    parser.add_argument(
        "only", nargs="*", help=f"of {', '.join(scripts())}; of one, its own options may follow"
    )
    options, own = parser.parse_known_args()
    if own and len(options.only) != 1:
        parser.error(f"{own[0]} is an option of one script, which has to be named first")
    failed = 0
    for name in options.only or scripts():
        print(f"{name} ...", file=sys.stderr, flush=True)
        result, there = result_of(name, options.quick, own), _there()
        if isinstance(result, str):
            failed += 1
            print(result, file=sys.stderr, flush=True)
            _write({**there, name: f"## {name}\n\n{MISSED} {result}\n"})
        elif result.part:
            print(markdown(result))
            print(f"{name}: a part of it was judged. {RESULTS.name} keeps what it has.", file=sys.stderr)
        elif result.tables or name not in there:
            _write({**there, name: markdown(result)})
        else:
            print(f"{result.claim} What it wrote before is kept.", file=sys.stderr)
    if "demo" in (there := _there()):
        renew(HERE.parent / "README.md", there["demo"])
    return failed


if __name__ == "__main__":
    sys.exit(main())
