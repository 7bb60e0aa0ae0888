"""A pruned training equals masked dense training in one process: every family, optimizer and kind of replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pool import Pool
from tests.runtime.kept.pruned import apart
from tests.runtime.test_equality import FAMILY_NAMES, HERE, sample

OPTIMIZERS = ("adamw", "momentum", "rmsprop", "adagrad")


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_trains_pruned_as_one_process_does(family: str, pool: Pool, tmp_path: Path) -> None:
    shape: dict[str, object] = {"family": family, **sample(family)}
    found = apart(pool, tmp_path, HERE + "branches.py", {"double": "True"}, **shape)
    assert found <= 1e-12


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_trains_pruned_to_the_bit(kind: str, pool: Pool, tmp_path: Path) -> None:
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 3}
    assert apart(pool, tmp_path, HERE + "optimised.py", {"kind": kind}, **shape) == 0.0


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("data", [2, 3])
def test_replicas_train_pruned_to_the_bit(data: int, shard: bool, pool: Pool, tmp_path: Path) -> None:
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": data, "shard": shard}
    assert apart(pool, tmp_path, HERE + "mlp.py", {"layers": "5"}, **shape) == 0.0
