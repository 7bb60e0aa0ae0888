"""Matplotlib figures, returned and not shown: a notebook shows what a cell returns, a script saves it."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Protocol

from planner.errors import BadInput
from planner.plan import as_planned
from planner.show.pictures import cuts_of
from planner.show.timelines import COMPUTE, boxes_of, shade
from planner.show.values import layer_ns
from planner.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from planner.explore import Frontier, FrontierRow
    from planner.model import ModelGraph
    from planner.plan import Plan
    from planner.profile import Profile
    from planner.simulate import RunRecord
    from planner.timeline import Timeline


class HasRecord(Protocol):
    """A run that can say what it has left so far."""

    def record(self) -> RunRecord: ...


def new(rows: int = 1, *, wide: float = 10.0, tall: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure that no window and no other figure knows of, and that shows itself."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("matplotlib is not installed", allowed="pip install 'shardwright[notebook]'") from None

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            out = BytesIO()
            self.savefig(out, format="png", dpi=110, bbox_inches="tight")
            return out.getvalue()

    figure = Picture(figsize=(wide, tall * rows), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)
    return figure, [row[0] for row in axes]


def of_timeline(found: Timeline) -> Figure:
    ranks = sorted(set(found.rank.tolist()))
    figure, (axis,) = new(tall=0.9 + 0.32 * min(len(ranks), 64))
    _lanes(axis, found)
    return figure


def _lanes(axis: Axes, found: Timeline, title: str = "") -> None:
    ranks = sorted(set(found.rank.tolist()))
    row_of = {rank: row for row, rank in enumerate(ranks)}
    shades: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for box in boxes_of(found):
        if box.kind in COMPUTE:
            bars = shades.setdefault(shade(box), {}).setdefault(row_of[box.rank], [])
            bars.append((box.start / 1e6, (box.end - box.start) / 1e6))
    for fill, rows in shades.items():
        for row, bars in rows.items():
            axis.broken_barh(bars, (row - 0.4, 0.8), facecolors=fill, edgecolor="white", linewidth=0.3)
    every = max(1, len(ranks) // 16)
    axis.set_yticks(range(0, len(ranks), every), [str(rank) for rank in ranks[::every]])
    axis.set_ylim(len(ranks) - 0.5, -0.5)
    axis.set(xlabel="ms", ylabel="rank", title=title or f"{format_duration(found.makespan_ns)} a step")


def of_run(found: RunRecord) -> Figure:
    """Predicted above measured on one scale of time, and how long every step took."""
    predicted = found.predicted
    step = found.measured.of_step(found.typical_step)
    figure, axes = new(3, tall=1.0 + 0.3 * min(found.plan.axes.pipeline, 32))
    _lanes(axes[0], predicted, f"predicted: {format_duration(predicted.makespan_ns)}")
    _lanes(axes[1], step, f"measured, step {found.typical_step}: {format_duration(step.makespan_ns)}")
    most = max(predicted.makespan_ns, step.makespan_ns) / 1e6
    for axis in axes[:2]:
        axis.set_xlim(0, most)
    every = sorted(set(found.measured.step.tolist()))
    axes[2].plot(
        every, [found.measured.of_step(s).makespan_ns / 1e6 for s in every], marker="o", label="measured"
    )
    axes[2].axhline(predicted.makespan_ns / 1e6, color="#d9730d", linestyle="--", label="predicted")
    axes[2].set(xlabel="step", ylabel="ms")
    _from_zero(axes[2])
    axes[2].legend()
    return figure


def of_several(found: Sequence[Timeline], names: Sequence[str]) -> Figure:
    """On one scale of time."""
    ranks = max(len(set(each.rank.tolist())) for each in found)
    figure, axes = new(len(found), tall=0.9 + 0.3 * min(ranks, 32))
    most = max(each.makespan_ns for each in found) / 1e6
    for axis, each, name in zip(axes, found, names, strict=True):
        _lanes(axis, each, f"{name}: {format_duration(each.makespan_ns)}")
        axis.set_xlim(0, most)
    return figure


def of_graph(graph: ModelGraph, plan: Plan | None = None) -> Figure:
    """Operations of every layer, with the cuts of a plan where one is given."""
    graph = as_planned(graph, plan) if plan is not None else graph
    cuts = cuts_of(plan) if plan is not None else ()
    return _bars(graph, cuts, [layer.flops(1) / 1e9 for layer in graph.layers], "GFLOP a sample")


def of_profile(profile: Profile) -> Figure:
    """Forward and backward time of every layer."""
    times = layer_ns(profile).values()
    return _bars(profile.graph, (), [ns / 1e6 for ns in times], "ms forward and backward")


def of_handle(run: HasRecord) -> Figure:
    """Predicted above measured, once the run has ended."""
    return of_run(run.record())


def _bars(graph: ModelGraph, cuts: Sequence[int], weights: Sequence[float], unit: str) -> Figure:
    figure, (axis,) = new(tall=3.2)
    shades = [
        "#2f6fbd" if sum(cut <= at for cut in cuts) % 2 else "#6699d6" for at in range(len(graph.layers))
    ]
    axis.bar(range(len(graph.layers)), weights, color=shades)
    for cut in cuts:
        axis.axvline(cut - 0.5, color="#d0342c", linestyle="--", linewidth=1)
    every = max(1, len(graph.layers) // 24)
    names = [layer.name for layer in graph.layers]
    axis.set_xticks(range(0, len(names), every), names[::every], rotation=60, ha="right", fontsize=7)
    axis.set(ylabel=unit, title=f"{len(names)} layers" + (f" in {len(cuts) + 1} stages" if cuts else ""))
    return figure


def of_front(found: Frontier) -> Figure:
    """Step time against memory of the fullest device, and against devices."""
    memory, devices = found.front("memory"), found.front("devices")
    figure, axes = new(2, tall=2.8)
    unit, name = (
        (2**30, "GiB") if max((row.peak_bytes for row in memory), default=0) >= 2**28 else (2**20, "MiB")
    )
    held = [row.peak_bytes / unit for row in memory]
    _trade(axes[0], held, memory, f"{name} of the fullest device")
    _trade(axes[1], [row.devices for row in devices], devices, "devices")
    return figure


def _trade(axis: Axes, across: Sequence[float], rows: Sequence[FrontierRow], name: str) -> None:
    axis.plot(across, [row.step_ns / 1e6 for row in rows], marker="o", linestyle=":")
    axis.set(xlabel=name, ylabel="ms a step")
    _from_zero(axis)


def _from_zero(axis: Axes) -> None:
    axis.set_ylim(0, 1.1 * axis.dataLim.y1)
