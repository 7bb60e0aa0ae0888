"""The frontier in a notebook: every plan of it is one that can be asked further."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.console import columns, duration, memory
from planner.frontier import Asked, Frontier, Row, frontier
from planner.notebook import pictures
from planner.notebook.html import block, paragraph, table
from planner.notebook.question import Question
from planner.notebook.solved import Solved
from planner.summary import rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADS = ("", "step", "samples/s", "devices", "peak", "gap", "schedule", "best in")


@dataclass(frozen=True, repr=False)
class Front:
    found: Frontier
    asked: Question

    @property
    def plans(self) -> tuple[Solved, ...]:
        """From the fastest to the thriftiest."""
        return tuple(Solved.of(row.plan, self.asked) for row in self.found.rows)

    def __len__(self) -> int:
        return len(self.found.rows)

    def __getitem__(self, at: int) -> Solved:
        return self.plans[at]

    def __iter__(self) -> Iterator[Solved]:
        return iter(self.plans)

    def plot(self) -> Figure:
        from planner.notebook import figures

        return figures.of_front(self.found.front("memory"), self.found.front("devices"))

    def to_rows(self) -> list[dict[str, object]]:
        return [
            {
                "step_ns": row.step_ns,
                "samples_per_s": row.samples_per_s,
                "devices": row.devices,
                "peak_bytes": row.peak_bytes,
                "gap": row.gap,
                "schedule": row.plan.schedule.family,
                "best_in": list(row.best_in),
            }
            for row in self.found.rows
        ]

    def to_dict(self) -> dict[str, object]:
        return {"rows": self.to_rows(), "whole": list(self.found.whole), "resolution": self.found.resolution}

    def __repr__(self) -> str:
        return f"{self._said()}\n\n{columns([_cells(at, row) for at, row in enumerate(self.found.rows)], _HEADS)}"

    def _repr_html_(self) -> str:
        by_memory, by_devices = self.found.front("memory"), self.found.front("devices")
        drawn = []
        if len(by_memory) > 1:
            points = [(float(row.peak_bytes), float(row.step_ns), _told(row)) for row in by_memory]
            drawn.append(pictures.dots(points, memory, "peak of the fullest device"))
        if len(by_devices) > 1:
            points = [(float(row.devices), float(row.step_ns), _told(row)) for row in by_devices]
            drawn.append(pictures.dots(points, lambda n: f"{n:,.0f}", "devices"))
        listed = table(_HEADS, [_cells(at, row) for at, row in enumerate(self.found.rows)])
        return block(paragraph(self._said()), *drawn, listed)

    def _said(self) -> str:
        whole = " and ".join(self.found.whole) or "neither trade"
        return f"{len(self)} plans that nothing equals with less; asked to the end, to {self.found.resolution:.0%}: {whole}"


def front(asked: Question) -> Front:
    wanted = Asked(
        fix=asked.fix, schedules=asked.schedules, precision=asked.precision, execution=asked.execution
    )
    return Front(frontier(asked.costs, asked.cluster, asked.batch, wanted), asked)


def _cells(at: int, row: Row) -> tuple[object, ...]:
    return (
        at,
        duration(row.step_ns),
        rate(row.samples_per_s),
        row.devices,
        memory(row.peak_bytes),
        f"{row.gap:.2%}",
        row.plan.schedule.family,
        ", ".join(row.best_in),
    )


def _told(row: Row) -> str:
    return f"{row.plan.schedule.family}, {row.devices} devices, {memory(row.peak_bytes)}: {duration(row.step_ns)}"
