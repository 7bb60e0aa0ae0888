"""What the solver predicts a rank to hold, against what it holds: never more than that, and not much less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from random import Random
from typing import NamedTuple

import pytest
import torch

from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import BadInput, Infeasible
from planner.kept import KeptEntries
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import Plan, dump
from planner.profile import Profile
from planner.schedule import FAMILIES
from planner.verify import violations
from runtime.execute import with_peak
from runtime.rank import Rank
from runtime.rehearse.rehearse import runs
from runtime.stage import Split
from runtime.train import Model
from tests.captures import captured_of
from tests.draws import numbers, part

PLANS = 4  # `benchmarks.memory` draws more
TINY = {"lstm": {"size": "tiny"}}


class Case(NamedTuple):
    workload: str
    arguments: dict[str, str]
    micros: tuple[int, ...]


CASES = (
    Case("gpt2", {"size": "tiny"}, (1, 2)),
    Case("unet3d", {"size": "tiny"}, (1, 2)),
    Case("mlp", {"width": "96", "layers": "9"}, (4, 32)),
    Case("tests/runtime/workloads/branches.py", {}, (4, 16)),
    Case("tests/runtime/workloads/lstm.py", {"size": "tiny"}, (2,)),
    Case("tests/runtime/workloads/normalised.py", {}, (4,)),
)


@lru_cache
def profile(
    workload: str, arguments: tuple[tuple[str, str], ...], micro: int, precision: str = "fp32"
) -> Profile:
    loaded, _ = captured_of(workload, dict(arguments), micro)
    return measure.profile(loaded, device="roofline:cpu", micros=(micro,), precision=precision, split=Split())


def machines(ranks: int, memory_bytes: int = 2**34) -> Cluster:
    group = NodeGroup(count=1, device="cpu", devices_per_node=ranks, memory_bytes=memory_bytes)
    return Cluster(
        name="here", nodes=(group,), links=Links(node=Link(latency_s=2e-4, bandwidth_bytes_per_s=2e9))
    )


def drawn(draw: Random) -> Plan:
    """Any model, family, depth, micro-batch, with or without recomputation, shared state, pruned weights and weights
    in bf16."""
    while True:
        case, family = draw.choice(CASES), draw.choice(sorted(FAMILIES))
        workers, data, micro = draw.choice((2, 3, 4)), draw.choice((1, 1, 2)), draw.choice(case.micros)
        fix = {
            "data": data,
            "pipeline": workers,
            "schedule": family,
            "micro": micro,
            "recompute": draw.random() < 0.3,
            "shard": data > 1 and draw.random() < 0.5,
        }
        precision = "bf16" if draw.random() < 0.3 else "fp32"
        costs = profile(case.workload, tuple(sorted(case.arguments.items())), micro, precision)
        if draw.random() < 0.5:
            costs = replace(costs, kept=KeptEntries.of_share(costs.graph, draw.choice((0.1, 0.3, 0.7))))
        if precision == "bf16" and draw.random() < 0.7:
            fix["weights"] = "bf16"
        micros = workers * draw.choice((1, 2))
        try:
            return solve(
                Question(
                    profile=costs, cluster=machines(workers * data), batch=micro * micros * data, fix=fix
                )
            )
        except (BadInput, Infeasible):
            continue  # the family does not take this shape


def ratios(plan: Plan) -> list[float]:
    """Of every worker, its peak over what was predicted for it."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    predicted = [memory.total - memory.margin for memory in plan.prediction.memory]
    found = runs(model, torch.device("cpu"), steps=0)
    return [run.peak_bytes / predicted[run.worker] for run in found]


@pytest.mark.parametrize("seed", numbers(PLANS))
def test_no_rank_holds_more_than_was_predicted(seed: int) -> None:
    plan = drawn(Random(seed))
    found = ratios(plan)
    assert max(found) <= 1.0, (plan.model.workload, plan.schedule.family, plan.axes, found)
    assert max(found) >= 0.7, "a prediction that nothing comes near is of no use"


def solved(
    workload: str, micro: int, batch: int, arguments: Mapping[str, str] | None = None, **fix: object
) -> Plan:
    costs = profile(workload, tuple((arguments or {}).items()), micro)
    return solve(
        Question(
            profile=costs,
            cluster=machines(int(str(fix["pipeline"]))),
            batch=batch,
            fix={"data": 1, "recompute": False} | fix,
        )
    )


def told_less(plan: Plan, count: int) -> Plan:
    """Returns the plan with so many bytes less predicted for its first worker."""
    first, *others = plan.prediction.memory
    held = first.model_copy(update={"parameters": first.parameters - count})
    prediction = plan.prediction.model_copy(update={"memory": (held, *others)})
    return plan.model_copy(update={"prediction": prediction})


@pytest.mark.parametrize("fix", [{"pipeline": 1}, {"pipeline": 2}, {"pipeline": 2, "schedule": "chimera"}])
def test_what_no_layer_uses_counts_where_the_first_rank_keeps_it(fix: dict[str, object]) -> None:
    plan = solved("tests/runtime/workloads/unused.py", 4, 8, **fix)
    assert plan.prediction.memory[0].parameters > 4 * 512 * 512
    found = ratios(plan)
    assert 0.9 <= found[0] <= 1.0 and max(found) <= 1.0, found
    costs = profile("tests/runtime/workloads/unused.py", (), 4)
    assert not violations(plan, profile=costs)
    assert {each.rule for each in violations(told_less(plan, 4 * 512 * 512), profile=costs)} == {"memory"}


def test_a_whole_backward_among_split_ones_keeps_nothing_for_its_weights() -> None:
    cuts = "down.0.1,up.0.convolutions.4,up.1.upsample"
    plan = solved("unet3d", 2, 8, {"size": "tiny"}, pipeline=2, schedule="dualpipe-v", cuts=cuts)
    assert max(ratios(plan)) <= 1.0


def test_heads_that_share_keys_cross_stages_into_the_kernel_that_was_priced() -> None:
    plan = solved("tests/runtime/workloads/hf_llama.py", 2, 12, pipeline=3, schedule="1f1b")
    assert max(ratios(plan)) <= 1.0


@pytest.mark.parametrize(("workload", "workers"), [("walking", 2), ("lstm", 3)])
def test_a_stage_whose_backward_walks_the_graph_keeps_it_until_the_weights_are_done(
    workload: str, workers: int
) -> None:
    """The linear layers of the stage too, which would have let most of it go beside layers of their own kind."""
    file, arguments = f"tests/runtime/workloads/{workload}.py", TINY.get(workload, {})
    plan = solved(file, 2, 4 * workers, arguments, pipeline=workers, schedule="zb-h2")
    assert 0.95 <= max(ratios(plan)) <= 1.0


@pytest.mark.parametrize(
    ("kind", "walks", "family", "workers"),
    part(
        [
            ("twice", False, "1f1b", 3),
            ("twice", True, "zb-h2", 3),
            ("product", True, "zb-h1", 2),
            ("product-twice", False, "zb-h1", 2),
            ("product-twice", True, "zb-h2", 3),
            ("made", False, "zb-h2", 3),
            ("made", True, "interleaved", 2),
            ("normed", False, "zb-v", 2),
        ],
        4,
    ),
)
def test_gradients_of_weights_that_are_made_or_used_twice_wait_for_each_other(
    kind: str, walks: bool, family: str, workers: int
) -> None:
    arguments = {"kind": kind, "walks": str(walks)}
    file = "tests/runtime/workloads/weighed.py"
    plan = solved(file, 2, 4 * workers, arguments, pipeline=workers, schedule=family)
    assert 0.85 <= max(ratios(plan)) <= 1.0


@pytest.mark.parametrize(("kept", "cut"), part(product([True, False], [None, "early", "late"]), 3))
def test_gradients_of_a_value_that_is_read_twice_are_there_beside_their_sum(
    kept: bool, cut: str | None
) -> None:
    """In the stage that made it, in one that it is handed to, and where its readers are in two."""
    layers = ["first", "early", "between", "late", "out", "loss"]
    at = layers.index(cut) if cut else 0
    fix: dict[str, object] = {"stages": [layers[:at], layers[at:]]} if cut else {}
    family = "interleaved" if cut else "1f1b"
    file, arguments = "tests/runtime/workloads/read_twice.py", {"kept": str(kept)}
    found = ratios(solved(file, 128, 128, arguments, pipeline=1, schedule=family, **fix))
    assert 0.7 <= max(found) <= 1.0
    if cut != "late":
        assert max(found) >= 0.99


def test_parts_of_a_stage_hold_no_more_than_the_stage_does() -> None:
    """What passes between them is handed over."""
    arguments = {"size": "tiny"}
    plan = solved("gpt2", 2, 8, arguments, pipeline=1, schedule="overlap", chunks=8)
    whole = solved("gpt2", 2, 8, arguments, pipeline=1, schedule="1f1b")
    assert len(plan.stages) == 8 and 0.9 <= max(ratios(plan)) <= 1.0
    (parts,), (one,) = plan.prediction.memory, whole.prediction.memory
    assert parts.activations + parts.buffers <= 1.1 * (one.activations + one.buffers)


def test_the_squares_of_gradients_take_no_more_than_was_predicted() -> None:
    """Of a stage that does little else."""
    plan = solved("bert", 2, 6, {"size": "tiny", "seq": "16"}, pipeline=3, schedule="zb-h1")
    assert max(ratios(plan)) <= 1.0


def test_a_rank_that_recomputes_its_first_layers_holds_no_more_either() -> None:
    costs, fix = profile("gpt2", (("size", "tiny"),), 2), {"pipeline": 2, "data": 1, "schedule": "1f1b"}
    roomy = solve(Question(profile=costs, cluster=machines(2), batch=16, fix=fix | {"recompute": False}))
    stages = [list(stage.layers) for stage in roomy.stages]
    fullest = max(roomy.prediction.memory, key=lambda memory: memory.total)
    tight = machines(2, fullest.total - fullest.activations // 10)
    plan = solve(Question(profile=costs, cluster=tight, batch=16, fix=fix | {"stages": stages}))
    assert any(stage.recompute_before for stage in plan.stages)
    assert max(ratios(plan)) <= 1.0


CODEBOOK = "tests/runtime/workloads/codebook.py"


@pytest.mark.parametrize(("family", "workers"), [("1f1b", 1), ("gpipe", 2), ("1f1b", 2)])
def test_what_recomputes_keeps_a_copy_a_micro_batch_of_buffers_that_it_writes_and_reads(
    family: str, workers: int
) -> None:
    """Of a layer that is taken as it is, too; the buffers are nearly all that there is."""
    stages = [["0", "1", "3"], ["5", "6", "loss"]]
    fix: dict[str, object] = {"stages": stages} if workers == 2 else {}
    plan = solved(CODEBOOK, 4, 16, None, pipeline=workers, schedule=family, recompute=True, **fix)
    found = ratios(plan)
    assert min(found) >= 0.99 and max(found) <= 1.0
    plain = solved(CODEBOOK, 4, 16, None, pipeline=workers, schedule=family, **fix)
    copies = plan.prediction.memory[0].activations - plain.prediction.memory[0].activations
    codes, in_flight = 4096 * 16 * 4, {("1f1b", 1): 1, ("gpipe", 2): 4, ("1f1b", 2): 2}[family, workers]
    assert round(copies / codes) == in_flight * (2 if workers == 1 else 1)


def test_where_only_first_layers_recompute_just_they_keep_copies() -> None:
    arguments = {"codes": "96", "taken": "16"}
    costs = profile(CODEBOOK, tuple(arguments.items()), 128)
    fix = {"pipeline": 2, "data": 1, "schedule": "gpipe", "stages": [["0", "1", "3"], ["5", "6", "loss"]]}
    roomy = solve(Question(profile=costs, cluster=machines(2), batch=1024, fix=fix | {"recompute": False}))
    fullest = roomy.prediction.memory[0]
    tight = machines(2, fullest.total - fullest.activations // 12)
    plan = solve(Question(profile=costs, cluster=tight, batch=1024, fix=fix))
    assert [stage.recompute_before for stage in plan.stages] == ["3", ""]
    assert 0.95 <= max(ratios(plan)) <= 1.0


@pytest.mark.parametrize(("family", "workers"), [("interleaved", 1), ("zb-h1", 2)])
def test_what_lies_in_a_layer_that_is_taken_as_it_is_counts_without_the_device_too(
    family: str, workers: int
) -> None:
    """A roofline has it run for that."""
    plan = solved("tests/runtime/workloads/opaque.py", 512, 2048, pipeline=workers, schedule=family)
    assert 0.7 <= max(ratios(plan)) <= 1.0


@pytest.mark.parametrize(("family", "recompute"), [("1f1b", False), ("gpipe", True)])
def test_what_a_stage_sends_that_no_gradient_comes_back_to_is_held_all_step(
    family: str, recompute: bool
) -> None:
    """Nothing tells it of its arrival: of every micro-batch, however few are in flight."""
    fix: dict[str, object] = {"stages": [["0"], ["1", "3", "5", "6", "loss"]], "recompute": recompute}
    arguments = {"codes": "1", "taken": "1"}
    plan = solved(CODEBOOK, 64, 512, arguments, pipeline=2, schedule=family, **fix)
    sent = 8 * 64 * 16 * 4
    assert plan.prediction.memory[0].buffers >= sent
    assert 0.75 <= ratios(plan)[0] <= 1.0


@pytest.mark.parametrize("family", ["1f1b", "chimera"])
def test_averages_of_the_parameters_are_in_a_prediction_that_is_asked_for_them(family: str) -> None:
    arguments, shape = {"size": "tiny"}, {"pipeline": 2, "schedule": family}
    plain = solved("gpt2", 1, 4, arguments, **shape)
    cut = [list(stage.layers) for stage in plain.stages]
    plan = solved("gpt2", 1, 4, arguments, **shape, ema=True, stages=cut)
    for more, less in zip(plan.prediction.memory, plain.prediction.memory, strict=True):
        assert more.parameters - less.parameters == less.gradients and more.total > less.total
    with_averages, without = ratios(plan), ratios(plain)
    assert 0.7 <= max(with_averages) <= 1.0 and max(without) <= 1.0
    assert plan.ema and "\nema: true" in dump(plan) and "\nema" not in dump(plain)
    costs = profile("gpt2", tuple(arguments.items()), 1)
    assert not violations(plan, profile=costs, cluster=machines(2))
    claimed = plain.model_copy(update={"ema": True})
    assert {found.rule for found in violations(claimed, profile=costs, cluster=machines(2))} == {"memory"}


@pytest.mark.parametrize("sharing", ["gradients", "parameters"])
def test_replicas_that_share_elements_share_their_averages(sharing: str) -> None:
    costs = profile("gpt2", (("size", "tiny"),), 1)
    shape: dict[str, object] = {"pipeline": 1, "data": 2, "shard": sharing, "recompute": False}
    plan, plain = (
        solve(Question(profile=costs, cluster=machines(2), batch=4, fix=shape | {"ema": ema}))
        for ema in (True, False)
    )
    (more,), (less,) = plan.prediction.memory, plain.prediction.memory
    assert more.parameters - less.parameters == less.gradients and more.total > less.total
    assert 0.9 <= max(ratios(plan)) <= 1.0
    assert not violations(plan, profile=costs, cluster=machines(2))


def test_evaluation_holds_no_more_than_training_was_predicted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many micro-batches there are, of which nobody tells a stage that they have arrived."""
    plan = solved("gpt2", 1, 32, {"size": "tiny"}, pipeline=4, schedule="1f1b")
    trained = ratios(plan)

    def evaluating(rank: Rank, step: partial[None]) -> tuple[None, int]:
        known = {hop[:3]: rows for hop, rows in rank.transport._layouts.items() if hop.direction == "act"}
        alone = rank.evaluation(plan.batch.micro)
        alone._transport.know(known)  # type: ignore[attr-defined]  # nobody answers a rank alone
        _, peak = with_peak(
            partial(rank.evaluate, step.args[1], plan.batch.micro),
            rank.world.device,
            rank.kept(),
            rank.transport.in_flight(),
        )
        return None, peak

    monkeypatch.setattr(Rank, "with_peak", evaluating)
    assert all(0.1 < mine < most <= 1.0 for mine, most in zip(ratios(plan), trained, strict=True))
