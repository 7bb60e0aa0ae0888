"""The same training in the plain order and out of order, to be compared to the bit: what tests and benchmark share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from planner.errors import BadInput
from planner.plan import Plan
from planner.schedule import FAMILIES, Overlap, generate
from runtime.runfolder import Losses, mean_loss
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import apart, together
from tests.runtime.plans import plan_for
from tests.runtime.workloads.optimised import KINDS

WORKLOAD = "tests/runtime/workloads/optimised.py"
STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Combination:
    optimizer: str
    family: str
    precision: str
    workers: int
    data: int
    micros: int
    overlap: Overlap
    recompute: bool
    shard: bool
    clip: str  # by whose norm, "" for none

    @property
    def holders(self) -> int:
        """Of every gradient."""
        return self.data * (2 if FAMILIES[self.family].paired else 1)

    @property
    def settings(self) -> dict[str, object]:
        return {"clip_norm": 0.1, "clip_by": self.clip} if self.clip else {}

    def plan(self, *, plain: bool) -> Plan:
        _, captured = captured_of(WORKLOAD, {"kind": self.optimizer}, 2)
        overlap = Overlap() if plain else self.overlap
        stages = generate(self.family, workers=self.workers, micros=self.micros, **overlap.settings()).stages
        return plan_for(
            captured.graph,
            WORKLOAD,
            arguments={"kind": self.optimizer},
            family=self.family,
            workers=self.workers,
            data=self.data,
            micros=self.micros,
            precision=self.precision,
            overlap=overlap,
            recompute=range(stages) if self.recompute else (),
            shard=self.shard,
            update="rolling",
        )


def drawn(seed: int, optimizer: str, family: str, most_ranks: int = 4) -> Combination:
    """One of the combinations of an optimizer and a family that are not refused."""
    draw = Random(f"{seed}/{optimizer}/{family}")
    while True:
        workers = draw.choice((1, 2, 2, 4))
        micros = draw.choice((workers, 2 * workers, 2 * workers + 1))
        data = draw.choice((1, 2, 3, 4))
        if workers * data > most_ranks:
            continue
        try:
            stages = generate(family, workers=workers, micros=micros).stages
        except BadInput:
            continue
        parts = draw.choice([p for p in (1, 2, 3, 4, 8) if p * stages <= 16])
        sums = list(range(stages * parts))
        draw.shuffle(sums)
        at_use = draw.random() < 0.5
        precision = draw.choice(("fp32", "bf16") if at_use else ("fp32", "bf16", "fp16"))
        return Combination(
            optimizer=optimizer,
            family=family,
            precision=precision,
            workers=workers,
            data=data,
            micros=micros,
            overlap=Overlap(
                parts=parts,
                late=draw.randint(0, parts),
                sums=tuple(sums),
                updates="at_use" if at_use else "at_end",
            ),
            recompute=draw.random() < 0.3,
            shard=not at_use and draw.random() < 0.5,
            clip=draw.choice(("", *CLIPPED[at_use, precision == "fp16"])),
        )


CLIPPED = {  # whose norm is to be had, with updates at use or at the end, with a scaler or without
    (True, False): ("previous",),
    (False, False): ("step", "previous"),
    (False, True): ("step",),
}


def every(seed: int) -> list[Combination]:
    return [drawn(seed, optimizer, family) for optimizer in KINDS for family in FAMILIES]


def train(
    pool: Pool, plan: Plan, folder: Path, **settings: object
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of all steps and the parameters at their end."""
    from safetensors.torch import load_file

    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, _ = prepare(model, folder, job_of(plan, STEPS, settings))
    ranks = range(len(plan.places))
    job = "tests.runtime.jobs:train"
    parts = pool.run(job, len(ranks), folder=str(paths.root), steps=STEPS, every=False)
    losses: dict[int, Losses] = {}
    for part in parts:
        assert isinstance(part, dict)
        for step, rows in part.items():
            losses[step] = {**losses.get(step, {}), **rows}
    after = together([load_file(paths.root / f"after-{STEPS}-{rank}.safetensors") for rank in ranks])
    return [mean_loss(losses[step]) for step in sorted(losses)], after


def difference(pool: Pool, combination: Combination, folder: Path) -> float:
    """The largest relative difference of any loss and any parameter."""
    settings = combination.settings
    losses, after = train(pool, combination.plan(plain=True), folder / "plain", **settings)
    others, weights = train(pool, combination.plan(plain=False), folder / "overlapped", **settings)
    assert after.keys() == weights.keys() and len(set(losses)) == STEPS
    steps = (abs(a - b) / abs(a) for a, b in zip(losses, others, strict=True))
    return max(*steps, *(apart(tensor, weights[name]) for name, tensor in after.items()))
