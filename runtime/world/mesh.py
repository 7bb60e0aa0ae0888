"""The mesh of a plan: which rank stands at which coordinates, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from planner.plan import Place, Plan


@dataclass(frozen=True)
class RankMesh:
    """The ranks of a plan and their coordinates: replica, pipeline worker and shard."""

    places: tuple[Place, ...]
    place: tuple[tuple[int, ...], ...]  # place[pipe][stage] is the pipeline worker

    @classmethod
    def of(cls, plan: Plan) -> RankMesh:
        """Returns the mesh of a plan.

        Args: `plan` has a table of places.
        """
        return cls(plan.places, plan.schedule.place)

    @cached_property
    def by_rank(self) -> dict[int, Place]:
        """Returns the coordinates of each rank, by rank."""
        return {place.rank: place for place in self.places}

    @cached_property
    def _rank_at(self) -> dict[tuple[int, int, int], int]:
        return {(p.data, p.pipeline, p.spatial): p.rank for p in self.places}

    def peers(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks of a rank's pipeline, by pipeline worker.

        Args: `rank` is one of them; the others share its replica and shard.
        """
        here = self.by_rank[rank]
        workers = sorted({p.pipeline for p in self.places})
        return tuple(self._rank_at[here.data, worker, here.spatial] for worker in workers)

    def held(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Returns pipe and stage of every stage that lives on a rank.

        Args: `rank` is one of the plan's.
        """
        worker = self.by_rank[rank].pipeline
        return tuple(
            (pipe, stage)
            for pipe, stages in enumerate(self.place)
            for stage, at in enumerate(stages)
            if at == worker
        )

    def holders(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Returns every rank that holds one of these stages, in any pipe, replica and shard.

        Args: `stages` are numbers of stages.
        Returns: ranks in ascending order.
        """
        wanted = set(stages)
        workers = {pipe[stage] for pipe in self.place for stage in wanted}
        return tuple(sorted(p.rank for p in self.places if p.pipeline in workers))
