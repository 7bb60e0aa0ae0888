"""What a plan was the answer to, so that it can be asked again with something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.cluster import Cluster, Link, Links
from planner.errors import BadInput
from planner.plan import Plan
from planner.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Question:
    costs: Profile
    cluster: Cluster
    batch: int
    schedules: tuple[str, ...] | None = None
    fix: Mapping[str, object] = field(default_factory=dict)
    precision: str | None = None
    execution: str | None = None

    def solve(self) -> Plan:
        from planner.milp import solve

        return solve.solve(
            self.costs,
            self.cluster,
            batch=self.batch,
            schedules=self.schedules,
            fix=dict(self.fix),
            precision=self.precision,
            execution=self.execution,
        )

    def changed(
        self,
        *,
        batch: int | None,
        memory_gib: float | None,
        nodes: int | None,
        network: float | None,
        schedule: str | Sequence[str] | None,
        fix: Mapping[str, object],
    ) -> Question:
        """Keys of `fix` that are None are free again."""
        machines = self.cluster
        machines = with_memory(machines, memory_gib) if memory_gib is not None else machines
        machines = with_nodes(machines, nodes) if nodes is not None else machines
        machines = with_network(machines, network) if network is not None else machines
        kept = {key: value for key, value in {**self.fix, **fix}.items() if value is not None}
        families = self.schedules
        if schedule is not None:
            families = (schedule,) if isinstance(schedule, str) else tuple(schedule)
            kept.pop("schedule", None)
        return replace(
            self,
            cluster=machines,
            batch=self.batch if batch is None else batch,
            schedules=families,
            fix=kept,
        )


def with_memory(cluster: Cluster, gib: float) -> Cluster:
    """Every device with so much memory, of which the margin stays free as before."""
    size = round(gib * 2**30)
    if size <= max(group.margin_bytes for group in cluster.nodes):
        raise BadInput(
            f"{gib:g} GiB leaves no memory beside the margin", where="memory_gib", allowed="more than it"
        )
    groups = tuple(group.model_copy(update={"memory_bytes": size}) for group in cluster.nodes)
    return _with(cluster, nodes=groups)


def with_nodes(cluster: Cluster, count: int) -> Cluster:
    """So many nodes of the only kind there is."""
    if len(cluster.nodes) != 1:
        raise BadInput(
            f"the cluster has {len(cluster.nodes)} kinds of node", where="nodes", allowed="a cluster with one"
        )
    if count < 1:
        raise BadInput(f"{count} nodes", where="nodes", allowed="1 or more")
    return _with(cluster, nodes=(cluster.nodes[0].model_copy(update={"count": count}),))


def with_network(cluster: Cluster, factor: float) -> Cluster:
    """Every link with so many times its bandwidth, and the latency that it has."""
    if not factor > 0:
        raise BadInput(f"{factor:g} times the bandwidth", where="network", allowed="more than 0")
    links = {
        name: Link(latency_s=link.latency_s, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        for name, link in cluster.links
        if link is not None
    }
    return _with(cluster, links=Links(**links))


def _with(cluster: Cluster, **changes: object) -> Cluster:
    """Made anew and checked again: a copy would carry along what was reckoned from the old fields."""
    fields = {name: getattr(cluster, name) for name in Cluster.model_fields}
    return Cluster.model_validate(fields | changes)
