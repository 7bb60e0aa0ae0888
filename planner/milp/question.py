"""What a plan was the answer to, so that it can be asked again with something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Required, TypedDict

from planner.cluster import Cluster, with_memory, with_network, with_nodes
from planner.milp.instance import Space
from planner.milp.search.state import Effort
from planner.milp.solve import space_of
from planner.plan import Plan
from planner.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked besides model, machines and batch; as in `planner.milp.solve`."""

    fix: Mapping[str, object] | None = None
    schedules: Sequence[str] | None = None
    precision: str | None = None
    execution: str | None = None
    effort: Effort | None = None

    def space(self, profile: Profile, cluster: Cluster, batch: int) -> Space:
        return space_of(
            profile,
            cluster,
            batch=batch,
            fix=self.fix,
            schedules=self.schedules,
            precision=self.precision,
            execution=self.execution,
        )


class Asking(TypedDict, total=False):
    batch: Required[int]
    fix: Mapping[str, object] | None
    schedules: Sequence[str] | None
    precision: str | None
    execution: str | None


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
