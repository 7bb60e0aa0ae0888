"""Plans train as jobs of a real SLURM as they do in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.launch import launch_inline
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PATIENCE_S, launch, task
from tests.slurm.plans import plan_over
from tests.slurm.warm import Warm


def test_gpt2_on_four_nodes_trains_as_one_process_does(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    """Its embedding, tied to the head, is on the nodes of both stages; all of its blocks in `benchmarks.launch`."""
    plan = plan_over(
        "tests/slurm/workloads/gpt2_of_two_blocks.py",
        ranks_a_node=1,
        family="1f1b",
        workers=2,
        micros=2,
        data=2,
        micro=1,
    )
    done = launch(warm, plan, tmp_path / "run", steps=2, deadline_s=600.0).wait(600.0).check()
    alone = launch_inline(plan, tmp_path / "inline", steps=2)
    assert list(done.losses) == [1, 2]
    assert done.losses == pytest.approx(alone.losses, rel=1e-6)


def test_chimera_on_four_nodes_trains_as_one_process_does(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    plan = plan_over("mlp", arguments={"layers": "8"}, family="chimera", workers=4, micros=4, data=2)
    done = launch(warm, plan, tmp_path / "a 'b' #c").wait(PATIENCE_S).check()
    alone = launch_inline(plan, tmp_path / "inline", steps=4)
    assert list(done.losses) == [1, 2, 3, 4]
    assert done.losses == pytest.approx(alone.losses, rel=1e-6)


def test_a_unet_in_replicas_stages_and_shards_trains_as_one_process_does(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    """All three axes at once: what a sample's neighbours, a stage's and a replica's exchange crosses nodes."""
    plan = plan_over(
        "unet3d",
        arguments={"size": "tiny"},
        family="1f1b",
        workers=2,
        micros=2,
        data=2,
        micro=1,
        grids={0: (2,), 1: (2,)},
    )
    assert (plan.axes.data, plan.axes.pipeline, plan.axes.spatial) == (2, 2, 2)
    done = launch(warm, plan, tmp_path / "run", steps=2).wait(PATIENCE_S).check()
    alone = launch_inline(plan, tmp_path / "inline", steps=2)
    assert done.losses == pytest.approx(alone.losses, rel=1e-6)


def test_ranks_stand_where_the_plan_has_them_on_twelve_nodes(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    """n10 comes after n9, not after n1."""
    plan = plan_over("mlp", ranks_a_node=1, family="1f1b", workers=2, micros=2, data=6)
    run = launch(warm, plan, tmp_path / "run", steps=1)
    run.wait(PATIENCE_S).check()
    assert [task(run.paths, rank).host for rank in range(12)] == cluster.names


SCRIPT = """
from runtime.launch import Run
with Run.open("plan", "folder") as run:
    for batch in run.batches():
        print("loss", run.step(batch), flush=True)
        if run.steps_done == 3:
            break
"""


def test_a_script_of_the_users_runs_on_every_rank(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    plan = plan_over("mlp", family="1f1b", workers=2, micros=2, ranks_a_node=1)
    run = launch(warm, plan, tmp_path / "run", steps=3, script=(str(tmp_path / "own.py"),))
    run.wait(PATIENCE_S).check()
    said = [run.logs(rank).splitlines() for rank in range(2)]
    assert said[0] == said[1] and len(said[0]) == 3
    assert [float(line.split()[1]) for line in said[0]] == [row["loss"] for row in run.metrics()]


def test_nodes_with_uneven_numbers_of_ranks_are_laid_out_as_planned(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    plan = plan_over("mlp", ranks_a_node=3, family="1f1b", workers=2, micros=2, data=2)
    run = launch(warm, plan, tmp_path / "run", steps=1)
    run.wait(PATIENCE_S).check()
    hosts = [task(run.paths, rank).host for rank in range(4)]
    assert hosts[0] == hosts[1] == hosts[2] != hosts[3]
