"""What devices held at their peak beside what plans said: the allocator's part."""

from __future__ import annotations

from collections.abc import Sequence

from planner.calibrate_line import Sample, line_through
from planner.cluster import Cluster, NodeGroup, with_nodes
from planner.fitted import Fitted, Surplus
from planner.plan import Plan, coordinates
from planner.timeline import Timeline


def surplus(runs: Sequence[tuple[Plan, Timeline]]) -> Surplus | None:
    """From the fullest rank of each run that measured its memory; no run held more than the spread says."""
    samples = [sample for plan, timeline in runs if (sample := _fullest(plan, timeline)) is not None]
    if not samples:
        return None
    start, factor = line_through(samples, proportional=True)
    most = max(sample.measured / (start + factor * sample.planned) for sample in samples)
    return Surplus(
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


def taught(cluster: Cluster, fitted: Fitted) -> Cluster:
    """The machines with what runs have shown of them; what an allocator holds beyond a plan's bytes is margin."""

    def wider(group: NodeGroup) -> NodeGroup:
        if fitted.memory is None:
            return group
        margin = group.capacity_bytes - fitted.memory.room_bytes(group.capacity_bytes)
        return group.model_copy(
            update={"margin_bytes": max(group.margin_bytes, min(margin, group.capacity_bytes - 1))}
        )

    nodes = tuple(map(wider, cluster.nodes))
    return with_nodes(cluster.model_copy(update={"fitted": fitted}), nodes)
