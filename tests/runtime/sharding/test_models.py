"""Models of every kind train alike whatever replicas share, for five steps."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from shutil import copytree

import pytest

from planner.plan import Plan
from runtime.checkpoint import complete
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.draws import covering, part
from tests.pool import Pool
from tests.runtime.sharding.test_shared import ORDERS, SHARED, pair
from tests.runtime.sharding.test_wire import states
from tests.runtime.test_equality import HERE, plan_of

MODELS = {
    "gpt2": (HERE + "gpt2.py", {"size": "tiny"}),
    "bert": (HERE + "bert.py", {"size": "tiny"}),
    "resnet50": (HERE + "resnet50.py", {"side": "32", "width": "8"}),
    "unet3d": (HERE + "unet3d.py", {"size": "tiny"}),
    "lstm": (HERE + "lstm.py", {"size": "tiny"}),
    "llama": (HERE + "hf_llama.py", {}),
    "t5": (HERE + "hf_t5.py", {}),
}


ROWS = {"2": (2, 0), "3": (3, 0), "4": (4, 0), "2 x 2": (4, 2)}  # replicas, and ranks of a copy
GROWING = {"resnet50"}  # batch norms of two samples: see the test at the end
DOUBLE = {"unet3d"}  # norms of few voxels make three millionths of a rounding in five steps of fp32
EVERY = [
    case
    for case in product(MODELS, SHARED, ROWS)
    if case[1:] != ("state", "2 x 2")  # whole parameters have one owner among all replicas
]


@pytest.mark.parametrize(("name", "sharing", "row"), covering(EVERY, kinds=lambda case: (case[0], case[1:])))
def test_a_model_trains_alike(name: str, sharing: str, row: str, pool: Pool, tmp_path: Path) -> None:
    """Each element is added up in the order of ranks, so it is the same to the bit; of copies in another order."""
    (workload, arguments), (data, ranks) = MODELS[name], ROWS[row]
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": data}
    steps, fine = 1 if ranks and name in GROWING else 5, bool(ranks) and name in DOUBLE
    arguments = arguments | {"double": "True"} if fine else arguments
    found = pair(pool, tmp_path, workload, arguments, sharing, ranks, steps=steps, **shape)
    assert found <= (1e-12 if fine else 1e-6 if ranks else 0.0)


@pytest.mark.parametrize(
    ("name", "sharing", "order"), part([x for x in product(MODELS, SHARED, ORDERS) if "walks" not in x[2]], 3)
)
def test_a_model_trains_alike_in_any_order(
    name: str, sharing: str, order: str, pool: Pool, tmp_path: Path
) -> None:
    """Micro-batches are added up in another order where each is summed among replicas by itself."""
    workload, arguments = MODELS[name]
    arguments = arguments | {"double": "True"} if name in DOUBLE else arguments
    steps = 1 if name in GROWING else 5
    found = pair(pool, tmp_path, workload, arguments, sharing, steps=steps, **ORDERS[order])
    assert found <= (1e-12 if name in DOUBLE else 1e-6)


@pytest.mark.parametrize("sharing", part(("gradients", "parameters"), 1))
def test_batch_norms_of_two_samples_take_the_same_step_from_the_same_weights(
    sharing: str, pool: Pool, tmp_path: Path
) -> None:
    """Two copies sum in another order, and a rounding of that grows a thousandfold a step, in double precision too.

    It is the network and no fault: replicas that share nothing come as far apart where a ring sums their gradients.
    """
    file, arguments = HERE + "resnet50.py", MODELS["resnet50"][1] | {"double": "True"}
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": 4}
    whole = plan_of(file, arguments, **shape)
    shared = plan_of(file, arguments, sharing=sharing, ranks=2, **shape)
    saved(pool, whole, tmp_path / "whole", steps=5)
    after = complete(tmp_path / "whole" / "checkpoints")
    for first, then in part(list(pairwise(after)), 2):
        saved(pool, shared, tmp_path / then.name, first)
        a, b = states(then), states(complete(tmp_path / then.name / "checkpoints")[-1])
        assert a.keys() == b.keys() and any("/" in name for name in a)
        assert max(float((a[name] - b[name]).abs().max()) for name in a) <= 1e-12, then


def saved(pool: Pool, plan: Plan, folder: Path, before: Path | None = None, steps: int = 1) -> None:
    """Trains from a checkpoint or from the first weights, and writes a checkpoint after each step."""
    workload, captured = captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)
    prepare(Model(plan, workload, captured), folder, job_of(plan, 5, {"keep": 6}))
    if before is not None:
        copytree(before, folder / "checkpoints" / before.name, dirs_exist_ok=True)
    pool.run(
        "tests.runtime.sharding.wire:saved", len(plan.places), folder=str(folder), steps=steps, every=True
    )
