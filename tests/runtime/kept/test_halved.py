"""Weights in bf16 with fp32 ones that are updated: the same training to the bit, in less memory."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn

from planner.errors import BadPlan
from planner.kept import load_masks
from planner.plan import Plan, halved_weights
from runtime import checkpoint as checkpoints
from runtime.kept import KeptFlat
from runtime.train.training import Training
from tests.captures import captured_of
from tests.draws import covering
from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.kept.pruned import pruned_plan
from tests.runtime.kept.test_matrix import FAMILIES, KINDS, MODELS, REPLICAS, Mixed, shape_of
from tests.runtime.kept.test_run import ONE, opened, saved, steps
from tests.runtime.reference import batch_of
from tests.runtime.test_equality import HERE, plan_of

ARGUMENTS = {"kind": "adamw"}
HALVED = {"precision": "bf16", "weights": "bf16"}


def in_half(plan: Plan) -> Plan:
    return plan.model_copy(update=HALVED)


def under_autocast(plan: Plan) -> Plan:
    return plan.model_copy(update={"precision": "bf16"})


def updated(training: Training) -> dict[str, Tensor]:
    """The numbers that are updated, by parameter."""
    flats = [flat for flat in training.rank.flats if isinstance(flat, KeptFlat)]
    return {name: flat.whole(name).clone() for flat in flats for name in flat.bucket.names}


def test_a_loop_written_by_hand_comes_to_the_same_bits(tmp_path: Path) -> None:
    """Weights of products are bf16, and their gradients; fp32 masters take them in by micro-batch, and are updated."""
    plan = in_half(plan_of(HERE + "mlp.py", {"layers": "5"}, **ONE))
    training = opened(plan, tmp_path / "run")
    loaded, _ = captured_of(HERE + "mlp.py", {"layers": "5"}, 2)
    start = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert start is not None
    module = loaded.build()
    masters = {
        n: nn.Parameter(x) for n, x in start.parameters([n for n, _ in module.named_parameters()]).items()
    }
    optimizer = loaded.optimizer(list(masters.items()))
    for step in range(4):
        held = {n: p.detach().to(torch.bfloat16 if p.ndim > 1 else p.dtype) for n, p in masters.items()}
        for n, p in masters.items():
            p.grad = torch.zeros_like(p)
            held[n].requires_grad_()
        for micro in range(2):
            inputs, targets = batch_of(loaded, 0, (step * 2 + micro) * 2, 2)
            for tensor in held.values():
                tensor.grad = None
            with torch.autocast("cpu", torch.bfloat16):
                out = torch.func.functional_call(module, held, (inputs,))
                loss = loaded.loss(out, targets)
            (loss * 0.5).backward()
            for n, p in masters.items():
                gradient = held[n].grad
                assert gradient is not None and gradient.dtype == held[n].dtype and p.grad is not None
                p.grad += gradient.float()
        optimizer.step()
    steps(training, 4)
    have = updated(training)
    assert halved_weights(training.graph) == {n for n, p in masters.items() if p.ndim > 1}
    assert all(torch.equal(have[n], p) for n, p in masters.items())


def cases() -> list[Mixed]:
    """Every model with every family; optimizers, replicas and recomputation are drawn for each."""
    found = []
    for model, family in product(MODELS, FAMILIES):
        draw = Random(f"half/{model}/{family}")
        data, shard = draw.choice(REPLICAS)
        found.append(Mixed(model, draw.choice(KINDS), family, data, shard, draw.random() < 0.5))
    return found


def takes_lstm_in_bf16() -> bool:
    """Returns whether plain torch runs one under autocast; older processors do not."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(8, 8)(torch.randn(2, 2, 8))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("case", "pruned"),
    covering(
        [(case, draw % 2 == 0) for draw, case in enumerate(cases())], lambda x: [*x[0][:1], *x[0][2:4], x[1]]
    ),
    ids=lambda x: "-".join(map(str, x)) if isinstance(x, tuple) else "pruned" if x else "whole",
)
def test_weights_are_those_of_the_same_ranks_with_weights_in_fp32(
    case: Mixed, pruned: bool, pool: Pool, tmp_path: Path
) -> None:
    if case.model == "lstm" and not takes_lstm_in_bf16():
        pytest.skip("torch has no LSTM in bf16 on this processor")
    settings, file = {"model": case.model, "kind": case.kind}, tmp_path / "k"
    shape = shape_of(case)
    made = (
        pruned_plan(HERE + "masked.py", settings, file, **shape)
        if pruned
        else plan_of(HERE + "masked.py", settings, **shape)
    )
    kept = {"kept": str(file)} if pruned else {}
    want = run(pool, under_autocast(made), tmp_path / "fp32", steps=3, **kept)
    have = run(pool, in_half(made), tmp_path / "bf16", steps=3, **kept)
    assert have.losses == want.losses
    assert all(torch.equal(have.grads[name], x) for name, x in want.grads.items())
    for a, b in zip(have.after, want.after, strict=True):
        assert all(torch.equal(x, b[name].to(x.dtype)) for name, x in a.items()), case
    halved = halved_weights(captured_of(HERE + "masked.py", settings, 2)[1].graph)
    assert halved and all(have.after[-1][name].dtype == torch.bfloat16 for name in halved & have.grads.keys())


@pytest.mark.parametrize("keep", [1.0, 0.1])
def test_the_tensors_kept_are_two_bytes_and_twenty_for_each_kept_entry(keep: float, tmp_path: Path) -> None:
    wide = {"kind": "adamw", "width": "256"}
    kept = {} if keep == 1.0 else {"kept": str(tmp_path / "k")}
    if keep == 1.0:
        plan = in_half(plan_of(HERE + "optimised.py", wide, **ONE))
    else:
        plan = in_half(pruned_plan(HERE + "optimised.py", wide, tmp_path / "k", keep=keep, **ONE))
    training = opened(plan, tmp_path / "run", **kept)
    steps(training, 2)
    graph = training.graph
    halved = halved_weights(graph)
    entries = sum(row.bytes // 4 for row in graph.trained if row.name in halved)
    others = sum(row.bytes // 4 for row in graph.trained if row.name not in halved)
    each = 18 if keep == 1.0 else 2 + 20 * keep
    seen = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in training.rank.kept()}
    assert sum(seen.values()) == pytest.approx(each * entries + 16 * others, rel=0.01)


def test_a_run_that_was_ended_goes_on_with_the_same_bits_held_either_way(tmp_path: Path) -> None:
    plan = pruned_plan(HERE + "optimised.py", ARGUMENTS, tmp_path / "k", **ONE)
    whole = opened(in_half(plan), tmp_path / "whole", kept=str(tmp_path / "k"))
    steps(whole, 5)
    first = opened(in_half(plan), tmp_path / "parts", kept=str(tmp_path / "k"))
    steps(first, 3)
    saved(first)
    again = opened(in_half(plan), tmp_path / "parts")
    steps(again, 2)
    want, have = updated(whole), updated(again)
    assert all(torch.equal(have[name], x) for name, x in want.items())
    other = opened(under_autocast(plan), tmp_path / "parts")
    found = steps(other, 2)
    assert all(torch.equal(found[name], x) for name, x in want.items())
    masks = load_masks(tmp_path / "k")
    for name, index in masks.indices.items():
        rest = found[name].reshape(-1).clone()
        rest[torch.from_numpy(index).long()] = 0.0
        assert not rest.any()


def test_averages_are_those_of_the_numbers_that_are_updated(tmp_path: Path) -> None:
    plan = plan_of(HERE + "optimised.py", ARGUMENTS, **ONE)
    found = []
    for way, made in (("fp32", under_autocast(plan)), ("bf16", in_half(plan))):
        training = opened(made, tmp_path / way, ema=0.9)
        steps(training, 3)
        assert training.rank.updater.averages is not None
        found.append(training.rank.updater.averages.named())
    assert all(torch.equal(found[1][name], x) for name, x in found[0].items())


def test_what_weights_in_bf16_do_not_go_with_is_refused_by_name(tmp_path: Path) -> None:
    plan = plan_of(HERE + "optimised.py", ARGUMENTS, **ONE)
    refused = {
        "where products are in fp32: precision bf16": plan.model_copy(update={"weights": "bf16"}),
        "do not go with compiled stages": in_half(plan).model_copy(update={"execution": "compiled"}),
        "shared by element": in_half(
            plan_of(HERE + "mlp.py", {"layers": "5"}, family="1f1b", workers=1, data=2, sharing="gradients")
        ),
    }
    for number, (said, made) in enumerate(refused.items()):
        with pytest.raises(BadPlan, match=said):
            opened(made, tmp_path / str(number))


def test_a_weight_that_anything_else_reads_stays_in_fp32() -> None:
    graph = captured_of(HERE + "masked.py", {"model": "gpt2"}, 2)[1].graph
    halved = halved_weights(graph)
    assert "token.weight" not in halved and "position.weight" not in halved  # rows of them are read in fp32
    assert "blocks.0.attention.qkv.weight" in halved and "blocks.0.attention.qkv.bias" not in halved


OWN_CASTS = """
import torch
import torch.nn.functional as F
from torch import nn


class Careful(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = self.one(x)
        return self.two(x)


def build():
    return Careful()


def batch(n):
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs.float(), targets)
"""


def test_a_model_that_switches_autocast_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "careful.py"
    file.write_text(OWN_CASTS)
    with pytest.raises(BadPlan, match="switches autocast itself"):
        opened(in_half(plan_of(str(file), {}, **ONE)), tmp_path / "run")
