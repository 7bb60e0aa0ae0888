"""Samples: each once an epoch whatever the plan, each a function of the seed and its index."""

from __future__ import annotations

import itertools
import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from planner.errors import BadInput
from planner.workload import Workload, seeded
from planner.workload import workload as workloads
from runtime.data import Batches, Wanted
from runtime.data.batches import Joined
from runtime.data.regions import ByValue, received
from runtime.data.stream import Read, Stream, mix
from runtime.launch import launch_inline
from tests.captures import captured_of
from tests.runtime.test_equality import plan_of

DATASET = """
import torch
from torch import nn

def build() -> nn.Module:
    return nn.Linear(2, 1)

def batch(n):
    return torch.randn(n, 2), torch.randn(n, 1)

def loss(outputs, targets):
    return (outputs - targets).square().mean()

class Numbers:
    def __init__(self, length):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, i):
        return torch.tensor([i, i]), torch.tensor([i])

def dataset(length: int = 10):
    return Numbers(length)
"""

SEQUENCE_FIRST = """
import torch
from torch import nn

def build() -> nn.Module:
    return nn.Linear(2, 1)

def batch(n):
    return torch.randn(3, n, 2), (torch.randn(3, n, 1), torch.ones(4))

def loss(outputs, targets):
    return (outputs - targets[0]).square().mean()
"""


BOTH = frozenset({"input", "target"})


@pytest.fixture
def numbered(tmp_path: Path) -> Workload:
    path = tmp_path / "numbered.py"
    path.write_text(DATASET)
    return workloads.load(str(path))


def values_of(inputs: object, targets: object) -> dict[str, Tensor]:
    assert isinstance(inputs, Tensor) and isinstance(targets, Tensor)
    return {"input": inputs, "target": targets}


def batches(workload: Workload, wanted: Wanted, *, seed: int = 0, workers: int = 0) -> Batches:
    return Batches(workload, wanted, values_of, seed=seed, workers=workers)


def indices(found: Batches, steps: int, first: int = 0) -> list[list[int]]:
    source = found.steps(first)
    return [
        [int(i) for m in sorted(batch) for i in batch[m]["target"]]
        for batch in (next(source) for _ in range(steps))
    ]


def test_every_sample_comes_once_an_epoch_whatever_the_plan(numbered: Workload) -> None:
    plans = [  # (micro, micros, replicas) of 4 samples a step
        (1, 4, 1),
        (2, 2, 1),
        (2, 1, 2),
        (1, 1, 4),
    ]
    seen = []
    for micro, micros, replicas in plans:
        parts = [
            indices(
                batches(
                    numbered,
                    Wanted(
                        micros=tuple(range(micros)),
                        first=r * micros,
                        micro=micro,
                        step_samples=4,
                        values=BOTH,
                    ),
                ),
                5,
            )
            for r in range(replicas)
        ]
        seen.append([[i for part in parts for i in part[step]] for step in range(5)])
    assert all(steps == seen[0] for steps in seen)
    stream = [i for step in seen[0] for i in step]
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert stream[:10] != stream[10:] and stream[:10] != list(range(10))


def test_a_rank_loads_only_the_micro_batches_it_reads(numbered: Workload) -> None:
    wanted = Wanted(micros=(1, 3), first=0, micro=2, step_samples=8, values=BOTH)
    assert set(next(batches(numbered, wanted).steps(0))) == {1, 3}
    targets = replace(wanted, values=frozenset({"target"}))
    assert all(set(values) == {"target"} for values in next(batches(numbered, targets).steps(0)).values())
    nothing = Wanted(micros=(), first=0, micro=2, step_samples=8, values=BOTH)
    assert next(batches(numbered, nothing).steps(0)) == {}


def test_a_run_goes_on_at_the_sample_where_it_stopped(numbered: Workload) -> None:
    wanted = Wanted(micros=(0, 1), first=0, micro=2, step_samples=4, values=BOTH)
    whole = indices(batches(numbered, wanted), 6)
    assert indices(batches(numbered, wanted), 3, first=12) == whole[3:]


def test_loading_processes_give_the_same_batches(numbered: Workload) -> None:
    wanted = Wanted(micros=(0, 1), first=0, micro=2, step_samples=4, values=BOTH)
    assert indices(batches(numbered, wanted, workers=1), 3) == indices(batches(numbered, wanted), 3)


def test_the_order_is_a_function_of_the_seed() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        stream = Stream(seed=seed, length=20)
        return [index for _, index in stream.span(20 * number, 20 * number + 20)]

    assert epoch(0, 0) == epoch(0, 0)
    assert len({tuple(epoch(s, n)) for s in (0, 1) for n in (0, 1)}) == 4
    assert sorted(epoch(7, 3)) == list(range(20))


def test_a_synthetic_sample_is_a_function_of_seed_and_index(numbered: Workload) -> None:
    plain = Workload(
        name="x",
        where="x",
        arguments={},
        functions={k: v for k, v in numbered.functions.items() if k != "dataset"},
    )

    def drawn(micro: int, micros: int, seed: int) -> Tensor:
        wanted = Wanted(
            micros=tuple(range(micros)), first=0, micro=micro, step_samples=micro * micros, values=BOTH
        )
        batch = next(batches(plain, wanted, seed=seed).steps(0))
        return torch.cat([batch[m]["input"] for m in range(micros)])

    state = torch.get_rng_state()
    assert torch.equal(drawn(1, 4, 0), drawn(2, 2, 0))
    assert not torch.equal(drawn(1, 4, 0), drawn(1, 4, 1))
    assert torch.equal(torch.get_rng_state(), state)


def test_synthetic_samples_are_joined_along_the_dim_of_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "sequence_first.py"
    path.write_text(SEQUENCE_FIRST)
    workload = workloads.load(str(path))

    def named(inputs: object, targets: object) -> dict[str, Tensor]:
        assert isinstance(inputs, Tensor) and isinstance(targets, tuple)
        return {"input": inputs, "target.0": targets[0], "target.1": targets[1]}

    wanted = Wanted(
        micros=(0,), first=0, micro=5, step_samples=5, values=frozenset({"input", "target.0", "target.1"})
    )
    made = next(Batches(workload, wanted, named, seed=0).steps(0))[0]
    assert made["input"].shape == (3, 5, 2) and made["target.0"].shape == (3, 5, 1)
    assert made["target.1"].shape == (4,)


def test_an_empty_dataset_is_refused(numbered: Workload) -> None:
    empty = workloads.load(numbered.name, {"length": "0"})
    with pytest.raises(BadInput, match="no samples"):
        batches(empty, Wanted(micros=(0,), first=0, micro=1, step_samples=1, values=BOTH))


LENGTHS = """
import torch
import torch.nn.functional as F
from torch import nn

def build():
    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))

def batch(n):
    return torch.randn(n, 6, 2), torch.randn(n, 6, 3)

def loss(outputs, targets):
    return F.mse_loss(outputs, targets)

class Growing:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        length = 6 if i else 7
        return torch.randn(length, 2), torch.randn(length, 3)

def dataset():
    return Growing()

def collate(samples):
    inputs, targets = zip(*samples)
    return torch.stack(inputs), torch.stack(targets)
"""


def test_a_sample_of_another_length_is_refused_with_what_was_captured(tmp_path: Path) -> None:
    path = tmp_path / "lengths.py"
    path.write_text(LENGTHS)
    plan = plan_of(str(path), {}, workers=1, micros=1, micro=1)
    wrong = (
        r"'(input|target)' of a micro-batch of 1 is float32\[1, 7, .\] \(allowed: float32\[1, 6, .\] a sample"
    )
    with pytest.raises(BadInput, match=wrong):
        launch_inline(plan, tmp_path / "run", steps=8)


FAULTY = """
import torch
import torch.nn.functional as F
from torch import nn

def build():
    return nn.Linear(2, 3)

def batch(n):
    return torch.randn(n, 2), torch.randn(n, 3)

def loss(outputs, targets):
    return F.mse_loss(outputs, targets)

class Faulty:
    def __init__(self, fault):
        self.fault = fault
    def __len__(self):
        return 8
    def __getitem__(self, i):
        if i == 5 and self.fault == "raises":
            raise KeyError("no such image")
        if i == 5 and self.fault == "is None":
            return None
        return torch.randn(3 if i == 5 else 2), torch.randn(3)

def dataset(fault="raises"):
    return Faulty(fault)
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", r"faulty\.py:\d+: sample 5 raised KeyError: 'no such image'"),
        ("is None", r"collate\(\): samples .*5.* do not make a batch: .*sample \d is .*, the one before "),
        (
            "is long",
            r"collate\(\): samples .*5.* do not make a batch: .*sample \d is float32\[\d\], .*the one before",
        ),
    ],
)
def test_a_sample_that_fails_is_named_by_its_index(
    fault: str, said: str, workers: int, tmp_path: Path
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    workload = workloads.load(str(tmp_path / "faulty.py"), {"fault": fault})
    wanted = Wanted(micros=(0, 1), first=0, micro=4, step_samples=8, values=BOTH)
    with pytest.raises(BadInput, match=said):
        next(
            Batches(workload, wanted, lambda x, y: {"input": x, "target": y}, seed=0, workers=workers).steps(
                0
            )
        )


def test_samples_of_a_shape_that_was_not_captured_are_named_by_their_indices(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    workload, captured = captured_of(str(tmp_path / "faulty.py"), {"fault": "is long"}, 1)
    wanted = Wanted(micros=(0,), first=0, micro=1, step_samples=1, values=BOTH)
    data = Batches(workload, wanted, captured.batch_values, seed=0, graph=captured.graph).steps(0)
    with pytest.raises(
        BadInput, match=r"the data, of samples 5: 'input' of a micro-batch of 1 is float32\[1, 3\]"
    ):
        for _ in range(8):
            next(data)


def test_a_collation_that_draws_is_the_same_on_every_rank_in_every_run_and_leaves_no_mark(
    numbered: Workload,
) -> None:
    def drawn() -> Tensor:
        return torch.rand(2, 2) + np.random.random() + random.random()

    def masked(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        mask = drawn()
        return mask, mask

    workload = replace(numbered, functions={**numbered.functions, "collate": masked})
    wanted = Wanted(micros=(0, 1), first=0, micro=2, step_samples=4, values=BOTH)

    def masks(only: str, *, first: int = 0, workers: int = 0) -> list[Tensor]:
        made = batches(workload, replace(wanted, values=frozenset({only})), workers=workers).steps(first)
        return [next(iter(step[micro].values())) for step in itertools.islice(made, 3) for micro in (0, 1)]

    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    inputs = masks("input")
    assert before[0].equal(torch.get_rng_state()) and before[2] == random.getstate()
    assert before[1] == np.random.get_state()[1].tolist()
    torch.rand(1), np.random.random(), random.random()
    for again in (masks("target"), masks("target", workers=1)):
        assert all(a.equal(b) for a, b in zip(inputs, again, strict=True))
    assert all(a.equal(b) for a, b in zip(inputs[2:], masks("input", first=4), strict=False))
    with seeded(mix(0, 2)):
        assert inputs[1].equal(drawn()) and not inputs[0].equal(inputs[1])


def test_what_readers_hand_over_by_value_or_in_shared_memory_is_what_was_joined() -> None:
    tensors = [
        torch.arange(6).reshape(2, 3).t(),
        torch.randn(3).to(torch.bfloat16),
        torch.tensor(True),
        torch.zeros(0, 4),
        torch.tensor([1 + 2j]).conj(),
        torch.randn(2**17),  # large
    ]
    joined = ({"a": tensors, "text": ["b"]}, (torch.tensor(3), 4))
    read = [Read(1, 7, object())]
    numbers, handed = pickle.loads(pickle.dumps(Joined(lambda _: joined, by_value=True)(read)))
    leaves = pytree.tree_leaves(handed, is_leaf=lambda x: isinstance(x, ByValue))
    assert sum(isinstance(x, ByValue) for x in leaves) == 5
    numbers, pair = received((numbers, handed))
    assert numbers == [7] and pytree.tree_structure(pair) == pytree.tree_structure(joined)
    for have, want in zip(pytree.tree_leaves(pair), pytree.tree_leaves(joined), strict=True):
        if isinstance(want, Tensor):
            assert have.dtype == want.dtype and torch.equal(have, want)
            have.clone().zero_()
        else:
            assert have == want
