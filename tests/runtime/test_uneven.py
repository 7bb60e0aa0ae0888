"""Replicas with uneven shares of the batch train as one process does on all of it, whatever is in the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadPlan
from planner.plan import Plan, dump, schedule_of
from planner.plan.yaml import parse
from planner.verify import violations
from runtime.train.script import one_process
from tests.pool import Pool
from tests.runtime.compare import apart, distance, expected, run
from tests.runtime.spatial.test_plans import plan_of as spatial_plan
from tests.runtime.spatial.test_shares import CLASSIFIER, shared
from tests.runtime.test_equality import HERE, plan_of

CASES = {
    "a pipeline": ("mlp.py", {"layers": "6"}, "1f1b", 2, (4, 2), {}),
    "three replicas": ("mlp.py", {"layers": "6"}, "gpipe", 1, (1, 3, 2), {}),
    "doubles": ("branches.py", {"double": "True"}, "zb-h1", 2, (3, 5), {}),
    "Chimera": ("mlp.py", {"layers": "6"}, "chimera", 2, (4, 2), {}),
    "batch norm": ("normalised.py", {}, "1f1b", 1, (3, 1), {}),
    "a loss with counts": ("branches.py", {"double": "True", "counted": "True"}, "1f1b", 2, (2, 1), {}),
    "recomputing": ("mlp.py", {"layers": "6"}, "1f1b", 2, (2, 4), {"recompute": (0,)}),
    "sharded": ("mlp.py", {"layers": "6"}, "1f1b", 1, (3, 1), {"shard": True}),
}


def shared_out(plan: Plan, shares: tuple[int, ...]) -> Plan:
    samples = plan.batch.micro * sum(shares)
    batch = plan.batch.model_copy(update={"shares": shares, "samples": samples})
    return parse(dump(plan.model_copy(update={"batch": batch})))  # as it is read back from its file


def uneven(name: str) -> Plan:
    workload, arguments, family, workers, shares, more = CASES[name]
    shape = {"family": family, "workers": workers, "micros": max(shares), "data": len(shares), **more}
    return shared_out(plan_of(HERE + workload, arguments, **shape), shares)


@pytest.mark.parametrize("name", CASES)
def test_uneven_replicas_train_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    plan = uneven(name)
    have = run(pool, plan, tmp_path, steps=3)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() <= (1e-12 if "double" in CASES[name][1] else 1e-6), found


def test_random_numbers_do_not_depend_on_shares(pool: Pool, tmp_path: Path) -> None:
    shape = {"family": "1f1b", "workers": 2, "micros": 4, "data": 2}
    plan = shared_out(plan_of(HERE + "dropping.py", {}, **shape), (1, 4))
    have = run(pool, plan, tmp_path / "uneven", steps=2)
    alone = run(pool, one_process(plan), tmp_path / "alone", steps=2)
    assert have.losses == pytest.approx(alone.losses, rel=1e-6)
    for name, tensor in alone.after[-1].items():
        assert apart(tensor, have.after[-1][name]) <= 1e-6, name


def test_split_samples_may_have_uneven_replicas(pool: Pool, tmp_path: Path) -> None:
    plan = spatial_plan(CLASSIFIER, {0: (2,)}, 2, workers=1, data=2, micros=3, micro=4)
    plan = shared_out(shared(plan, "deep"), (3, 1))
    have = run(pool, plan, tmp_path, steps=2, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=2), have)
    assert found.worst() <= 1e-12, found


def test_a_smaller_share_has_the_same_order_without_the_last_micro_batches() -> None:
    plan = uneven("a pipeline")
    whole, short = schedule_of(plan), schedule_of(plan, 1)
    assert schedule_of(plan, 0) == whole
    assert short.pipe_of == (0, 0) and short.workers == whole.workers
    assert short.to_text().split("\n")[0] == "0F0 0F1 0B0 0B1 0SYNC 0STEP"


@pytest.mark.parametrize(
    ("shares", "samples", "said"),
    [
        ((4, 2, 1), 12, "2 replicas need 2"),
        ((3, 2), 12, "the largest is micros, 4"),
        ((4, 2), 14, "micro 2 x the sum of shares 6 = 12, not 14"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(shares: tuple[int, ...], samples: int, said: str) -> None:
    plan = uneven("a pipeline")
    batch = plan.batch.model_copy(update={"shares": shares, "samples": samples})
    found = [str(each) for each in violations(plan.model_copy(update={"batch": batch}))]
    assert any(said in each for each in found), found


def test_a_share_that_leaves_a_pipe_without_work_is_refused() -> None:
    plan = uneven("Chimera")
    batch = plan.batch.model_copy(update={"shares": (4, 1), "samples": 10})
    found = [str(each) for each in violations(plan.model_copy(update={"batch": batch}))]
    assert any("leaves pipe 1 without a micro-batch" in each for each in found), found


def test_a_synchronised_batch_norm_needs_equal_shares(pool: Pool, tmp_path: Path) -> None:
    plan = shared_out(plan_of(HERE + "synchronised.py", {}, workers=1, micros=2, data=2), (2, 1))
    with pytest.raises(BadPlan, match="has a SyncBatchNorm, whose replicas need equal shares"):
        run(pool, plan, tmp_path, steps=1)
