"""Every model that capture is held to, cut at random: stages against the graph, the graph against the module.

Models of transformers and monai from small settings, our own, and the small cases of the tests; 2, 3 and 5 stages for
each of several seeds. And what a capture of a model larger than the machine costs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence

import torch

from benchmarks.harness import Cell, Result, Table, above, main
from planner.capture import capture
from planner.workload import load
from tests.planner.capture.test_cases import OURS
from tests.planner.capture_cases import CASES, Case
from tests.planner.capture_corners import CORNERS
from tests.planner.library_models import LIBRARY
from tests.planner.staged import check_case

CLAIM = (
    "Stages cut anywhere give the captured graph's loss, gradients and state to the bit (1e-6 where a weight is tied), "
    "and the captured graph gives the module's loss to the bit and its gradients to 1e-6; a 175-billion-parameter GPT "
    "is captured in under 60 s and 3 GiB."
)
LARGE = [("small", "1024"), ("xl", "1024"), ("175b", "2048")]


def ours(name: str) -> Case:
    workload = load(name, OURS[name])
    return workload.build(), workload.batch, workload.loss


def row(name: str, case: Case, seeds: range) -> tuple[Cell, ...]:
    start = time.perf_counter()
    captured = capture(*case)
    seconds = time.perf_counter() - start
    micro = 2 if captured.graph.symbolic_batch else captured.graph.captured_micro
    wrong = ""
    for seed in seeds:
        try:
            check_case(case, seed=seed, n=micro, captured=captured)
        except AssertionError as error:
            wrong = f"seed {seed}: {str(error).splitlines()[0]:.80}"
    graph = captured.graph
    return name, len(graph.layers), len(graph.values), seconds, graph.symbolic_batch, wrong or "equal"


def matrix(quick: bool) -> Table:
    seeds = range(1 if quick else 5)
    cases = {**LIBRARY, **{name: (lambda name=name: ours(name)) for name in OURS}}
    if quick:
        cases = {name: make for name, make in cases.items() if name not in ("SwinUNETR", "mobilenetv3")}
    else:
        cases |= {f"case {name}": make for name, make in (CASES | CORNERS).items()}
    rows = []
    for name, make in cases.items():
        torch.manual_seed(0)
        rows.append(row(name, make(), seeds))
        print(*rows[-1], file=sys.stderr, flush=True)
    return Table(
        title="Cut at random",
        columns=("model", "layers", "Values", "capture s", "symbolic batch", "2, 3 and 5 stages"),
        rows=rows,
        notes=(f"{len(seeds)} seed(s) a model, one thread, CPU.",),
    )


def large(quick: bool) -> Table:
    """Each in its own process, so that the peak is its own."""
    rows: list[tuple[Cell, ...]] = []
    for size, seq in LARGE[: 2 if quick else 3]:
        code = f"from benchmarks.capture_matrix import cost; cost({size!r}, {seq!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        layers, parameters, seconds, gib = done.stdout.split()
        rows.append((f"gpt2 {size}", int(layers), float(parameters), float(seconds), float(gib)))
    return Table(
        title="Larger than the machine",
        columns=("model", "layers", "parameters, 1e9", "capture s", "peak GiB, with torch itself"),
        rows=rows,
    )


def cost(size: str, seq: str) -> None:
    start = time.perf_counter()
    graph = capture(load("gpt2", {"size": size, "seq": seq})).graph
    seconds = time.perf_counter() - start
    parameters = sum(parameter.bytes for parameter in graph.parameters) / 4e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(len(graph.layers), round(parameters, 3), round(seconds, 2), round(peak, 3))


AIM_S, AIM_GIB = 60, 3


def missed(cut: Sequence[tuple[Cell, ...]], held: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns what was missed, from the rows of the two tables; every size is held to the limits of the largest."""
    wrong = ", ".join(str(row[0]) for row in cut if row[5] != "equal")
    return (
        *((f"Stages differ from their graph: {wrong}.",) if wrong else ()),
        *above("The capture", ((str(row[0]), row[3]) for row in held), AIM_S, " s"),
        *above("The peak memory of the capture", ((str(row[0]), row[4]) for row in held), AIM_GIB, " GiB"),
    )


def run(quick: bool) -> Result:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries
    cut, held = matrix(quick), large(quick)
    return Result(name="capture_matrix", claim=CLAIM, missed=missed(cut.rows, held.rows), tables=[cut, held])


if __name__ == "__main__":
    main(run)
