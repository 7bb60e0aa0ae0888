"""What the loop around the steps costs beside the bare interpreter, and whether it trains as a loop of plain torch does."""

from __future__ import annotations

import copy
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import shardwright as sw
from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.runtime_costs import single_model
from runtime import checkpoint as checkpoints
from runtime.train import NoPulse, job_of, prepare
from runtime.train.training import Training
from runtime.world import alone

LAPTOP = Path(__file__).parent.parent / "plans" / "clusters" / "laptop.yaml"
AIM_SHARE, STEP_MS = 0.01, 50.0
BATCH, EVERY, CLIP, RATE, WORDS, LENGTH = 16, 50, 0.5, 1e-3, 97, 24


@dataclass
class Beside:
    """Is asked before every step of the loop, and runs a step of the bare interpreter there."""

    training: Training
    loop: list[tuple[float, float]] = field(default_factory=list)  # seconds on the clock and of the processor
    bare: list[tuple[float, float]] = field(default_factory=list)
    _since: tuple[float, float] = (0.0, 0.0)

    def before(self, step: int) -> bool:
        if step == 1:
            self._batch = next(self.training.batches())
        else:
            self.loop.append(_passed(self._since))
        begin = _now()
        self.training.rank.step(step, self._batch)
        self.bare.append(_passed(begin))
        self._since = _now()
        return False


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def _passed(since: tuple[float, float]) -> tuple[float, float]:
    now = _now()
    return now[0] - since[0], now[1] - since[1]


def cost_table(rounds: int) -> Table:
    torch.set_num_threads(1)
    rows: list[tuple[Cell, ...]] = []
    every: dict[str, dict[str, object]] = {
        "metrics of each step": {},
        "and the gradients' norm": {"grad_norm": True},
    }
    for name, settings in every.items():
        with tempfile.TemporaryDirectory() as folder:
            model = single_model("gpt2", {"size": "tiny"})
            paths, job = prepare(model, Path(folder), job_of(model.plan, rounds + 3, settings))
            start = checkpoints.latest(paths.checkpoints)
            assert start is not None
            training = Training(model, start, alone(torch.device("cpu")), job, paths, NoPulse())
            beside = Beside(training)
            training.run(beside)
        pairs = [*zip(beside.loop, beside.bare[:-1], strict=True)][2:]
        wall, processor = (statistics.median(1e3 * (a[i] - b[i]) for a, b in pairs) for i in (0, 1))
        step = statistics.median(1e3 * b[0] for _, b in pairs)
        rows.append((name, step, wall, processor, wall / STEP_MS, processor / STEP_MS))
    return Table(
        title="A step of the loop beside a step of the bare interpreter, in turns, one rank",
        columns=(
            "what the loop does",
            "bare step ms",
            "loop more, ms",
            "loop more, ms CPU",
            f"of a step of {STEP_MS:g} ms",
            f"CPU, of a step of {STEP_MS:g} ms",
        ),
        rows=rows,
        notes=(
            "Medians of pairs. The loop draws samples, writes a line of metrics, and looks whether it is to stop. Four "
            "fifths of it are the samples, by a profile: each is drawn under a seed of its own, so that every plan reads the "
            "same, and seeding three generators takes some 20 µs a sample.",
        ),
    )


class Text(Dataset[dict[str, Tensor]]):
    """Sequences that count on by a step of their own."""

    def __init__(self, length: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        first, by = (
            torch.randint(low, high, (length, 1), generator=draw) for low, high in ((0, WORDS), (1, 5))
        )
        self.tokens = (first + by * torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def llama(layers: int = 4) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    evaluations: dict[int, float]

    def apart(self, other: Trained) -> tuple[float, float, float]:
        """Returns the largest relative distances: of the first ten losses, of all, and of evaluations."""
        rows = [abs(a - b) / b for a, b in zip(self.losses, other.losses, strict=True)]
        found = [abs(x - other.evaluations[s]) / other.evaluations[s] for s, x in self.evaluations.items()]
        return max(rows[:10]), max(rows), max(found)


def by_hand(model: nn.Module, loader: Any, valid: Any, steps: int, micro: int) -> Trained:
    """Trains as one does in plain torch, with the gradients of micro-batches added up."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses: list[float] = []
    evaluations: dict[int, float] = {}
    batches: Iterator[dict[str, Tensor]] = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        optimizer.zero_grad()
        parts = [{name: x[i : i + micro] for name, x in batch.items()} for i in range(0, BATCH, micro)]
        found = [_loss(model, part) for part in parts]
        for loss in found:
            (loss / len(parts)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(sum(float(loss.detach()) for loss in found) / len(parts))
        if step % EVERY == 0:
            model.eval()
            with torch.no_grad():
                rows = [(float(_loss(model, part)), len(part["input_ids"])) for part in valid]
            evaluations[step] = sum(x * n for x, n in rows) / sum(n for _, n in rows)
            model.train()
    return Trained(losses, evaluations)


def _loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss: Tensor = model(**batch).loss
    return loss


def equality_table(steps: int) -> Table:
    """A live model of transformers with its own DataLoader under two plans of two ranks, beside a loop by hand."""
    model = llama()
    plain, near = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.copy_(torch.nextafter(parameter, parameter + torch.randn_like(parameter)))
    loader = DataLoader(Text(500, 1), batch_size=BATCH, drop_last=True)
    valid = DataLoader(Text(101, 2), batch_size=BATCH)
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = sw.Workload(
            model,
            loader=loader,
            valid=valid,
            optimizer=torch.optim.AdamW(model.parameters(), lr=RATE),
            lr_schedule=functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=steps),
            folder=Path(folder) / "llama.model",
        )
        costs = sw.profile(work, micro=(8,), device="roofline:H100-80GB", precision="bf16")
        for axis in ("data", "pipeline"):
            fix = {"data": 1, "pipeline": 1, "micro": 8, axis: 2}
            plan = sw.plan(costs, LAPTOP, batch=BATCH, precision="bf16", schedule=["1f1b"], fix=fix)
            around: dict[str, Any] = {"eval_every": EVERY, "clip_norm": CLIP, "drop_last": True}
            run = sw.launch(plan, Path(folder) / axis, steps=steps, on="local", **around)
            run.wait().check()
            ours = Trained(
                [row["loss"] for row in run.metrics()],
                {found.step: found.values["loss"] for found in run.evaluations()},
            )
            if not rows:
                hand = by_hand(plain, loader, valid, steps, plan.batch.micro)
                other = by_hand(near, loader, valid, steps, plan.batch.micro)
                yardstick = other.apart(hand)
            rows.append((f"{axis} 2", hand.losses[0], hand.losses[-1], *ours.apart(hand)))
    rows.append(("by hand, one rounding away at the start", hand.losses[0], hand.losses[-1], *yardstick))
    return Table(
        title=f"{steps} steps of a live Llama in bf16: its DataLoader, cosine, clipping, evaluations; two ranks",
        columns=(
            "plan",
            "first loss",
            "last loss",
            "first 10 losses apart",
            "losses apart",
            "evaluations apart",
        ),
        rows=rows,
        notes=(
            "Largest relative distances from the same loop in plain torch, which adds up the gradients of the same "
            "micro-batches under the same autocast. In bf16 a product keeps 8 bits, so that a sum in another order "
            "moves a loss by some 1e-5 at once, and by more the longer it trains. The last row says by how much: it "
            "is the plain loop against itself, with starting weights one fp32 rounding away.",
        ),
    )


FAR = 3.0  # times the yardstick, which is one draw of many


def missed(cost: Table, equal: Table) -> tuple[str, ...]:
    """Returns what was missed of the aims."""
    apart = equal.rows[-1][4]
    assert isinstance(apart, float)
    return (
        *above("The loop's share of the processor", ((str(r[0]), r[5]) for r in cost.rows), AIM_SHARE),
        *above("The distance of a loss", ((str(r[0]), r[4]) for r in equal.rows[:-1]), FAR * apart),
    )


def run(quick: bool) -> Result:
    equal, cost = equality_table(EVERY if quick else 300), cost_table(20 if quick else 150)
    return Result(
        name="loop",
        claim=(
            "The loop costs at most 1 % of a step of 50 ms beside the bare interpreter, and trains a live model in "
            "bf16 as the same loop in plain torch does, within rounding."
        ),
        missed=missed(cost, equal),
        tables=[cost, equal],
    )


if __name__ == "__main__":
    main(run)
