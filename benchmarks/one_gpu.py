"""What holds on one GPU: plans over NCCL, predicted times and memory, dropout's kernel, inference in boxes.

Several ranks share the GPU, and so their times say nothing; their losses are compared with one process on the same GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from safetensors.torch import save_file

import shardwright as sw
from benchmarks.harness import Cell, Result, Table, above, main
from planner.errors import ShardwrightError
from planner.plan import Plan
from runtime.draws import Keys
from runtime.draws.keyed import HASHED, Draw
from runtime.launch import launch_inline, launch_local
from tests.captures import captured_of
from tests.runtime.layout.test_plans import HEADS, SEQUENCE, WORDS, in_parts
from tests.runtime.plans import plan_for

HERE = "tests/runtime/workloads/"
STEPS = 3
CLAIM = "Plans train over NCCL as one process does, and take the time and memory that were predicted."
BRANCHES, GPT2 = (HERE + "branches.py", {"double": "True"}), (HERE + "gpt2.py", {"size": "tiny"})
ONE = {"family": "1f1b", "workers": 1}
PLANS: dict[str, tuple[tuple[str, dict[str, str]], dict[str, object], dict[str, str]]] = {
    "one rank": (BRANCHES, {**ONE, "micros": 2}, {}),
    "two replicas": (BRANCHES, {**ONE, "micros": 2, "data": 2}, {}),
    "1f1b": (BRANCHES, {"family": "1f1b", "workers": 2, "micros": 4}, {}),
    "zb-h1": (BRANCHES, {"family": "zb-h1", "workers": 2, "micros": 4}, {}),
    "chimera": (BRANCHES, {"family": "chimera", "workers": 2, "micros": 4}, {}),
    "chimera, 4 workers, 2 replicas": (
        (HERE + "mlp.py", {"layers": "9"}),
        {"family": "chimera", "workers": 4, "micros": 4, "data": 2},
        {},
    ),
    "recomputed": (BRANCHES, {"family": "1f1b", "workers": 2, "micros": 4, "recompute": [0, 1]}, {}),
    "rolling updates": (
        BRANCHES,
        {"family": "1f1b", "workers": 2, "micros": 3, "update": "rolling"},
        {},
    ),
    "shared state": (GPT2, {**ONE, "micros": 1, "data": 2, "sharing": "state"}, {}),
    "shared gradients": (GPT2, {**ONE, "micros": 1, "data": 2, "sharing": "gradients"}, {}),
    "shared parameters": (GPT2, {**ONE, "micros": 2, "data": 2, "sharing": "parameters"}, {}),
    "shared parameters, 2 copies": (
        GPT2,
        {**ONE, "micros": 1, "data": 4, "sharing": "parameters", "ranks": 2},
        {},
    ),
    "bf16": (GPT2, {"family": "1f1b", "workers": 2, "micros": 4, "precision": "bf16"}, {}),
    "fp16": (GPT2, {"family": "1f1b", "workers": 2, "micros": 4, "precision": "fp16"}, {}),
    "dropout": ((HERE + "bert.py", {"size": "tiny"}), {"family": "1f1b", "workers": 2, "micros": 4}, {}),
    "LSTM": ((HERE + "lstm.py", {"size": "tiny"}), {"family": "1f1b", "workers": 2, "micros": 2}, {}),
    "U-Net": ((HERE + "unet3d.py", {"size": "tiny"}), {"family": "1f1b", "workers": 2, "micros": 2}, {}),
    "heads": ((WORDS, {}), {**ONE, "micros": 2}, HEADS),
    "heads and sequence": ((WORDS, {}), {**ONE, "micros": 2}, SEQUENCE),
    "heads and stages": ((WORDS, {}), {"family": "zb-h1", "workers": 2, "micros": 2}, HEADS),
}
MODELS: tuple[tuple[str, dict[str, str], int, int], ...] = (
    ("gpt2", {"size": "small"}, 8, 16),
    ("gpt2", {"size": "medium", "dropout": "0.1"}, 4, 8),
    ("resnet50", {}, 16, 32),
    ("unet3d", {"size": "small"}, 1, 4),
)
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv3d(1, 16, 3, padding=1), nn.BatchNorm3d(16)
        self.second, self.deep = nn.Conv3d(16, 16, 3, padding=1), nn.Conv3d(16, 32, 3, padding=1)
        self.pool, self.up, self.last = nn.MaxPool3d(2), nn.Upsample(scale_factor=2), nn.Conv3d(48, 2, 1)

    def forward(self, x):
        y = self.second(nn.functional.gelu(self.norm(self.first(x))))
        low = self.up(torch.exp(-self.deep(self.pool(y)).abs()))
        return torch.softmax(self.last(torch.cat([low, y], 1)), 1)

def build():
    torch.manual_seed(0)
    return Net()

def batch(n):
    return torch.randn(n, 1, 16, 16, 16), torch.zeros(n, 16, 16, 16, dtype=torch.long)

def loss(made, wanted):
    return nn.functional.cross_entropy(made, wanted)

def optimizer(named):
    return torch.optim.SGD([x for _, x in named], lr=0.1)
"""


def plan_of(name: str) -> Plan:
    (workload, arguments), shape, lines = PLANS[name]
    _, captured = captured_of(workload, arguments, 2)
    plan = plan_for(captured.graph, workload, arguments=arguments, **shape)  # type: ignore[arg-type]
    return in_parts(plan, lines, (2,)) if lines else plan


def over_nccl(quick: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in list(PLANS)[:5] if quick else PLANS:
        plan, off = plan_of(name), None
        try:
            with tempfile.TemporaryDirectory() as folder:
                alone = launch_inline(plan, Path(folder) / "alone", steps=STEPS, device="cuda")
                ranks = launch_local(plan, Path(folder) / "ranks", steps=STEPS, device="cuda").wait().check()
            off = max(abs(ranks.losses[i] / alone.losses[i] - 1) for i in range(1, STEPS + 1))
        except ShardwrightError as error:
            print(f"{name}: {error}", flush=True)
        rows.append((name, len(plan.places), off))
    return Table(
        title=f"{STEPS} steps over NCCL beside one process on the same GPU",
        columns=("plan", "ranks", "loss apart, most, relative"),
        rows=rows,
        notes=("An empty cell: the run failed.",),
    )


def predicted(quick: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sw.run(["probe", "--local", "-o", str(folder / "here.yaml")])
        for number, (model, arguments, micro, batch) in enumerate(MODELS[:1] if quick else MODELS):
            costs = sw.profile(model, device="cuda", micro=(micro,), precision="bf16", **arguments)
            plan = sw.plan(costs, cluster=folder / "here.yaml", batch=batch)
            run = sw.launch(plan, steps=20, folder=folder / str(number), on="local").wait().check()
            steps = [run.timeline.of_step(step).makespan_ns for step in range(5, 20)]
            peak = sw.rehearse(plan, device="cuda").peaks[0]
            rows.append(
                (
                    f"{model} {' '.join(arguments.values())}",
                    plan.prediction.step_ns / 1e6,
                    median(steps) / 1e6,
                    plan.prediction.step_ns / median(steps),
                    peak.predicted_bytes / peak.rehearsed_bytes,
                )
            )
    return Table(
        title="one rank in bf16",
        columns=("model", "predicted, ms", "a run's step, ms", "predicted over run", "peak, likewise"),
        rows=rows,
    )


def _draws() -> Iterator[tuple[Cell, ...]]:
    for shape in ((4, 128, 64), (32, 1024, 1024), (8, 16, 1024, 1024)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(shape, dtype=dtype, device="cuda")
            draw = Draw(Keys(3, x.device), 5, HASHED[0], 0, 1)
            small = x[:, :64].contiguous()
            host = Draw(Keys(3, torch.device("cpu")), 5, HASHED[0], 0, 1)(small.cpu(), 0.1, True)
            same = torch.equal(draw(small, 0.1, True).cpu(), host)
            ours, theirs = (_ms(partial(f, x, 0.1, True)) for f in (draw, torch.dropout))
            yield (
                "x".join(map(str, shape)),
                str(dtype).removeprefix("torch."),
                same,
                ours,
                theirs,
                ours / theirs,
            )


def _ms(run: Callable[[], object]) -> float:
    found = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return median(found[2:])


def dropout() -> Table:
    return Table(
        title="dropout, whose numbers are a hash of the sample and the place",
        columns=("tensor", "type", "as on the host, to the bit", "ms", "torch's, ms", "ratio"),
        rows=list(_draws()),
    )


def inference() -> Table:
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(NET)
        sw.capture(folder / "net.py")  # the file is sound
        from planner.workload import load

        save_file(load(str(folder / "net.py")).build().state_dict(), str(folder / "weights.safetensors"))
        np.save(
            folder / "in.npy", np.random.default_rng(0).standard_normal((1, 96, 80, 64), dtype=np.float32)
        )
        for dtype in ("float32", "float64"):
            whole, *parts = (
                _inferred(folder, chunk, dtype) for chunk in ("96,80,64", "40,48,64", "24,24,24")
            )
            rows += [
                (dtype, size, float(np.abs(part - whole).max()))
                for size, part in zip(("40,48,64", "24,24,24"), parts, strict=True)
            ]
    return Table(
        title="inference in boxes", columns=("type", "chunk", "apart from the whole, most"), rows=rows
    )


def _inferred(folder: Path, chunk: str, dtype: str) -> np.ndarray:
    made = folder / f"{chunk}-{dtype}.npy"
    sw.infer(
        folder / "net.py",
        weights=folder / "weights.safetensors",
        input=folder / "in.npy",
        output=made,
        chunk=chunk,
        device="cuda",
        dtype=dtype,
    )
    found: np.ndarray = np.load(made)
    return found


def run(quick: bool) -> Result:
    if not torch.cuda.is_available():  # what was measured where there was one is kept
        return Result(
            name="one_gpu", claim=CLAIM, missed=("No GPU was here: nothing was measured.",), tables=[]
        )
    tables = [over_nccl(quick), predicted(quick), dropout(), inference()]
    failed = [str(name) for name, _, off in tables[0].rows if off is None]
    ratios = [(str(row[0]), max(float(row[3] or 0), 1 / float(row[3] or 1))) for row in tables[1].rows]
    return Result(
        name="one_gpu",
        claim=CLAIM,
        missed=(
            *((f"Failed over NCCL: {', '.join(failed)}.",) if failed else ()),
            *above(
                "The loss over NCCL, apart from one process,",
                [(str(a), c) for a, _, c in tables[0].rows],
                1e-6,
            ),
            *above("The predicted step over the run's, or the reverse,", ratios, 1.15),
            *above(
                "An inference in boxes, apart from the whole,",
                [(json.dumps(r[:2]), r[2]) for r in tables[3].rows],
                0,
            ),
        ),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
