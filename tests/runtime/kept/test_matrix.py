"""Models, optimizers, families and kinds of replicas trained pruned, beside the same plan dense with masked gradients.

Both run on the same ranks, so that all sums are added up in the same order: weights are equal to the bit.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import torch

from planner.errors import BadInput
from planner.schedule import generate
from tests.draws import SEED, WHOLE, covering
from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.kept.pruned import pruned_plan
from tests.runtime.test_equality import HERE, plan_of

MODELS = ("gpt2", "unet3d", "lstm", "resnet50", "tied")
KINDS = ("adamw", "sgd", "rmsprop", "adagrad", "radam")
FAMILIES = ("1f1b", "chimera", "chimera-zb", "zb-v", "overlap")
REPLICAS = ((1, False), (2, False), (2, True), (3, False), (3, True))  # data, sharded state
STEPS = 20 if WHOLE else 4


class Mixed(NamedTuple):
    model: str
    kind: str
    family: str
    data: int
    shard: bool
    recompute: bool


def cases() -> list[Mixed]:
    """Every model with every optimizer and family; replicas and recomputation are drawn for each."""
    found = []
    for model, kind, family in product(MODELS, KINDS, FAMILIES):
        draw = Random(f"{model}/{kind}/{family}/{0 if WHOLE else SEED}")
        data, shard = draw.choice(REPLICAS)
        found.append(Mixed(model, kind, family, data, shard, draw.random() < 0.3))
    return found


def shape_of(case: Mixed) -> dict[str, object]:
    workers = 1 if case.family == "overlap" else 2
    for micros in (2, 4, 3):
        try:
            schedule = generate(case.family, workers=workers, micros=micros)
        except BadInput:
            continue
        recompute = [0] if case.recompute and schedule.stages > 1 else []
        rolling = case.family == "overlap" and not case.shard
        return {
            "family": case.family,
            "workers": workers,
            "micros": micros,
            "data": case.data,
            "shard": case.shard,
            "recompute": recompute,
            "update": "rolling" if rolling else "barrier",
        }
    raise AssertionError(case)


@pytest.mark.parametrize(
    "case", covering(cases(), lambda case: [*case]), ids=lambda case: "-".join(map(str, case))
)
def test_weights_are_those_of_masked_dense_training_on_the_same_ranks(
    case: Mixed, pool: Pool, tmp_path: Path
) -> None:
    shape, file = shape_of(case), tmp_path / "k"
    settings = {"model": case.model, "kind": case.kind}
    plan = pruned_plan(HERE + "masked.py", settings, file, **shape)
    have = run(pool, plan, tmp_path / "pruned", steps=STEPS, kept=str(file))
    dense = plan_of(HERE + "masked.py", {**settings, "masks": str(file)}, **shape)
    want = run(pool, dense, tmp_path / "dense", steps=STEPS, weights=str(tmp_path / "pruned"))
    assert have.losses == want.losses
    for a, b in zip(have.after, want.after, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a), case
