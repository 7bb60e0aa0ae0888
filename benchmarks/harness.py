"""What every benchmark script shares: its options, the facts of the machine, and one shape of result.

A script defines `run(quick: bool) -> Result` and ends with `main(run)`. Alone it prints a table, or with `--json`
one JSON object; `python -m benchmarks` runs them all and writes RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

Cell = str | int | float | bool | None
MISSED = "**Missed:**"  # begins a line of RESULTS.md, right below the claim
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}  # by the flag that says so, the widest first


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    notes: tuple[str, ...] = ()  # what the numbers mean, what they do not


@dataclass(frozen=True, kw_only=True)
class Result:
    name: str
    claim: str  # the aim, in one sentence, beside what was reached
    tables: list[Table]
    missed: tuple[str, ...] = ()  # one sentence for each aim that was not met, with the figure reached
    machine: dict[str, Cell] = field(default_factory=lambda: machine())
    seconds: float = 0.0  # a script gives those of what it did not measure again
    quick: bool = False
    part: bool = False  # of what the benchmark judges: RESULTS.md keeps what it has of the whole


def machine() -> dict[str, Cell]:
    facts: dict[str, Cell] = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "vectors": _vectors(),
        "ms for a million additions": round(additions_ms(), 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    return facts | {name: _version(name) for name in ("torch", "pulp", "highspy", "numpy")}


def _processor() -> str:
    return _told("model name") or platform.processor()


def _vectors() -> str:
    """Returns the widest vectors of the processor: what torch rounds depends on them."""
    flags = _told("flags").split()
    return next((name for flag, name in VECTORS.items() if flag in flags), "")


def _told(what: str) -> str:
    """Returns what the kernel says of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    rows = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in rows if name.strip() == what), "")


@cache
def additions_ms() -> float:
    """Returns what a million additions in plain Python take at best: processors of one name differ by two times."""

    def once() -> float:
        total, begun = 0, time.perf_counter()
        for number in range(1_000_000):
            total += number
        return (time.perf_counter() - begun) * 1e3

    return min(once() for _ in range(5))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def above(what: str, figures: Iterable[tuple[str, Cell]], most: float, unit: str = "") -> tuple[str, ...]:
    """Returns the sentence that says by how much an upper limit was missed, or nothing where all figures keep it.

    Args: `what` is the sentence's subject, `figures` are cases and what each reached (None where nothing was measured).
    """
    known = _known(figures)
    return _sentence(what, [pair for pair in reversed(known) if pair[1] > most], len(known), most, unit)


def below(what: str, figures: Iterable[tuple[str, Cell]], least: float, unit: str = "") -> tuple[str, ...]:
    """Returns the sentence that says by how much a lower limit was missed, or nothing, as `above` does."""
    known = _known(figures)
    return _sentence(what, [pair for pair in known if pair[1] < least], len(known), least, unit)


def _known(figures: Iterable[tuple[str, Cell]]) -> list[tuple[str, float]]:
    """Returns the cases that have a figure, the least first."""
    known = [(name, float(x)) for name, x in figures if isinstance(x, int | float)]
    return sorted(known, key=lambda pair: pair[1])


def _sentence(
    what: str, failing: Sequence[tuple[str, float]], count: int, aim: float, unit: str
) -> tuple[str, ...]:
    """Returns at most one sentence; the worst of the failing cases comes first."""
    if not failing:
        return ()
    name, worst = failing[0]
    if count == 1:
        return (f"{what} came to {cell(worst)}{unit}, and the aim is {aim:g}{unit}.",)
    return (
        f"{what} came to {cell(worst)}{unit} at worst ({name}); the aim of {aim:g}{unit} was missed in "
        f"{len(failing)} of {count} cases.",
    )


def markdown(result: Result) -> str:
    lines = [f"## {result.name}", "", result.claim, ""]
    for sentence in result.missed:
        lines += [f"{MISSED} {sentence}", ""]
    for table in result.tables:
        lines += [
            f"### {table.title}",
            "",
            "| " + " | ".join(table.columns) + " |",
            "|" + "---|" * len(table.columns),
        ]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table.rows]
        lines += ["", *(f"{note}\n" for note in table.notes)]
    facts = ", ".join(f"{key} {cell(value)}" for key, value in result.machine.items() if value is not None)
    lines += [f"Measured in {result.seconds:.0f} s{' (quick)' if result.quick else ''}: {facts}.", ""]
    return "\n".join(lines)


Found = TypeVar("Found")


@dataclass(frozen=True)
class Journal:
    """What was measured so far, by name; nothing further is begun once a time is over."""

    path: Path | None = None
    end_s: float = math.inf

    def known(self) -> dict[str, Any]:
        """Returns what was noted, as JSON gives it back."""
        there = self.path is not None and self.path.exists()
        lines = self.path.read_text().splitlines() if there and self.path is not None else []
        return dict(map(json.loads, lines))

    def note(self, name: str, found: Found) -> Found:
        """Notes what was found of a name, and returns it."""
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([name, found]) + "\n")
        return found

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end_s


def main(run: Callable[[bool], Result], argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=sys.modules[run.__module__].__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample that takes under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    print(as_json(timed(run, options.quick)) if options.json else markdown(timed(run, options.quick)))


def timed(run: Callable[[bool], Result], quick: bool) -> Result:
    start = time.perf_counter()
    result = run(quick)
    took = time.perf_counter() - start
    return Result(**{**vars(result), "seconds": result.seconds + took, "quick": quick})


def as_json(result: Result) -> str:
    return json.dumps(asdict(result))
