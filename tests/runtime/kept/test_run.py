"""Pruned runs: what they hold, what they send, how they go on, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planner import measure
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import BadInput, BadPlan
from planner.kept import KeptEntries, Masks, dump, load_masks
from planner.milp import Question, solve
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime.kept import KeptFlat
from runtime.train import Model, NoPulse, job_of, prepare
from runtime.train.training import Training
from runtime.world import alone
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.faults import COUNTED
from tests.runtime.kept.pruned import masks_for, pruned_plan
from tests.runtime.test_equality import HERE, plan_of

ONE: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 2}
ARGUMENTS = {"kind": "adamw"}


def opened(plan: Plan, folder: Path, **settings: object) -> Training:
    """A training of one rank in this process, from wherever its folder stands."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, job = prepare(model, folder, job_of(plan, 100, settings))
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None
    return Training(model, start, alone(torch.device("cpu")), job, paths, NoPulse())


def steps(training: Training, count: int) -> dict[str, Tensor]:
    data = training.batches()
    for _ in range(count):
        training.step(next(data))
    return {name: p.detach().clone() for name, p in training.rank.parameters.items()}


def saved(training: Training) -> None:
    training.save()
    training.flush()


def test_the_tensors_kept_are_those_of_the_prediction(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", keep=0.1, **ONE)
    training = opened(plan, tmp_path / "run", kept=str(tmp_path / "k"))
    steps(training, 2)
    graph, counts = training.graph, load_masks(tmp_path / "k").counts
    entries = sum(counts.get(row.name, row.bytes // 4) for row in graph.trained)
    pruned = sum(counts.values())
    weights = sum(row.bytes for row in graph.parameters)
    counters = 4 * len(graph.trained)
    whole = weights + 4 * pruned + 4 * pruned + 4 * entries + 8 * entries + counters
    seen = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in training.rank.kept()}
    assert sum(seen.values()) == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.1])
def test_the_tensors_kept_are_those_that_the_plan_predicts(share: float, tmp_path: Path) -> None:
    arguments = {**ARGUMENTS, "width": "256"}
    workload, _ = captured_of(HERE + "optimised.py", arguments, 2)
    costs = measure.profile(workload, device="roofline:cpu", micros=(2,))
    costs = replace(costs, kept=KeptEntries.of_share(costs.graph, share))
    group = NodeGroup(count=1, device="cpu", devices_per_node=1, memory_bytes=2**34)
    machine = Cluster(
        name="one", nodes=(group,), links=Links(node=Link(latency_s=1e-6, bandwidth_bytes_per_s=1e9))
    )
    plan = solve(
        Question(profile=costs, cluster=machine, batch=4, fix={"pipeline": 1, "micro": 2, "schedule": "1f1b"})
    )
    kept = {}
    if share < 1.0:
        masks_for(plan, tmp_path / "k", keep=share)
        kept = {"kept": str(tmp_path / "k")}
    training = opened(plan, tmp_path / "run", **kept)
    steps(training, 2)
    (predicted,) = plan.prediction.memory
    seen = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in training.rank.kept()}
    whole = predicted.parameters + predicted.gradients + predicted.optimizer
    assert sum(seen.values()) == pytest.approx(whole, rel=0.01)


def test_a_gradient_lives_no_longer_than_its_micro_batch(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    training = opened(plan, tmp_path / "run", kept=str(tmp_path / "k"))
    steps(training, 1)
    flat = training.rank.flats[0]
    assert isinstance(flat, KeptFlat) and all(dense.grad is None for dense in flat.dense.values())
    assert 4 * flat.grads.numel() == 4 * sum(
        len(flat.indices[name]) if name in flat.indices else p.numel() for name, p in flat.parameters.items()
    )


def test_a_run_that_was_ended_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    want = steps(opened(plan, tmp_path / "whole", kept=tmp_path / "k"), 5)
    first = opened(plan, tmp_path / "parts", kept=str(tmp_path / "k"))
    steps(first, 3)
    saved(first)
    have = steps(opened(plan, tmp_path / "parts"), 2)
    assert want.keys() == have.keys() and all(torch.equal(want[n], have[n]) for n in want)


@pytest.mark.parametrize(
    "other",
    [
        {"family": "zb-h1", "workers": 2, "micros": 2},
        {"family": "1f1b", "workers": 1, "micros": 1, "data": 2, "shard": True},
    ],
    ids=["split", "sharded"],
)
def test_a_pruned_run_goes_on_under_another_plan_with_the_same_bits(
    other: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    want = steps(opened(plan, tmp_path / "whole", kept=str(tmp_path / "k")), 4)
    first = opened(plan, tmp_path / "parts", kept=str(tmp_path / "k"))
    steps(first, 2)
    saved(first)
    changed = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **other)
    have = run(pool, changed, tmp_path / "parts", steps=2).after[-1]
    assert all(torch.equal(have[name], tensor) for name, tensor in want.items())


def test_a_pruned_run_begins_with_the_state_of_a_dense_one(tmp_path: Path) -> None:
    dense = plan_of(HERE + "optimised.py", ARGUMENTS, **ONE)
    before = opened(dense, tmp_path / "dense")
    steps(before, 2)
    saved(before)
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    weights = str(tmp_path / "dense")
    after = opened(plan, tmp_path / "run", kept=str(tmp_path / "k"), weights=weights)
    masks = load_masks(tmp_path / "k")
    for flat in after.rank.flats:
        optimizer = after.rank.updater.optimizers[flat.bucket]
        for name, leaf in flat.parameters.items():
            old = before.rank.flats[0].parameters[name]
            moment = before.rank.updater.optimizers[before.rank.flats[0].bucket].state[old]["exp_avg"]
            index = masks.indices.get(name)
            want = moment if index is None else moment.reshape(-1)[torch.from_numpy(index).long()]
            assert torch.equal(optimizer.state[leaf]["exp_avg"].reshape(-1), want.reshape(-1)), name
    steps(after, 1)


def test_a_dense_plan_goes_on_from_a_pruned_run_with_zeros_elsewhere(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    before = opened(plan, tmp_path / "run", kept=str(tmp_path / "k"))
    steps(before, 2)
    saved(before)
    after = opened(plan_of(HERE + "optimised.py", ARGUMENTS, **ONE), tmp_path / "run")
    for flat in after.rank.flats:
        for name, index in load_masks(tmp_path / "k").indices.items():
            state = after.rank.updater.optimizers[flat.bucket].state[flat.parameters[name]]["exp_avg"]
            gone = state.reshape(-1).clone()
            assert gone.any()
            gone[torch.from_numpy(index).long()] = 0.0
            assert not gone.any() and state.shape == flat.parameters[name].shape
    steps(after, 1)


def test_other_masks_than_those_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    first = opened(plan, tmp_path / "run", kept=str(tmp_path / "k"))
    steps(first, 1)
    saved(first)
    other = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "other", keep=0.2, **ONE)
    with pytest.raises(BadInput, match="begun with other masks"):
        opened(other, tmp_path / "run", kept=str(tmp_path / "other"))
    with pytest.raises(BadPlan, match="the plan is for masks"):
        opened(other, tmp_path / "run")
    with pytest.raises(BadInput, match="state of other entries"):
        opened(other, tmp_path / "new", kept=str(tmp_path / "other"), weights=str(tmp_path / "run"))


def test_what_does_not_go_with_pruned_weights_is_refused_by_name(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    with pytest.raises(BadPlan, match="there are no masks: launch with --kept FILE"):
        opened(plan, tmp_path / "a")
    with pytest.raises(BadInput, match=r"kept is 0\.1"):
        opened(plan, tmp_path / "a", kept=0.1)
    with pytest.raises(BadInput, match="ema averages whole parameters"):
        opened(plan, tmp_path / "b", kept=str(tmp_path / "k"), ema=0.9)
    dense = plan_of(HERE + "optimised.py", ARGUMENTS, **ONE)
    with pytest.raises(BadPlan, match="plan with --kept and this file"):
        opened(dense, tmp_path / "c", kept=str(tmp_path / "k"))
    shared = pruned_plan(
        HERE + "mlp.py",
        {"layers": "5"},
        tmp_path / "m",
        family="1f1b",
        workers=1,
        data=2,
        sharing="gradients",
    )
    with pytest.raises(BadPlan, match="do not go with gradients or parameters shared by element"):
        opened(shared, tmp_path / "d", kept=str(tmp_path / "m"))
    factored = pruned_plan(HERE + "optimised.py", {"kind": "adafactor"}, tmp_path / "f", **ONE)
    with pytest.raises(BadInput, match="Adafactor"):
        opened(factored, tmp_path / "e", kept=str(tmp_path / "f"))


def test_masks_that_keep_everything_train_the_dense_plan(tmp_path: Path) -> None:
    dense = plan_of(HERE + "optimised.py", ARGUMENTS, **ONE)
    masks_for(dense, tmp_path / "k", keep=0.5)
    every = load_masks(tmp_path / "k")
    import numpy as np

    whole = Masks(
        {name: np.arange(count, dtype=np.int32) for name, count in every.elements.items()}, every.elements
    )
    dump(whole, tmp_path / "all")
    a = steps(opened(dense, tmp_path / "a"), 2)
    b = steps(opened(dense, tmp_path / "b", kept=str(tmp_path / "all")), 2)
    assert all(torch.equal(a[n], b[n]) for n in a) and not (tmp_path / "b" / "kept.safetensors").exists()


def test_ranks_with_other_masks_do_not_begin(pool: Pool, tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "mlp.py", {"layers": "5"}, tmp_path / "k", family="1f1b", workers=2, micros=2)
    plan = plan.model_copy(update={"kept": plan.kept and plan.kept.model_copy(update={"digest": ""})})
    with pytest.raises(Exception, match="other masks of pruned weights"):
        run(pool, plan, tmp_path / "run", steps=1, fault="other masks", kept=str(tmp_path / "k"))


@pytest.mark.parametrize("pruned", [True, False])
def test_a_sum_sends_four_bytes_for_each_kept_entry_and_for_each_number_of_a_whole_parameter(
    pruned: bool, pool: Pool, tmp_path: Path
) -> None:
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 2, "data": 2}
    model, arguments, kept = HERE + "mlp.py", {"layers": "5"}, {}
    if pruned:
        plan, kept = pruned_plan(model, arguments, tmp_path / "k", **shape), {"kept": str(tmp_path / "k")}
    else:
        plan = plan_of(model, arguments, **shape)
    run(pool, plan, tmp_path / "run", steps=3, fault=f"{COUNTED}{tmp_path}", **kept)
    counts = load_masks(tmp_path / "k").counts if pruned else {}
    rows = captured_of(model, arguments, plan.batch.micro)[1].graph.trained
    stay = sum(counts.get(row.name, row.bytes // 4) for row in rows)
    for rank in range(2):
        sent = [int(line) for line in (tmp_path / f"summed-{rank}").read_text().split()]
        assert sum(sent) == 3 * 4 * stay, sent
