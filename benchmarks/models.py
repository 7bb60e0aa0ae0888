"""Models that nobody here wrote, and constructs: what a user would meet with each on the first try.

Every model is captured and cut at every layer; two steps and an evaluation stand beside the module's own, and a plan
for a node of two devices is found and verified. It is equal or refused with a place and a cure; anything else is a
miss. The families are in `benchmarks/zoo`; a package that is not installed here is said (`pip install '.[bench]'`).

    python -m benchmarks models --quick --seed=3 --only=transformers,timm     a sample of two families
    python -m benchmarks models --journal=models.jsonl --seconds=3600         goes on where it was stopped, for an hour
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.zoo import FAMILIES, ranks
from benchmarks.zoo.check import Verdict
from benchmarks.zoo.limits import Judged, server, verdict_of
from planner.capture import capture, check_training
from planner.workload import load

CLAIM = (
    "Every model is captured and trains, evaluates and is planned as by itself, or is refused with a place and a cure; "
    "none is wrong and none ends in a traceback. A 175-billion-parameter GPT is captured in under 60 s and 3 GiB."
)
SECONDS = 300.0  # of one case
QUICK = 2  # cases of each family in a sample
LARGE = [("small", "1024"), ("xl", "1024"), ("175b", "2048")]
AIM_S, AIM_GIB = 60, 3
DEEP, DEEP_LAYERS, AIM_DEEP_S = ("llama", "gpt2"), 24, 5  # captured in so much processor time
COUNTED = ("equal", "refused", "WRONG", "CRASH", "no model")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which cases are judged, and how."""

    only: tuple[str, ...] = tuple(FAMILIES)
    seed: int = 0
    each: int = 0  # cases of each family, drawn; all where it is 0
    names: tuple[str, ...] = ()  # parts of the names of cases; all where it is empty
    journal: Path | None = None
    jobs: int = 1
    plans: bool = True
    seconds: float = math.inf  # after which no further case is begun

    @property
    def narrowed(self) -> bool:
        """Returns whether families, names or plans are left out that the benchmark judges."""
        return bool(set(self.only) != set(FAMILIES) or self.names or not self.plans)


Row = tuple[str, Verdict]  # with its family


def chosen(choice: Choice, say: Callable[[str], object] = print) -> Iterator[tuple[str, str]]:
    """Yields family and case: one of each family, then a second of each, and so on, in the order of the seed."""
    drawn: list[list[tuple[str, str]]] = []
    for name in choice.only:
        if missing := FAMILIES[name].missing():
            say(f"{name}: left out, {', '.join(missing)}")
            continue
        cases = [x for x in FAMILIES[name].cases() if not choice.names or any(y in x for y in choice.names)]
        Random(choice.seed).shuffle(cases)
        drawn.append([(name, case) for case in cases[: choice.each or None]])
    while drawn := [left for left in drawn if left]:
        yield from [left.pop(0) for left in drawn]


def judged(choice: Choice, wanted: Sequence[tuple[str, str]], say: Callable[[str], object]) -> list[Row]:
    """Returns the verdicts of cases; those that the journal has are not judged again, nor more than time is for."""
    known, end = dict(_journal(choice.journal)), time.monotonic() + choice.seconds
    left = [pair for pair in wanted if pair not in known]
    with ExitStack() as stack:
        free: SimpleQueue[Judged] = SimpleQueue()
        for _ in range(min(choice.jobs, len(left))):
            free.put(stack.enter_context(server()))

        def one(pair: tuple[str, str]) -> Row | None:
            if time.monotonic() > end:
                return None
            ask = free.get()
            try:
                return pair[0], ask(*pair, seconds=SECONDS, plans=choice.plans)
            finally:
                free.put(ask)

        with ThreadPoolExecutor(choice.jobs) as threads:
            for family, verdict in filter(None, threads.map(one, left)):
                known[family, verdict.case] = verdict
                _note(choice.journal, family, verdict)
                say(f"{family} {verdict.case}: {said(verdict)} ({verdict.cpu_s:.1f} s)")
    return [(pair[0], known[pair]) for pair in wanted if pair in known]


def _journal(path: Path | None) -> Iterator[tuple[tuple[str, str], Verdict]]:
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        family, facts = json.loads(line)
        verdict = verdict_of(facts)
        yield (family, verdict.case), verdict


def _note(path: Path | None, family: str, verdict: Verdict) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps([family, asdict(verdict)]) + "\n")


def said(verdict: Verdict) -> str:
    """Returns a verdict in one line."""
    parts = [f"{x.step} {x.judgement}{'' if x.cured else ', no cure'}: {x.said}" for x in verdict.findings]
    return "; ".join(parts) or ("equal" if verdict.trained else "equal, not trained")


def counts(rows: Sequence[Row]) -> Table:
    """Returns the verdicts by family."""
    found: list[tuple[Cell, ...]] = []
    for family in dict.fromkeys(family for family, _ in rows):
        verdicts = [verdict for name, verdict in rows if name == family]
        by = Counter(verdict.judgement for verdict in verdicts)
        uncured = sum(not all(x.cured for x in verdict.findings) for verdict in verdicts)
        symbolic = sum(verdict.symbolic for verdict in verdicts)
        cpu_s = sum(verdict.cpu_s for verdict in verdicts)
        found.append((family, len(verdicts), *(by[x] for x in COUNTED), uncured, symbolic, round(cpu_s)))
    return Table(
        title="Verdicts",
        columns=("family", "cases", *COUNTED, "refused without cure", "any batch", "CPU s"),
        rows=found,
        notes=(
            "Equal: the graph and its stages, cut at every layer and at random, give the losses of the module's own "
            "steps to 1e-6, and its first gradients and its state after two steps to 1e-5 of their largest entry; so does "
            "the runtime, where the model draws no random numbers; the evaluation is that of `module.eval()`, without torch's fast path where the profile has said that it gives another; the "
            "plan for two devices verifies. What differs in single precision is judged in double. No model: the module does not train by itself here. A model of more than "
            "120 MiB is captured and planned, not trained.",
        ),
    )


def exceptions(rows: Sequence[Row]) -> Table:
    """Returns every case that is not equal, with what was found."""
    found = [
        (
            family,
            verdict.case,
            x.step,
            x.judgement if x.cured else f"{x.judgement}, no cure",
            x.said.replace("|", "/"),
        )
        for family, verdict in rows
        for x in verdict.findings
    ]
    order = {name: i for i, name in enumerate(("CRASH", "WRONG", "refused, no cure", "refused", "no model"))}
    return Table(
        title="Not equal",
        columns=("family", "case", "step", "verdict", "message"),
        rows=sorted(found, key=lambda row: (order[row[3]], row[0], row[1])),
    )


def coverage(wanted: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Table:
    """Returns how many cases of each family were judged."""
    all_of, done = (Counter(family for family, _ in pairs) for pairs in (wanted, rows))
    return Table(
        title="Judged so far",
        columns=("family", "cases", "judged"),
        rows=[(family, number, done[family]) for family, number in all_of.items()],
    )


def large(quick: bool) -> Table:
    """Each in its own process, so that the peak is its own."""
    rows: list[tuple[Cell, ...]] = []
    for size, seq in LARGE[: 2 if quick else 3]:
        code = f"from benchmarks.models import cost; cost({size!r}, {seq!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        layers, parameters, seconds, gib = done.stdout.split()
        rows.append((f"gpt2 {size}", int(layers), float(parameters), float(seconds), float(gib)))
    return Table(
        title="Larger than the machine",
        columns=("model", "layers", "parameters, 1e9", "capture s", "peak GiB, with torch itself"),
        rows=rows,
    )


def deep() -> Table:
    """Captures transformers of many layers and checks their training, each in its own process."""
    rows: list[tuple[Cell, ...]] = []
    for name in DEEP if find_spec("transformers") else ():
        code = f"from benchmarks.models import capture_deep; capture_deep({name!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        rows.append((f"{name} of transformers", *map(float, done.stdout.split())))
    return Table(
        title=f"Transformers of {DEEP_LAYERS} layers, in seconds of processor time",
        columns=("model", "capture", "of that torch's export", "self-check", "a step alone"),
        rows=rows,
    )


def capture_deep(name: str) -> None:
    """Prints the processor time of a capture, of torch's exports in it, of the self-check, and of a step by itself."""
    import transformers

    sizes = {
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_hidden_layers": DEEP_LAYERS,
        "num_attention_heads": 4,
    }
    config = transformers.AutoConfig.for_model(name, use_cache=False, **sizes)
    module = transformers.AutoModelForCausalLM.from_config(config)
    export, exported = torch.export.export, [0.0]

    def timed(*given: Any, **named: Any) -> Any:
        begun = time.process_time()
        try:
            return export(*given, **named)
        finally:
            exported[0] += time.process_time() - begun

    def batch(n: int) -> tuple[dict[str, Tensor], Tensor]:
        return {"input_ids": torch.randint(1000, (n, 32))}, torch.randint(1000, (n, 32))

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())

    torch.set_num_threads(1)
    torch.export.export = timed
    times = [time.process_time()]
    captured = capture(module, batch, loss)
    times.append(time.process_time())
    check_training(captured, module, batch, loss)
    times.append(time.process_time())
    inputs, targets = batch(2)
    loss(module.train()(**inputs), targets).backward()
    times.append(time.process_time())
    of_capture, of_check, of_step = (b - a for a, b in pairwise(times))
    print(*(round(x, 2) for x in (of_capture, exported[0], of_check, of_step)))


def by_ranks() -> Table:
    """Trains small models by the plan that the solver chose freely, in two processes and in one."""
    rows: list[tuple[Cell, ...]] = []
    for name, make in ranks.cases().items():
        try:
            plan = ranks.trained_by_ranks(name, make)
        except Exception as error:
            rows.append((name, None, None, "", None, f"{type(error).__name__}: {error}".replace("|", "/")))
        else:
            axes = plan.axes
            rows.append((name, axes.data, axes.pipeline, plan.schedule.family, plan.batch.micro, "equal"))
    return Table(
        title="Two steps on two ranks, by the plan of the free solver",
        columns=("model", "replicas", "pipeline", "schedule", "micro-batch", "beside one process"),
        rows=rows,
    )


def cost(size: str, seq: str) -> None:
    start = time.perf_counter()
    graph = capture(load("gpt2", {"size": size, "seq": seq})).graph
    seconds = time.perf_counter() - start
    parameters = sum(parameter.bytes for parameter in graph.parameters) / 4e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(len(graph.layers), round(parameters, 3), round(seconds, 2), round(peak, 3))


def missed(
    rows: Sequence[Row],
    held: Sequence[tuple[Cell, ...]] = (),
    together: Sequence[tuple[Cell, ...]] = (),
    long: Sequence[tuple[Cell, ...]] = (),
) -> tuple[str, ...]:
    """Returns what was missed: every case that is wrong, ends in a traceback or is refused without a cure.

    Args: `held` are the captures of large models, `together` the trainings on two ranks, `long` the captures of many layers.
    """
    sentences = []
    for what, judgement in (("wrong", "WRONG"), ("a traceback", "CRASH")):
        names = [f"{family} {x.case}" for family, x in rows if x.judgement == judgement]
        if names:
            sentences.append(f"{len(names)} of {len(rows)} cases: {what} ({', '.join(names)}).")
    uncured = [f"{family} {x.case}" for family, x in rows if not all(each.cured for each in x.findings)]
    if uncured:
        sentences.append(
            f"{len(uncured)} cases are refused without a place or a cure ({', '.join(uncured)})."
        )
    sentences += [f"On two ranks {row[0]}: {row[5]}." for row in together if row[5] != "equal"]
    return (
        *sentences,
        *above("The capture", ((str(row[0]), row[3]) for row in held), AIM_S, " s"),
        *above("The capture of 24 layers", ((str(row[0]), row[1]) for row in long), AIM_DEEP_S, " s"),
        *above("The peak memory of the capture", ((str(row[0]), row[4]) for row in held), AIM_GIB, " GiB"),
    )


def run(quick: bool) -> Result:
    jobs = 1 if quick else max(1, (os.cpu_count() or 2) // 2)
    return result_of(Choice(each=QUICK if quick else 0, jobs=jobs), quick)


def result_of(choice: Choice, quick: bool) -> Result:
    """Returns what is found of the cases of a choice; the captures of large models belong to the whole of it."""
    notes: list[str] = []
    wanted = list(chosen(choice, notes.append))
    rows = judged(choice, wanted, lambda line: print(line, file=sys.stderr, flush=True))
    table, rest = counts(rows), exceptions(rows)
    sized = [large(quick), by_ranks(), deep()] if set(choice.only) == set(FAMILIES) else []
    lacking = len(wanted) - len(rows)
    left = f"{lacking} of {len(wanted)} cases were not judged in the time there was; `--journal` goes on."
    return Result(
        name="models",
        claim=" ".join([CLAIM, *(f"Not judged here: {note}." for note in notes)]),
        missed=(*([left] if lacking else []), *missed(rows, *(table.rows for table in sized))),
        tables=[table, rest, *([coverage(wanted, rows)] if lacking else []), *sized],
        part=choice.narrowed or (choice.each > 0 and not quick),
    )


def command(argv: Sequence[str]) -> None:
    """Runs the benchmark; with options of its own, on the cases that they choose."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the cases of a sample, and their order")
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, separated by commas")
    parser.add_argument("--each", type=int, default=0, help="cases of each family; all where it is left out")
    parser.add_argument("--names", default="", help="parts of the names of cases, separated by commas")
    parser.add_argument(
        "--journal", type=Path, help="verdicts as they come; cases in it are not judged again"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after which no further case is begun"
    )
    parser.add_argument("--without-plans", action="store_true", help="training and evaluation alone")
    options, rest = parser.parse_known_args(argv)
    only = tuple(options.only.split(","))
    if unknown := set(only) - FAMILIES.keys():
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join(FAMILIES)}")
    each = options.each or (QUICK if "--quick" in rest else 0)
    choice = Choice(
        only=only,
        seed=options.seed,
        each=each,
        names=tuple(x for x in options.names.split(",") if x),
        journal=options.journal,
        jobs=options.jobs,
        plans=not options.without_plans,
        seconds=options.seconds,
    )
    chosen_alone = len(rest) < len(argv)
    main(lambda quick: result_of(choice, quick), rest) if chosen_alone else main(run)


if __name__ == "__main__":
    command(sys.argv[1:])
