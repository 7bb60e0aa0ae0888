"""Fits straight lines through planned and measured values, and the memory that allocators hold beyond a plan's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from planner.cluster import Cluster, Corrections, MemoryCorrection, NodeGroup, with_node_groups
from planner.plan import Plan, coordinates
from planner.timeline import Timeline


def surplus(runs: Sequence[tuple[Plan, Timeline]]) -> MemoryCorrection | None:
    """Fits how much more memory devices held at their peak than their plans predicted.

    Args: each run's plan and timeline; only the fullest rank of a run that measured its memory counts.
    Returns: a correction with a spread that no run exceeds; None where no run measured its memory.
    """
    samples = [sample for plan, timeline in runs if (sample := _fullest(plan, timeline)) is not None]
    if not samples:
        return None
    start, factor = line_through(samples, proportional=True)
    most = max(sample.measured / (start + factor * sample.planned) for sample in samples)
    return MemoryCorrection(
        start_bytes=round(start),
        factor=float(f"{factor:.4g}"),
        spread=float(f"{max(0.0, most - 1):.3g}"),
        samples=len(samples),
    )


def _fullest(plan: Plan, timeline: Timeline) -> Sample | None:
    rows = []
    for rank, peak in timeline.peak_bytes.items():
        said = plan.prediction.memory[coordinates(plan.axes, rank).pipeline]
        rows.append(Sample(said.total - said.margin, peak))
    return max(rows, key=lambda row: row.measured, default=None)


def with_corrections(cluster: Cluster, fitted: Corrections) -> Cluster:
    """Returns the cluster with corrections, and with the margins that they ask for.

    Args: `fitted` replaces the corrections of `cluster`.
    Returns: a copy; where `fitted` corrects memory, margins grow by what an allocator holds beyond a plan's bytes.
    """

    def wider(group: NodeGroup) -> NodeGroup:
        if fitted.memory is None:
            return group
        margin = group.capacity_bytes - fitted.memory.room_bytes(group.capacity_bytes)
        return group.model_copy(
            update={"margin_bytes": max(group.margin_bytes, min(margin, group.capacity_bytes - 1))}
        )

    nodes = tuple(map(wider, cluster.nodes))
    return with_node_groups(cluster.model_copy(update={"fitted": fitted}), nodes)


class Sample(NamedTuple):
    """One planned and one measured value: of a stage's action, update or gradient sum, of a hop, or of a run's peak
    memory.
    """

    planned: float
    measured: float


def line_through(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    """Fits a line to samples by least squares of relative errors, so that small sizes count.

    Args: `proportional` fits a factor without a start where sizes are too alike to tell the two apart.
    Returns: start and factor; neither is negative.
    """
    sizes = [s.planned for s in samples if s.planned > 0]
    if len(sizes) < 3 or max(sizes) < 2 * min(sizes):
        return _by_the_middle(samples, proportional)
    weights = [1 / max(s.measured, 1.0) ** 2 for s in samples]
    total = sum(weights)
    x = sum(w * s.planned for w, s in zip(weights, samples, strict=True)) / total
    y = sum(w * s.measured for w, s in zip(weights, samples, strict=True)) / total
    over = sum(w * (s.planned - x) * (s.measured - y) for w, s in zip(weights, samples, strict=True))
    slope = over / sum(w * (s.planned - x) ** 2 for w, s in zip(weights, samples, strict=True))
    if slope <= 0 or y - slope * x < 0:
        return _by_the_middle(samples, proportional)
    return y - slope * x, slope


def _by_the_middle(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    beyond = median(s.measured - s.planned for s in samples)
    if beyond >= 0 and not proportional:
        return beyond, 1.0
    return 0.0, max(1e-3, median([s.measured / s.planned for s in samples if s.planned] or [1.0]))
