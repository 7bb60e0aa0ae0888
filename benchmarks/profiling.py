"""What profiling costs, how well it repeats, and how far the layers' times are from those of the whole model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.harness import Cell, Result, Table, above, main
from planner.capture import Captured, capture, materialise
from planner.capture.stage_modules import whole
from planner.measure import measure
from planner.measure.bench import Bench
from planner.measure.passes import Clock, clock_of
from planner.measure.specimens import Way, made_up_weights, real_specimen
from planner.measure.timing import VISITS, Samples, time_round
from planner.model import Buffer, Parameter
from planner.profile import Profile
from planner.profile import load as load_profile
from planner.workload import Workload, load

T = TypeVar("T")

CLAIM = (
    "A profile by roofline takes seconds and hardly any memory, however large the model; one on the CPU repeats within "
    "5 % on an idle machine; the layers' times add up to the whole model's within 15 %. "
    "The spread that a profile states holds ten minutes later."
)
APART_PERCENT, SUM_PERCENT = 5, 15
CLOCK = (
    "Processor time where torch runs one thread, so that other processes hardly count; wall time with more."
)
AGAIN = ("gpt2:size=tiny", "cosmoflow", "unet3d", "resnet50", "bert", "lstm", "mlp", "mobilenetv3")
AGAIN_MINUTES = 10
Roofline = tuple[str, dict[str, str], float, float]  # workload, arguments, seconds and GiB aimed at
ROOFLINES: list[Roofline] = [
    ("gpt2", {"size": "xl"}, 20, 2),
    ("gpt2", {"size": "175b"}, 60, 3),
]
ONCE = """
import json, resource, sys, time
begun = time.perf_counter()
from planner import measure
from planner.workload import load
found = measure.profile(load(sys.argv[1], json.loads(sys.argv[2])), "roofline:H100-80GB", micros=(1, 2, 4))
print(json.dumps({
    "seconds": time.perf_counter() - begun,
    "cpu_seconds": time.process_time(),
    "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    "layers": len(found.graph.layers),
    "parameters": sum(row.bytes for row in found.graph.parameters) // 4,
}))
"""


def load_now() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def rooflines(models: list[Roofline]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, arguments, aim_s, aim_gib in models:
        command = [sys.executable, "-c", ONCE, name, json.dumps(arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        facts = json.loads(done.stdout.splitlines()[-1])
        rows.append(
            (
                f"{name} {arguments['size']}",
                facts["parameters"] / 1e9,
                facts["layers"],
                facts["seconds"],
                facts["cpu_seconds"],
                aim_s,
                facts["gib"],
                aim_gib,
                load_now(),
            )
        )
    return Table(
        title="Roofline of models that do not fit here, micro-batches 1, 2 and 4",
        columns=(
            "model",
            "10^9 parameters",
            "layers",
            "s",
            "processor s",
            "aim s",
            "peak GiB",
            "aim GiB",
            "load",
        ),
        rows=rows,
        notes=("From a process with nothing imported; memory is that of the whole process.",),
    )


def totals(found: Profile) -> dict[str, float]:
    (setting,) = found.settings
    rows = [found.cost(layer.name, setting) for layer in found.graph.layers]
    return {
        "forward": sum(row.forward.median for row in rows),
        "backward": sum(row.backward.median for row in rows),
    }


def repeats(workload: Workload, micro: int) -> Table:
    first, second = (totals(measure.profile(workload, "cpu", micros=(micro,))) for _ in range(2))
    rows: list[tuple[Cell, ...]] = [
        (name, first[name] * 1e3, second[name] * 1e3, 100 * abs(second[name] / first[name] - 1), load_now())
        for name in first
    ]
    return Table(
        title=f"{workload.name} measured twice on the CPU, micro-batch {micro}",
        columns=("pass", "first ms", "second ms", "apart %", "load"),
        rows=rows,
        notes=("Aim: within 5 % on an idle machine. The load average says how idle this one was.", CLOCK),
    )


def minutes_apart(models: Sequence[str], minutes: float) -> Table:
    """Measures models twice, with so many minutes between the two of each, and asks whether the spreads told so.

    Args: `models` are workloads, with their settings behind a colon.
    """
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        first = [_measured(name, Path(folder) / "first") for name in models]
        time.sleep(max(0.0, begun + 60 * minutes - time.monotonic()))
        second = [_measured(name, Path(folder) / "second") for name in models]
    rows: list[tuple[Cell, ...]] = []
    for name, one, other in zip(models, first, second, strict=True):
        pairs = [
            (getattr(cost, part), getattr(other.costs[key], part))
            for key, cost in one.costs.items()
            for part in ("forward", "backward")
            if getattr(cost, part).median
        ]
        off = [abs(y.median - x.median) > x.spread for x, y in pairs]
        total = sum(x.median for x, _ in pairs)
        rows.append(
            (
                name,
                len(pairs),
                sum(off),
                100 * sum(x.median for (x, _), far in zip(pairs, off, strict=True) if far) / total,
                100 * abs(sum(y.median for _, y in pairs) / total - 1),
                100 * sum(x.spread for x, _ in pairs) / total,
                load_now(),
            )
        )
    return Table(
        title=f"Profiles on the CPU, made again {minutes:g} minutes later, micro-batches 1 and 2",
        columns=(
            "model",
            "rows",
            "beyond their spread",
            "their share %",
            "totals apart %",
            "stated %",
            "load",
        ),
        rows=rows,
        notes=(
            "A row is a forward or a backward pass of one layer. It is beyond where the second profile's time lies "
            "further from the first's than the first says. Distinct layers are added once each.",
        ),
    )


def _measured(model: str, folder: Path) -> Profile:
    folder.mkdir(exist_ok=True)
    name, _, setting = model.partition(":")
    path = folder / f"{name}.yaml"
    command = [sys.executable, "-m", "shardwright", "profile", name, "--micro", "1,2", "-o", str(path)]
    subprocess.run([*command, *(["--set", setting] if setting else [])], check=True, stdout=sys.stderr)
    return load_profile(path)


def sums(cases: list[tuple[Workload, int]], rounds: int) -> Table:
    return Table(
        title="Sum of the layers' times against the whole model's, interleaved rounds on the CPU",
        columns=("model", "micro", "pass", "layers ms", "whole ms", "layers / whole", "load"),
        rows=[row for workload, micro in cases for row in layers_and_whole(workload, micro, rounds)],
        notes=(
            "Aim: within 15 %. Medians of rounds, each of all distinct layers and then the whole model.",
            CLOCK,
        ),
    )


class Whole:
    """The captured graph in one piece, timed as its layers are."""

    def __init__(self, captured: Captured, batch: Mapping[str, Tensor]) -> None:
        module = whole(captured)
        states: list[Parameter | Buffer] = [*captured.graph.parameters, *captured.graph.buffers]
        materialise(module, {x.name: made_up_weights(x.shape, x.dtype) for x in states})
        self._module, self._batch = module, batch
        self._parameters = [x for x in module.parameters() if x.requires_grad]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.samples = Samples()

    def time(self, clock: Clock) -> None:
        made = clock.time(lambda: self._module(self._batch), self.samples.forward)
        loss = made["loss:0"]
        clock.time(lambda: torch.autograd.backward([loss], inputs=self._parameters), self.samples.backward)
        clock.settle()


def layers_and_whole(workload: Workload, micro: int, rounds: int) -> list[tuple[Cell, ...]]:
    captured = capture(workload)
    bench = Bench(batch_of=workload.batch, captured=captured, micros=(micro,), execution="eager", way=Way())
    batch, situations = bench.batch(micro), bench.situations(micro)
    specimens = [real_specimen(captured, x, batch, bench.way) for x in situations]
    samples = [Samples() for _ in specimens]
    together = Whole(captured, batch)
    clock = clock_of("cpu")
    for round_ in range(-VISITS[0].warm_up_rounds, rounds):
        if round_ == 0:
            for row in (*samples, together.samples):
                row.forget()
        time_round(specimens, samples, clock)
        together.time(clock)
    by_signature = {x.layer.signature: row for x, row in zip(situations, samples, strict=True)}
    apart = [by_signature[layer.signature] for layer in captured.graph.layers]
    pairs = {
        "forward": (sum(median(x.forward) for x in apart), median(together.samples.forward)),
        "backward": (sum(median(x.backward) for x in apart), median(together.samples.backward)),
    }
    pairs["both"] = (sum(x for x, _ in pairs.values()), sum(x for _, x in pairs.values()))
    return [
        (workload.name, micro, name, layers * 1e3, model * 1e3, layers / model, load_now())
        for name, (layers, model) in pairs.items()
    ]


Rows = Sequence[tuple[Cell, ...]]


def missed(made: Rows, repeated: Rows, summed: Rows, again: Rows = ()) -> tuple[str, ...]:
    """Returns what was missed of the aims, from the rows of the tables; a busy machine excuses nothing."""
    found: list[str] = []
    for row in made:
        found += above(f"The roofline profile of {row[0]}", [("", row[3])], float(row[5] or 0), " s")
        found += above(
            f"The memory of the roofline profile of {row[0]}", [("", row[6])], float(row[7] or 0), " GiB"
        )
    apart = [(f"{row[0]}, load {row[4]}", row[3]) for row in repeated]
    found += above("The distance of two profiles on the CPU", apart, APART_PERCENT, " %")
    off = [(f"{row[0]}, {row[2]}, load {row[6]}", 100 * abs(float(row[5] or 0) - 1)) for row in summed]
    found += above("The distance of the layers' times from the whole model's", off, SUM_PERCENT, " %")
    rows, beyond = (sum(int(row[i] or 0) for row in again) for i in (1, 2))
    if beyond:
        found.append(
            f"{beyond} of {rows} rows changed by more than their spread within {AGAIN_MINUTES} minutes."
        )
    for row in again:
        what = f"The distance of two profiles of {row[0]}, of which the first states its spread,"
        found += above(what, [("", row[4])], float(row[5] or 0), " %")
    return tuple(found)


def run(quick: bool) -> Result:
    torch.set_num_threads(1)  # as profiles are measured
    resnet = {"side": "64"} if quick else {}
    cases = [(load("resnet50", resnet), 2)]
    if not quick:
        cases += [(load("gpt2"), 1), (load("unet3d", {"size": "small"}), 1)]
    tables = [
        rooflines(ROOFLINES[:1] if quick else ROOFLINES),
        repeats(load("resnet50", resnet), 2),
        sums(cases, rounds=5 if quick else 9),
    ]
    if not quick:
        tables.append(minutes_apart(AGAIN, AGAIN_MINUTES))
    return Result(
        name="profiling", claim=CLAIM, missed=missed(*(table.rows for table in tables)), tables=tables
    )


if __name__ == "__main__":
    main(run)
