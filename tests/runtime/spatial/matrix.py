"""Networks under splits in space, alone and beside the other axes, in the runtime that launches use."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from planner.plan import Plan
from planner.workload import workload as workloads
from runtime.launch.script import Run
from runtime.runfolder import mean_loss
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.spatial.test_plans import plan_of

WORKLOAD = "tests/runtime/spatial/workloads/networks.py"
NETWORKS = ("cosmoflow", "unet3d", "resnet50", "UNet", "SegResNet", "VNet of images", "VNet")
STEPS = 5
EXACT = 1e-12


@dataclass(frozen=True)
class Hybrid:
    """Every stage on the same grid."""

    grid: tuple[int, ...]
    shape: dict[str, object] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        found = 1
        for parts in self.grid:
            found *= parts
        return found


HYBRIDS = {
    "2 ranks": Hybrid((2,)),
    "4 ranks": Hybrid((4,)),
    "2 x 2 ranks": Hybrid((2, 2)),
    "2 ranks x data": Hybrid((2,), {"data": 2}),
    "2 ranks x pipeline": Hybrid((2,), {"workers": 2}),
    "2 x 2 ranks x pipeline": Hybrid((2, 2), {"workers": 2}),
    "2 ranks x Chimera": Hybrid((2,), {"workers": 2, "family": "chimera"}),
    "2 ranks x split backward": Hybrid((2,), {"workers": 2, "family": "zb-h1"}),
    "2 ranks x data x pipeline": Hybrid((2,), {"data": 2, "workers": 2}),
}
CASES = tuple(product(NETWORKS, HYBRIDS))


def plan(network: str, hybrid: Hybrid) -> Plan:
    shape = {"workers": 1, "micros": 2, **hybrid.shape}
    stages = range(int(str(shape["workers"])))
    return plan_of(
        WORKLOAD, dict.fromkeys(stages, hybrid.grid), hybrid.ranks, arguments={"net": network}, **shape
    )


@dataclass(frozen=True)
class Apart:
    """Largest relative differences of losses from the single process's."""

    first: float
    later: float
    rounding: float  # later ones of a single process whose weights start one rounding away, where asked

    @property
    def equal(self) -> bool:
        """A small ResNet, and norms over few voxels as VNet's, amplify a rounding a millionfold and more."""
        return self.first < EXACT and self.later < max(EXACT, 100 * self.rounding)


def apart(network: str, name: str, pool: Pool, folder: Path) -> Apart:
    chosen = plan(network, HYBRIDS[name])
    have = _together(chosen, pool, folder)
    right = _alone(network, chosen.axes.data)
    found = _apart(have, right)
    moved = _apart(_alone(network, chosen.axes.data, moved=True), right) if max(found) > EXACT else [0.0]
    return Apart(found[0], max(found), max(moved))


def _apart(have: Sequence[float], right: Sequence[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(have, right, strict=True)]


def _together(chosen: Plan, pool: Pool, folder: Path) -> list[float]:
    model = Model(chosen, *captured_of(WORKLOAD, chosen.model.arguments, chosen.batch.micro))
    paths, _ = prepare(model, folder, job_of(chosen, STEPS, {}))
    ranks = len(chosen.places)
    parts = pool.run(
        "tests.runtime.spatial.jobs:losses", ranks, timeout_s=400, folder=str(paths.root), steps=STEPS
    )
    rows: list[dict[int, dict[str, float]]] = [{} for _ in range(STEPS)]
    for part in parts:
        assert isinstance(part, list)
        for row, own in zip(rows, part, strict=True):
            row.update(own)
    return [mean_loss(row) for row in rows]


@cache
def _alone(network: str, replicas: int, *, moved: bool = False) -> tuple[float, ...]:
    """Of one process, which is the same beside every hybrid of as many samples a step."""
    whole = plan(network, Hybrid((), {"data": replicas}))
    workload = workloads.load(WORKLOAD, {name: str(value) for name, value in whole.model.arguments.items()})
    with tempfile.TemporaryDirectory() as folder, Run.open(whole, Path(folder), workload=workload) as run:
        for parameter in run._training.rank.parameters.values() if moved else ():
            parameter.data.mul_(1 + 2**-52)
        batches = run.batches()
        found = tuple(run.step(next(batches)) for _ in range(STEPS))
    del run, batches
    gc.collect()  # a training is held by itself, and large networks by each case would fill the machine
    return found
