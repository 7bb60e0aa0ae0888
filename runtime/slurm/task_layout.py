"""The places of ranks on nodes: what a plan asks of SLURM, and which task of a job this process is."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import BadInput, Infeasible
from planner.plan import Place, Plan

SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_LOCALID")
TORCHRUN_ID = "TORCHELASTIC_RUN_ID"
TORCHRUN = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")


@dataclass(frozen=True)
class Granted:
    """The place of this task in its job."""

    rank: int
    ranks: int
    node: int  # of the job, counting up
    local: int  # on the node
    host: str


def read(environment: Mapping[str, str]) -> Granted:
    """Returns the place of this task, from the environment that SLURM or torchrun has set.

    Raises: BadInput where this process is no such task.
    Args: torchrun's variables count where it has started the task.
    """
    names = TORCHRUN if TORCHRUN_ID in environment else SLURM
    missing = [name for name in names if name not in environment]
    if missing:
        raise BadInput(f"{missing[0]} is not set", where="environment", allowed="a task of srun or torchrun")
    try:
        rank, ranks, node, local = (int(environment[name]) for name in names)
    except ValueError:
        values = ", ".join(f"{name}={environment[name]!r}" for name in names)
        raise BadInput(f"{values} are no numbers", where="environment") from None
    return Granted(rank, ranks, node, local, socket.gethostname())


def check(granted: Granted, places: Sequence[Place]) -> None:
    """Refuses a rank that is not on the node, or not at the position on it, that the plan has for it.

    Raises: BadInput there, and where the number of tasks is not that of the plan.
    Args: `places` are those of the plan.
    """
    rows = by_node(places)
    if granted.ranks != len(places):
        raise BadInput(
            f"{granted.ranks} tasks were started", where=granted.host, allowed=f"{len(places)} by the plan"
        )
    for node, row in enumerate(rows):
        for local, place in enumerate(row):
            if place.rank == granted.rank and (node, local) != (granted.node, granted.local):
                raise BadInput(
                    f"rank {granted.rank} is task {granted.local} of node {granted.node} of the job",
                    where=granted.host,
                    allowed=f"task {local} of node {node} by the plan",
                )


def check_memory(plan: Plan, rank: int, have_bytes: int) -> None:
    """Refuses a rank whose device is too small for what the plan puts on it.

    Args: `have_bytes` is the memory of the device.
    Raises: Infeasible where it is too small.
    """
    need = plan.prediction.memory[plan.places[rank].pipeline].total
    if need > have_bytes:
        raise Infeasible(
            f"{socket.gethostname()}: rank {rank} needs {need} bytes by the plan; its device has {have_bytes}"
        )


def exported(granted: Granted, places: Sequence[Place]) -> dict[str, str]:
    """Returns the environment variables that programs of torch.distributed expect.

    Args: `places` are those of the plan.
    """
    here = len(by_node(places)[granted.node])
    return {
        "RANK": str(granted.rank),
        "WORLD_SIZE": str(granted.ranks),
        "LOCAL_RANK": str(granted.local),
        "LOCAL_WORLD_SIZE": str(here),
        "GROUP_RANK": str(granted.node),
    }


@dataclass(frozen=True)
class TaskLayout:
    """The numbers of ranks on the nodes of a job. `tasks[i]` is that of the i-th node."""

    tasks: tuple[int, ...]
    devices: int  # a node

    @property
    def ranks(self) -> int:
        """Returns the number of ranks of the job."""
        return sum(self.tasks)

    @property
    def even(self) -> bool:
        """Returns whether all nodes have the same number of ranks."""
        return len(set(self.tasks)) == 1


def of(plan: Plan) -> TaskLayout:
    """Returns the layout that a plan asks of SLURM.

    Raises: BadInput where the plan's ranks do not fill nodes in order.
    """
    rows = by_node(plan.places)
    return TaskLayout(tuple(len(row) for row in rows), 1 + max(place.slot for place in plan.places))


def by_node(places: Sequence[Place]) -> list[list[Place]]:
    """Returns the places of each node, with nodes and ranks counting up. SLURM numbers its tasks in this
    order.

    Args: `places` are those of a plan.
    Raises: BadInput where ranks do not fill nodes in order.
    """
    ordered = sorted(places, key=lambda place: place.rank)
    if [place.rank for place in ordered] != list(range(len(ordered))):
        raise BadInput("ranks are not 0, 1, 2 ...", where="places")
    for before, after in pairwise(ordered):
        if (after.node, after.slot) <= (before.node, before.slot):
            raise BadInput(
                f"rank {after.rank} (node {after.node}, slot {after.slot}) stands before rank {before.rank}",
                where="places",
                allowed="ranks that fill the slots of a node in order, then the next node's, as SLURM numbers tasks",
            )
    rows: dict[int, list[Place]] = {}
    for place in ordered:
        rows.setdefault(place.node, []).append(place)
    return list(rows.values())
