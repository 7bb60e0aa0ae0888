"""Runs whose plan names their sums train as one process does, and to the same bits each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.errors import BadInput, BadPlan
from planner.plan import Plan, dump
from planner.plan.yaml import parse
from planner.sums import SumsByName
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE, plan_of

CASES = {
    "three rings": ("mlp.py", {"layers": "6"}, "gpipe", 1, 3, ("rings 2",)),
    "trees": ("mlp.py", {"layers": "6"}, "1f1b", 1, 4, ("colours 4",)),
    "a ring of four": ("mlp.py", {"layers": "6"}, "1f1b", 1, 4, ("ring",)),
    "two hand their shares to each other": ("mlp.py", {"layers": "6"}, "1f1b", 1, 2, ("direct",)),
    "another name a stage": ("mlp.py", {"layers": "6"}, "1f1b", 2, 2, ("colours 2", "direct")),
    "pipes in both directions": ("branches.py", {"double": "True"}, "chimera", 2, 2, ("rings 2", "ring")),
    "stages with a tied weight": ("branches.py", {"double": "True"}, "zb-h1", 2, 2, ("colours 2", "direct")),
}


def named(plan: Plan, names: tuple[str, ...], cards: tuple[str, ...] = ()) -> Plan:
    plan = plan.model_copy(update={"sums": SumsByName(by=names, cards=cards)})
    return parse(dump(plan))  # as it is read back from its file


def case(name: str) -> Plan:
    workload, arguments, family, workers, data, names = CASES[name]
    shape = {"family": family, "workers": workers, "micros": 2 * workers, "data": data}
    return named(plan_of(HERE + workload, arguments, **shape), names)


@pytest.mark.parametrize("name", CASES)
def test_named_sums_train_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    plan = case(name)
    have = run(pool, plan, tmp_path, steps=3)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() <= (1e-12 if "double" in CASES[name][1] else 1e-6), found


def test_the_same_plan_has_the_same_bits_again(pool: Pool, tmp_path: Path) -> None:
    plan = case("three rings")
    first, second = (run(pool, plan, tmp_path / folder, steps=3) for folder in ("first", "second"))
    assert first.losses == second.losses
    for name, tensor in first.after[-1].items():
        assert torch.equal(tensor, second.after[-1][name]), name


def test_parts_go_over_the_cards_of_the_plan(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "6"}, family="1f1b", workers=1, micros=2, data=2)
    over = named(plan, ("rings 2",), ("lo", "lo"))
    have = run(pool, over, tmp_path, steps=2)
    assert distance(expected(over, tmp_path, steps=2), have).worst() <= 1e-6


def prepared(plan: Plan, folder: Path, **settings: object) -> None:
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    prepare(model, folder, job_of(plan, 1, settings))


def test_a_card_that_is_not_here_is_one_message_before_anything_starts(tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "6"}, family="1f1b", workers=1, micros=2, data=2)
    with pytest.raises(BadInput, match=r"cards: .* has no address at 'ib7'"):
        prepared(named(plan, ("rings 2",), ("lo", "ib7")), tmp_path / "run")
    with pytest.raises(BadInput, match="names no interface"):
        prepared(named(plan, ("rings 2",), ("lo", "i" * 300)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("rings 2",), "which 2 ranks over 1 cards cannot use; they can ring, direct, colours 2"),
        (("ring", "ring"), "has 2 names; 1 stages need 1"),
        (("nccl",), "is nccl"),
    ],
)
def test_a_sum_that_the_ranks_cannot_use_is_refused(
    names: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "6"}, family="1f1b", workers=1, micros=2, data=2)
    with pytest.raises(BadPlan, match=said):
        prepared(named(plan, names), tmp_path / "run")


def test_replicas_that_share_a_stage_have_one_way_to_sum(tmp_path: Path) -> None:
    shape = {"family": "1f1b", "workers": 1, "micros": 2, "data": 2, "shard": True}
    plan = named(plan_of(HERE + "mlp.py", {"layers": "6"}, **shape), ("ring",))
    with pytest.raises(BadPlan, match="replicas share the stage"):
        prepared(plan, tmp_path / "run")
