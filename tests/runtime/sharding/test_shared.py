"""Trainings whose gradients or parameters replicas share equal those where each holds all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan import StageShard
from planner.schedule import Overlap
from tests.pool import Pool
from tests.runtime.compare import Run, run
from tests.runtime.test_equality import HERE, plan_of

SHARED = ("state", "gradients", "parameters")
WHOLE: dict[tuple[object, ...], Run] = {}


def apart(a: Run, b: Run) -> float:
    """The largest difference of a loss, or of an element of a parameter after any step."""
    found = [abs(x - y) for x, y in zip(a.losses, b.losses, strict=True)]
    for x, y in zip(a.after, b.after, strict=True):
        assert x.keys() == y.keys()
        found += [float((x[n].double() - y[n].double()).abs().max()) for n in x if x[n].numel()]
    return max(found)


def pair(
    pool: Pool,
    folder: Path,
    workload: str,
    arguments: dict[str, str],
    sharing: str,
    ranks: int = 0,
    steps: int = 3,
    **shape: object,
) -> float:
    key = (workload, Path(workload).read_text(), repr(arguments), repr(shape), steps)
    if key not in WHOLE:  # what it is compared with is the same for all that is shared
        WHOLE[key] = run(pool, plan_of(workload, arguments, **shape), folder / "whole", steps=steps)
    plan = plan_of(workload, arguments, sharing=sharing, ranks=ranks, **shape)
    return apart(WHOLE[key], run(pool, plan, folder / "shared", steps=steps))


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("data", [2, 3])
def test_a_step_of_one_micro_batch_is_the_same_to_the_bit(
    sharing: str, data: int, pool: Pool, tmp_path: Path
) -> None:
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": data}
    assert pair(pool, tmp_path, HERE + "mlp.py", {"layers": "5"}, sharing, **shape) == 0.0


@pytest.mark.parametrize("sharing", SHARED)
def test_a_training_that_is_over_leaves_no_thread_behind(sharing: str, pool: Pool, tmp_path: Path) -> None:
    """Autograd never lets go of the hook of a parameter, nor of what that holds."""
    plan = plan_of(HERE + "mlp.py", {}, sharing=sharing, family="1f1b", workers=1, micros=1, data=2)
    before = None
    for time in range(3):
        run(pool, plan, tmp_path / str(time), steps=1)
        after = pool.run("tests.runtime.sharding.wire:threads", 2)
        assert before in (None, after)
        before = after


@pytest.mark.parametrize("sharing", SHARED)
def test_ties_frozen_layers_and_several_micro_batches_make_no_difference(
    sharing: str, pool: Pool, tmp_path: Path
) -> None:
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 3, "data": 2}
    found = pair(pool, tmp_path, HERE + "branches.py", {"double": "True"}, sharing, **shape)
    assert found <= (0.0 if sharing == "state" else 1e-12)


@pytest.mark.parametrize("sharing", ["gradients", "parameters"])
def test_two_copies_and_recomputation_make_no_difference(sharing: str, pool: Pool, tmp_path: Path) -> None:
    rows: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 2, "data": 4, "recompute": [0]}
    assert pair(pool, tmp_path, HERE + "branches.py", {"double": "True"}, sharing, 2, **rows) <= 1e-12


ORDERS: dict[str, dict[str, object]] = {
    "zb-h1": {"family": "zb-h1", "workers": 2, "micros": 4, "data": 2},
    "zb-h1 whose W walks": {"family": "zb-h1", "workers": 2, "micros": 3, "data": 2},
    "interleaved": {"family": "interleaved", "workers": 2, "micros": 2, "data": 2},
    "chimera": {"family": "chimera", "workers": 2, "micros": 2, "data": 2},
    "chimera of two pairs": {"family": "chimera", "workers": 4, "micros": 4, "data": 2, "pairs": 2},
    "stages recomputed": {"family": "1f1b", "workers": 2, "micros": 3, "data": 2, "recompute": [0, 1]},
    "a part recomputed": {
        "family": "1f1b", "workers": 1, "micros": 2, "data": 2, "recompute": [0], "recompute_first": 3,
    },
    "parts of a stage out of order": {
        "family": "1f1b", "workers": 1, "micros": 2, "data": 2, "overlap": Overlap(parts=3, late=2),
    },
    "rolling": {"family": "1f1b", "workers": 2, "micros": 3, "data": 2, "update": "rolling"},
}  # fmt: skip


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("name", ORDERS)
def test_orders_make_no_difference(name: str, sharing: str, pool: Pool, tmp_path: Path) -> None:
    file = "walking.py" if "walks" in name else "branches.py"
    arguments = {} if "walks" in name else {"double": "True"}
    found = pair(pool, tmp_path, HERE + file, arguments, sharing, **ORDERS[name])
    assert found <= (1e-6 if "walks" in name else 1e-12)


@pytest.mark.parametrize("sharing", SHARED)
def test_an_embedding_tied_over_the_first_and_the_last_stage_is_summed_in_equal_parts(
    sharing: str, pool: Pool, tmp_path: Path
) -> None:
    """Megatron-LM #844: both stages had parts of the same weight that were cut otherwise, and their sum was wrong."""
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 2, "data": 2}
    found = pair(pool, tmp_path, HERE + "gpt2.py", {"size": "tiny"}, sharing, **shape)
    assert found <= (0.0 if sharing == "state" else 1e-6)


ODD = """
import torch
import torch.nn.functional as F
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3).double()
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.block = nn.ModuleList([Both()])

    def forward(self, x):
        hidden = self.first(torch.tanh(self.frozen(x)) * self.scale)
        return self.second(self.block[0](hidden).double())


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5).double()

    def forward(self, x):
        return torch.tanh(self.other(self.one(x).double())).float()


def build():
    torch.manual_seed(0)
    return Odd()


def batch(n):
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters):
    return torch.optim.AdamW([p for _, p in named_parameters], lr=0.01)
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("odd") / "odd.py"
    file.write_text(ODD)
    return file


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("data", [2, 4])
def test_units_smaller_than_their_ranks_single_numbers_and_two_types_make_no_difference(
    sharing: str, data: int, odd: Path, pool: Pool, tmp_path: Path
) -> None:
    """A frozen layer stays whole, a stage may have nothing that trains, and a unit two types."""
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 1, "data": data, "cuts": [1]}
    assert pair(pool, tmp_path, str(odd), {}, sharing, **shape) == 0.0


GROUPED = """
import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 70), nn.Tanh(), nn.Linear(70, 3))


def batch(n):
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters):
    groups = [
        {"params": [p], "lr": 0.1 if p.numel() > LARGE else 0.01, "weight_decay": 0.1 if p.shape[0] > 64 else 0.0}
        for _, p in named_parameters
    ]
    return torch.optim.KIND(groups)
"""


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad"])
@pytest.mark.parametrize("sharing", SHARED)
def test_an_optimizer_that_groups_by_size_is_told_the_sizes_of_whole_parameters(
    sharing: str, kind: str, pool: Pool, tmp_path: Path
) -> None:
    """Sizes that no trial has seen, which takes small stand-ins; Adagrad has state before its first step."""
    file = tmp_path / "grouped.py"
    file.write_text(GROUPED.replace("KIND", kind).replace("LARGE", "200"))
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": 3}
    assert pair(pool, tmp_path, str(file), {}, sharing, **shape) == 0.0


@pytest.mark.parametrize(
    "kinds", [("parameters", ""), ("", "parameters"), ("gradients", "state"), ("state", "parameters")]
)
def test_stages_may_share_each_in_its_own_way(kinds: tuple[str, str], pool: Pool, tmp_path: Path) -> None:
    """As a plan that is edited by hand has it; the norm of all gradients clips both."""
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 2, "data": 2}
    arguments = {"layers": "5", "width": "16"}
    plan = plan_of(HERE + "mlp.py", arguments, **shape)
    stages = tuple(
        stage.model_copy(update={"shard": StageShard(what=what) if what else None})  # type: ignore[arg-type]
        for stage, what in zip(plan.stages, kinds, strict=True)
    )
    mixed = plan.model_copy(update={"stages": stages})
    whole = run(pool, plan, tmp_path / "whole", steps=3, clip_norm=0.01)
    assert apart(whole, run(pool, mixed, tmp_path / "mixed", steps=3, clip_norm=0.01)) <= 1e-6
