"""What a training needs beside its gradients, under plans: each thing as one process would have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.capture import capture
from planner.capture.stage_modules import whole
from planner.errors import BadInput, BadPlan
from runtime import checkpoint as checkpoints
from runtime.checkpoint import integrity
from runtime.draws import Keys, key_random_operations, random_operations
from runtime.execute import NotFinite
from runtime.launch import launch_inline
from runtime.rank import check_supported
from runtime.train import Model, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime import compare
from tests.runtime.compare import apart, distance, expected, run
from tests.runtime.plans import plan_for
from tests.runtime.test_equality import HERE, plan_of


def test_the_loss_is_the_mean_over_what_was_counted_not_over_means(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"counted": "true", "double": "true"}, workers=2, micros=3, data=2)
    have = run(pool, plan, tmp_path)
    found = distance(expected(plan, tmp_path), have)
    assert found.worst() <= 1e-12, found


@pytest.mark.parametrize("family", ["1f1b", "zb-v", "chimera"])
def test_micro_batches_add_up_to_the_whole_batch(family: str, pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "True"}, family=family, workers=2, micros=4)
    have = run(pool, plan, tmp_path, steps=2)
    found = distance(expected(plan, tmp_path, steps=2, micro=plan.batch.samples), have)
    assert found.worst() <= 1e-12, found


@pytest.mark.parametrize("family", ["1f1b", "chimera"])
def test_clipping_is_by_the_norm_of_all_stages(family: str, pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "True"}, family=family, workers=2, micros=2)
    have = run(pool, plan, tmp_path, clip_norm=0.1)
    want = expected(plan, tmp_path, clip_norm=0.1)
    assert distance(want, have).worst() <= 1e-6  # torch clips by norm + 1e-6, in the type of the gradients
    assert (
        max(apart(g, want.grads[n]) for n, g in expected(plan, tmp_path).grads.items()) > 0.1
    )  # it did clip


@pytest.mark.parametrize(
    ("family", "shape"),
    [("1f1b", {}), ("1f1b", {"data": 2}), ("chimera", {}), ("zb-h1", {"recompute": (0, 1)})],
)
def test_running_statistics_are_those_of_one_process(
    family: str, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(HERE + "normalised.py", {}, family=family, workers=2, micros=4, **shape)
    have = run(pool, plan, tmp_path, steps=3)
    found = distance(expected(plan, tmp_path, steps=3), have)
    statistics = {name: d for name, d in found.after.items() if "running" in name or "tracked" in name}
    assert len(statistics) == 9
    exact = family != "chimera" and "data" not in shape
    assert max(statistics.values()) <= (0.0 if exact else 1e-6), statistics
    assert found.worst() <= (0.0 if exact else 1e-6), found


@pytest.mark.parametrize(
    "settings", [{"momentum": "0"}, {"twice": "True"}, {"momentum": "0", "twice": "True"}]
)
@pytest.mark.parametrize(
    ("family", "shape"), [("1f1b", {"data": 2}), ("chimera", {"data": 2}), ("zb-h1", {"recompute": (0, 1)})]
)
def test_averages_of_all_batches_and_norms_used_twice_are_those_of_one_process(
    family: str, shape: dict[str, object], settings: dict[str, str], pool: Pool, tmp_path: Path
) -> None:
    arguments = {"double": "True", **settings}
    plan = plan_of(HERE + "normalised.py", arguments, family=family, workers=2, micros=2, **shape)
    have = run(pool, plan, tmp_path, steps=3)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() <= 1e-12, found


class Renormalised(torch.nn.Module):
    """A tied embedding whose rows are shortened where they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.line = torch.nn.Embedding(5, 4, max_norm=0.5), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.line(self.rows(x)), self.rows.weight)


@pytest.mark.parametrize(
    "shape", [{"data": 2, "micros": 2}, {"family": "chimera", "workers": 2, "micros": 2}]
)
def test_a_weight_that_the_forward_writes_is_used_in_one_stage_and_refused_over_replicas(
    shape: dict[str, object],
) -> None:
    loss = torch.nn.functional.cross_entropy
    module = torch.nn.Sequential(Renormalised(), torch.nn.Linear(5, 5))
    captured = capture(module, lambda n: (torch.randint(5, (n,)), torch.randint(5, (n,))), loss)
    assert captured.graph.parameter["0.rows.weight"].users == ("0.rows",)
    plan = plan_for(captured.graph, "any.py", **({"family": "1f1b", "workers": 1} | shape))  # type: ignore[arg-type]
    with pytest.raises(BadPlan, match=r"writes parameter '0\.rows\.weight' .*data: 1"):
        check_supported(plan, captured)


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "chimera-zb"])
def test_recomputed_stages_change_nothing(family: str, pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(
        HERE + "branches.py", {"double": "False"}, family=family, workers=2, micros=4, recompute=(0, 1)
    )
    assert any("R" in line for line in plan.schedule.orders)
    have = run(pool, plan, tmp_path)
    found = distance(expected(plan, tmp_path), have)
    assert found.worst() <= 1e-6, found


@pytest.mark.parametrize("shape", [{}, {"recompute_first": 2}])
def test_what_is_recomputed_reads_buffers_as_the_forward_did(
    shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(
        HERE + "remembers.py",
        {},
        family="1f1b",
        workers=2,
        micros=4,
        cuts=[3],
        recompute=(0, 1),
        **shape,
    )
    assert any("R" in line for line in plan.schedule.orders)
    have = run(pool, plan, tmp_path)
    assert distance(expected(plan, tmp_path), have).worst() == 0.0


def test_a_buffer_written_through_a_view_is_known_to_be() -> None:
    _, captured = captured_of(HERE + "remembers.py", {}, 2)
    assert [b.name for b in captured.graph.buffers if b.mutated][:3] == ["1.average", "1.seen", "2.codes"]


@pytest.mark.parametrize("workload", ["dropping.py", "drawing.py"])
@pytest.mark.parametrize(
    ("family", "shape"),
    [("1f1b", {"recompute": (0,)}), ("chimera", {}), ("zb-v", {}), ("1f1b", {"data": 2, "micros": 2})],
)
def test_dropout_does_not_depend_on_the_plan(
    workload: str, family: str, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(HERE + workload, {}, **({"family": family, "workers": 2, "micros": 4} | shape))
    have = run(pool, plan, tmp_path / "plan", steps=3)
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, 2))
    inline = launch_inline(plan, tmp_path / "inline", steps=3, workload=model.workload)
    for step, loss in inline.losses.items():
        assert loss == pytest.approx(have.losses[step - 1], rel=1e-6)
    assert len(set(inline.losses.values())) == 3


def test_dropout_is_keyed_by_step_micro_batch_and_operation(tmp_path: Path) -> None:
    workload, captured = captured_of(HERE + "dropping.py", {}, 2)

    module, keys = whole(captured), Keys(0, torch.device("cpu"))
    module.materialise(captured.initial(workload.build()))
    key_random_operations(module, keys, range(len(random_operations(module))))
    values = captured.batch_values(*workload.batch(2))

    def made(step: int, micro: int) -> float:
        keys.step, keys.micro = step, micro
        return float(module(values)["loss:0"].detach())

    assert made(1, 0) == made(1, 0)
    assert len({made(1, 0), made(1, 1), made(2, 0)}) == 3


def test_bf16_trains_with_parameters_and_gradients_in_fp32(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "9"}, workers=2, micros=4, precision="bf16")
    split = plan_of(HERE + "mlp.py", {"layers": "9"}, family="zb-h1", workers=2, micros=4, precision="bf16")
    have, halves = run(pool, plan, tmp_path / "a"), run(pool, split, tmp_path / "b")
    assert {g.dtype for g in have.grads.values()} == {torch.float32}
    exact = run(pool, plan_of(HERE + "mlp.py", {"layers": "9"}, workers=2, micros=4), tmp_path / "c")
    assert 0 < max(apart(g, have.grads[n]) for n, g in exact.grads.items()) < 0.1
    assert have.losses == halves.losses
    assert all(torch.equal(g, halves.grads[n]) for n, g in have.grads.items())


@pytest.mark.parametrize("shape", [{"data": 2}, {"family": "chimera"}])
def test_sharded_optimizer_state_gives_the_same_weights(
    shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    common = {"workers": 2, "micros": 4} | shape
    plan = plan_of("mlp", {"layers": "9"}, **common)
    whole, sharded = plan, plan_of("mlp", {"layers": "9"}, shard=True, **common)
    a, b = run(pool, whole, tmp_path / "a", steps=3), run(pool, sharded, tmp_path / "b", steps=3)
    assert all(torch.equal(x[n], y[n]) for x, y in zip(a.after, b.after, strict=True) for n in x)


@pytest.mark.parametrize("shape", [{}, {"data": 2, "micros": 2, "shard": True}])
def test_an_optimizer_may_be_for_parameters_that_a_rank_has_none_of(
    shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    arguments = {"layers": "3", "only": "0."}
    common: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 2, "cuts": [1]}
    plan = plan_of(HERE + "mlp.py", arguments, **(common | shape))
    have = run(pool, plan, tmp_path, steps=2)
    assert distance(expected(plan, tmp_path, steps=2), have).worst() <= 1e-6
    first, last = have.after[0], have.after[-1]
    still = {name for name in first if torch.equal(first[name], last[name])}
    assert still and still != first.keys()


def test_an_optimizer_of_nothing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "3", "only": "nowhere"}, workers=1)
    with pytest.raises(BadInput, match="empty parameter list"):
        launch_inline(plan, tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_a_number_that_no_checkpoint_holds_is_refused_by_the_name_of_its_parameter() -> None:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = torch.nn.Parameter(torch.ones(3, dtype=torch.complex128))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.by).real

    module = torch.nn.Sequential(Turned(), torch.nn.Linear(3, 3).double())
    captured = capture(
        module, lambda n: (torch.randn(n, 3, dtype=torch.float64),) * 2, torch.nn.functional.mse_loss
    )
    plan = plan_for(captured.graph, "any.py", family="1f1b", workers=1)
    with pytest.raises(BadPlan, match=r"'0\.by': is complex128, .*; complex64"):
        check_supported(plan, captured)


def test_a_loss_that_is_not_finite_is_named_by_step_stage_and_micro_batch(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "9", "lr": "1e25"}, workers=2, micros=2)
    with pytest.raises(
        RuntimeError, match=r"NotFinite: step \d: stage \d, layer '.*' made .* micro-batch \d"
    ):
        run(pool, plan, tmp_path)


POISONED = """
import torch
import torch.nn.functional as F
from torch import nn

class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
    def forward(self, x):
        return self.line(x).sqrt() if self.bad else self.line(x).relu()

def build():
    layers = [Root() for _ in range(4)]
    for i, layer in enumerate(layers):
        layer.bad = i == 2
    return nn.Sequential(*layers, nn.Linear(4, 3))

def batch(n):
    return torch.ones(n, 4), torch.zeros(n, dtype=torch.int64)

def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)
"""


def test_the_layer_that_makes_nan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "poisoned.py"
    path.write_text(POISONED)
    plan = plan_of(str(path), {}, workers=1, micros=1)
    with pytest.raises(NotFinite, match=r"step 1: stage 0, layer '2.line' made NaN .* micro-batch 0"):
        launch_inline(plan, tmp_path / "run", steps=1)


def test_a_plan_for_another_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "9"}, workers=2, micros=2)
    other = plan.model_copy(update={"model": plan.model.model_copy(update={"fingerprint": "sha256:0"})})
    model = Model(other, *captured_of(HERE + "mlp.py", {"layers": "9"}, 2))
    with pytest.raises(BadPlan, match="another model"):
        prepare(model, tmp_path, compare.job_of(other, 1, {}))


def test_fp16_leaves_out_steps_whose_gradients_overflow_and_then_trains(pool: Pool, tmp_path: Path) -> None:
    arguments = {"layers": "9", "factor": "300"}
    plan = plan_of(HERE + "mlp.py", arguments, workers=2, micros=4, precision="fp16")
    have = run(pool, plan, tmp_path, steps=8)
    start = integrity.complete(tmp_path / "checkpoints")[0]
    begun = checkpoints.Checkpoint.open(start).parameters(have.after[0])
    moved = [any(not torch.equal(state[name], begun[name]) for name in begun) for state in have.after]
    assert not moved[0] and moved[-1], moved


def test_fp16_gradients_are_unscaled(pool: Pool, tmp_path: Path) -> None:
    half = plan_of(HERE + "mlp.py", {"layers": "9"}, workers=2, micros=4, precision="fp16")
    full = plan_of(HERE + "mlp.py", {"layers": "9"}, workers=2, micros=4)
    a, b = run(pool, half, tmp_path / "a", steps=1), run(pool, full, tmp_path / "b", steps=1)
    assert 0 < max(apart(g, a.grads[n]) for n, g in b.grads.items()) < 0.02


@pytest.mark.parametrize("family", ["1f1b", "chimera"])
def test_a_learning_rate_schedule_moves_once_a_step(family: str, pool: Pool, tmp_path: Path) -> None:
    shape = {"family": family, "workers": 2, "micros": 2}
    plan = plan_of(HERE + "mlp.py", {"layers": "9", "gamma": "0.5"}, **shape)
    have = run(pool, plan, tmp_path / "a", steps=3)
    want = expected(plan, tmp_path / "a", steps=3)
    assert distance(want, have).worst() <= (0.0 if family == "1f1b" else 1e-6)
    still = run(pool, plan_of(HERE + "mlp.py", {"layers": "9"}, **shape), tmp_path / "b", steps=3)
    assert any(not torch.equal(x, still.after[2][n]) for n, x in have.after[2].items())


def test_fewer_micro_batches_than_stages_train_as_well(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, workers=3, micros=1)
    have = run(pool, plan, tmp_path)
    assert distance(expected(plan, tmp_path), have).worst() <= 1e-6


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_compiled_stages_train_as_eager_ones(family: str, pool: Pool, tmp_path: Path) -> None:
    shape = {"family": family, "workers": 2, "micros": 2}
    compiled = plan_of(HERE + "mlp.py", {"layers": "9"}, **shape).model_copy(update={"execution": "compiled"})
    have = run(pool, compiled, tmp_path, steps=2)
    found = distance(expected(compiled, tmp_path, steps=2), have)
    assert found.worst() <= 1e-5, found
