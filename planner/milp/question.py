"""What a plan was the answer to, so that it can be asked again with something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Required, TypedDict

from planner.cluster import Cluster, with_memory, with_network, with_nodes
from planner.errors import BadInput
from planner.milp.instance import Instance
from planner.milp.layer_orders import orders
from planner.milp.pins import Pins, check_space, pins, with_stages
from planner.milp.search.state import Effort
from planner.profile import Profile
from planner.schedule import ROUNDS_BY_PART, rounds_by_part


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked besides model, machines and batch; as in `planner.milp.solve`."""

    fix: Mapping[str, object] | None = None
    schedules: Sequence[str] | None = None
    precision: str | None = None
    execution: str | None = None
    effort: Effort | None = None

    def space(self, profile: Profile, cluster: Cluster, batch: int) -> Instance:
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


def space_of(
    profile: Profile,
    cluster: Cluster,
    *,
    batch: int,
    fix: Mapping[str, object] | None = None,
    schedules: Sequence[str] | None = None,
    precision: str | None = None,
    execution: str | None = None,
) -> Instance:
    """The question, held against what was profiled."""
    if batch < 1:
        raise BadInput(f"batch is {batch}", allowed="1 or more")
    fixed = check_space(pins(fix or {}, schedules), profile.graph)
    profile, pinned = orders.as_pinned(profile, with_stages(fixed, profile.graph))
    precision = _choice(profile, "precision", precision, "fp32")
    execution = _choice(profile, "execution", execution, "eager")
    return Instance(
        profile=profile,
        cluster=cluster,
        batch=batch,
        precision=precision,
        execution=execution,
        pins=_alike_in_parts(pinned) if rounds_by_part(precision, execution) else pinned,
    )


def _alike_in_parts(pinned: Pins) -> Pins:
    """Replicas are not cut into parts where a part would train otherwise than the whole."""
    if "overlap" in pinned.schedules and pinned.chunks != 1:
        raise BadInput(
            f"overlap in parts: {ROUNDS_BY_PART}",
            where="schedule",
            allowed="chunks=1, fp32, or execution eager",
        )
    return pinned if pinned.schedules else replace(pinned, out_of_order=False)


def _choice(profile: Profile, name: str, asked: str | None, usual: str) -> str:
    known = sorted({str(getattr(key, name)) for key in profile.settings})
    if asked is None:
        return usual if usual in known else known[0]
    if asked not in known:
        raise BadInput(f"{name} '{asked}' was not profiled", allowed=", ".join(known))
    return asked
