"""A task knows its rank from SLURM or torchrun, and refuses a place that is not the plan's."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadInput, Infeasible
from planner.plan import Place
from planner.plan import yaml as plan_yaml
from runtime.slurm import task_layout as granted
from runtime.slurm.task_layout import Granted

PLACES = [
    Place(rank=rank, node=node, slot=slot, data=0, pipeline=rank, spatial=0)
    for rank, (node, slot) in enumerate([(3, 0), (3, 1), (7, 0), (7, 2)])
]


def slurm(rank: int, ranks: int, node: int, local: int) -> dict[str, str]:
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_LOCALID")
    return dict(zip(names, map(str, (rank, ranks, node, local)), strict=True))


def test_srun_and_torchrun_are_both_understood() -> None:
    here = granted.read(slurm(3, 4, 1, 1))
    torchrun = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_RUN_ID": "x",
    }
    assert here == granted.read(slurm(0, 4, 0, 0) | torchrun)
    assert (here.rank, here.ranks, here.node, here.local) == (3, 4, 1, 1)


@pytest.mark.parametrize(
    "environment", [{}, {"SLURM_PROCID": "0"}, slurm(0, 1, 0, 0) | {"SLURM_NTASKS": "x"}]
)
def test_an_environment_that_is_neither_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="environment"):
        granted.read(environment)


@pytest.mark.parametrize(("rank", "node", "local"), [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)])
def test_a_task_on_its_place_is_let_through(rank: int, node: int, local: int) -> None:
    granted.check(Granted(rank, 4, node, local, "n1"), PLACES)


@pytest.mark.parametrize(
    ("here", "message"),
    [
        (
            Granted(1, 4, 1, 0, "n2"),
            "n2: rank 1 is task 0 of node 1 of the job .*task 1 of node 0 by the plan",
        ),
        (Granted(2, 4, 0, 2, "n1"), "rank 2 is task 2 of node 0"),
        (Granted(0, 3, 0, 0, "n1"), "3 tasks were started .*4 by the plan"),
    ],
)
def test_a_task_elsewhere_is_refused_by_name(here: Granted, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        granted.check(here, PLACES)


def test_a_device_with_too_little_memory_is_refused() -> None:
    plan = plan_yaml.load(Path("plans/mlp-chimera.yaml"))
    need = plan.prediction.memory[1].total
    granted.check_memory(plan, 1, need)
    with pytest.raises(Infeasible, match=f"rank 1 needs {need} bytes by the plan; its device has {need - 1}"):
        granted.check_memory(plan, 1, need - 1)


def test_programs_of_torch_distributed_find_what_they_expect() -> None:
    found = granted.exported(Granted(2, 4, 1, 0, "n2"), PLACES)
    assert found == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
    }
