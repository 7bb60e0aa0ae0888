"""Hostile files through the commands that read files: every one ends in a message of ours, or rightly works.

Right plans, clusters, profiles, calibrations and run folders are changed in one to three places by seed: values of
other types and sizes, missing and repeated parts, names that steer a terminal, torn lines, wrong arrays. Each changed
file goes through one command. An exception that is not ours, text that would reach a terminal raw, and a command that
takes longer than the guard are faults.
"""

from __future__ import annotations

import io
import json
import random
import re
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import typer

import shardwright as sw
from benchmarks.harness import Result, Table, main
from planner import cluster as clusters
from planner import plan as plans
from planner.calibrate import Observation, fit
from planner.cli import answer
from planner.cluster import Cluster
from planner.errors import BadInput
from planner.milp import Question, solve
from planner.plan import Plan
from planner.profile import Profile, save
from planner.profile.yaml import loads
from planner.shown import printable
from planner.simulate import simulate_plan
from planner.timeline import Timeline
from runtime.runfolder import Attempt, Job, Outcome, Paths, note_attempt, tell

INPUTS, QUICK_INPUTS = 10_000, 300
GUARD_S = 30.0  # of one command on a machine that is busy, which is no fault
MOST_S = 5.0  # of processor time
MOST_BYTES = 500 * 2**20  # that one command may add to the memory of this process
OURS = (0, 1, 2, 3, 4)  # exit statuses that errors.py and the commands name
EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202egnp.exe\u2066 \u200b \r over"
Data = Any  # plain data of any depth


@dataclass(frozen=True)
class Seeds:
    """Right inputs, from which hostile ones are made."""

    plan: Plan
    profile: Profile
    cluster: Cluster
    folder: Path  # has plan.yaml, profile.yaml, cluster.yaml, calibration.yaml and the folder run


@dataclass(frozen=True)
class Verdict:
    """What one command has done with one input."""

    status: int
    output: str
    fault: str = ""  # empty where the command ended as it should


class _TookTooLong(BaseException):
    """The guard of a command has come."""


def judged(words: Sequence[str]) -> Verdict:
    """Runs one command in this process and judges how it ended.

    Args: `words` are those of the command line.
    """
    out, before, begin = io.StringIO(), _resident_bytes(), time.process_time()
    status, fault = -1, ""
    try:
        with _guarded(), redirect_stdout(out), redirect_stderr(out):
            status = answer(_app, words)
    except _TookTooLong:
        fault = f"takes longer than {GUARD_S:g} s"
    except BaseException as error:
        fault = f"ends in {type(error).__name__}: {error}"
    text = out.getvalue()
    if not fault and "error: unexpected" in text:
        fault = text[text.index("error: unexpected") :].partition("\n")[0]
    if not fault and status not in OURS:
        fault = f"ends with status {status}"
    if not fault and status and text.count("error: ") != 1 and "Traceback" in text:
        fault = "prints a traceback"
    if not fault and printable(text) != text:
        fault = "prints characters that steer a terminal"
    if not fault and (grown := _resident_bytes() - before) > MOST_BYTES:
        fault = f"takes {grown} bytes"
    if not fault and (took_s := time.process_time() - begin) > MOST_S:
        fault = f"takes {took_s:.1f} s of a processor"
    return Verdict(status, text, fault)


@cache
def _app() -> typer.Typer:
    """Returns the program with all its commands, made once."""
    return sw._app()


def _resident_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def _guarded() -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, GUARD_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seeds(folder: Path, costs: Profile) -> Seeds:
    """Writes right inputs of every kind.

    Args: `folder` is empty; `costs` are of a model that two workers can train.
    """
    machines = Cluster.load("plans/clusters/one-node.yaml")
    plan = solve(Question(profile=costs, cluster=machines, batch=8, fix={"pipeline": 2, "schedule": "1f1b"}))
    save(costs, folder / "profile.yaml")
    (folder / "cluster.yaml").write_text(clusters.dump(machines))
    (folder / "plan.yaml").write_text(plans.dump(plan))
    paths = Paths(folder / "run").make()
    paths.plan.write_text(plans.dump(plan))
    Job(steps=6).write(paths)
    measured = simulate_plan(plan, steps=6)
    measured.save(paths.trace)
    _write_losses(paths, plan)
    note_attempt(
        paths, Attempt(generation=0, nodes=["here"], begin_s=1e9, end_s=1e9 + 5, state="hung", cause="x")
    )
    note_attempt(paths, Attempt(generation=1, nodes=["here"], begin_s=1e9, end_s=1e9 + 9, state="done"))
    tell(paths, Outcome("done", exits=(0, 0)))
    paths.log(0).write_text("one\ntwo\n")
    found = fit([Observation(plan=plan, timeline=measured, content="layers")])
    (folder / "calibration.yaml").write_text(clusters.dump_corrections(found))
    return Seeds(plan, costs, machines, folder)


def _write_losses(paths: Paths, plan: Plan) -> None:
    micros = plan.batch.micros * plan.axes.data
    losses = {str(micro): {"loss:0": 1.5} for micro in range(micros)}
    rows = (
        {"step": n, "generation": 0, "micros": micros, "seconds": 0.1, "losses": losses} for n in range(1, 7)
    )
    paths.rank_metrics(0).write_text("".join(json.dumps(row) + "\n" for row in rows))


# Changes of plain data

HUGE = 10**30
VALUES: tuple[Data, ...] = (
    *(None, True, "", "0", "a b", EVIL, "\udc80", "x" * 5000, "../../etc/passwd", "1F0 1B0", "nan"),
    *(-1, 0, 1, 2, 7, 1000, 10**6, 2**31, 2**63 - 1, 2**63, HUGE, -HUGE),
    *(0.0, -0.5, 0.5, 1e-308, 1e308, float("inf"), float("nan")),
    *([], {}, [[]], [0], ["x"], {"a": 1}, {EVIL: EVIL}),
)


def _spots(data: Data, path: tuple[Data, ...] = ()) -> Iterator[tuple[Data, ...]]:
    rows = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in rows:
        yield (*path, key)
        yield from _spots(value, (*path, key))


def changed(data: Data, chance: random.Random) -> Data:
    """Returns plain data with one to three changes; the data itself stays.

    Args: `chance` decides which.
    """
    made = deepcopy(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        spots = list(_spots(made))
        if not spots:
            return made
        *path, last = chance.choice(spots)
        holder = made
        for step in path:
            holder = holder[step]
        chance.choice(_CHANGES)(holder, last, chance)
    return made


def _replace(holder: Data, key: Data, chance: random.Random) -> None:
    holder[key] = deepcopy(chance.choice(VALUES))


def _remove(holder: Data, key: Data, chance: random.Random) -> None:
    del holder[key]


def _nudge(holder: Data, key: Data, chance: random.Random) -> None:
    """Changes a value into another of its type, which readers accept more often than not."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = chance.choice(
            (value + 1, max(0, value - 1), 2 * value, 0, 1, 2, 3, 10**6, 2**31, 2**62)
        )
    elif isinstance(value, float):
        holder[key] = chance.choice((2 * value, value / 3, 0.0, 1.0, 1e-300, 1e12, 1e300))
    elif isinstance(value, str) and " " in value:
        words = value.split(" ")
        chance.choice(
            (chance.shuffle, lambda x: x.pop(), lambda x: x.append(chance.choice(x)), list.reverse)
        )(words)
        holder[key] = " ".join(words)
    elif isinstance(value, str):
        others = (
            [row for row in holder.values() if isinstance(row, str)] if isinstance(holder, dict) else holder
        )
        holder[key] = chance.choice((chance.choice(others), value[:-1], value * 2, EVIL, "x"))
    elif isinstance(value, list) and value:
        chance.choice(
            (chance.shuffle, list.pop, list.clear, list.reverse, lambda x: x.append(deepcopy(x[0])))
        )(value)


def _repeat(holder: Data, key: Data, chance: random.Random) -> None:
    if isinstance(holder, list):
        holder[key:key] = [deepcopy(holder[key]) for _ in range(chance.choice((1, 2, 1000)))]
    else:
        holder[chance.choice((EVIL, f"{key}s", "version", "0"))] = deepcopy(holder[key])


def _swap(holder: Data, key: Data, chance: random.Random) -> None:
    other = chance.choice(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
    holder[key], holder[other] = holder[other], holder[key]


def _nest(holder: Data, key: Data, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 100))):
        holder[key] = [holder[key]] if chance.random() < 0.5 else {"a": holder[key]}


_CHANGES: tuple[Callable[[Data, Data, random.Random], None], ...] = (
    *[_nudge] * 12,
    *(_replace, _replace, _remove, _repeat, _swap, _nest),
)


def _text(data: Data, chance: random.Random) -> str:
    """Returns JSON, which is YAML too; now and then a torn or doubled one."""
    text = json.dumps(data)
    if chance.random() < 0.03:
        return text[: chance.randrange(len(text) + 1)]
    return text.replace('"', "", 2) if chance.random() < 0.02 else text


def _load(path: Path) -> Data:
    from planner.files import parse_document

    return parse_document(path.read_text(), name=str(path))


# One hostile input each: writes it into a folder and returns the command that reads it


def a_plan(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    path = folder / "plan.yaml"
    path.write_text(_text(changed(_load(given.folder / "plan.yaml"), chance), chance))
    others = [f"--profile={given.folder / 'profile.yaml'}", f"--cluster={given.folder / 'cluster.yaml'}"]
    return chance.choice(
        [
            ["verify", str(path)],
            ["verify", str(path), *others],
            ["show", str(path), *chance.choice([[], ["--proof"], ["--json"]])],
            ["simulate", str(path), "--force", f"--svg={folder / 'x.svg'}", f"--trace={folder / 'x.json'}"],
            [
                "report",
                str(path),
                "--force",
                f"--output={folder / 'x.html'}",
                *chance.choice([[], others[:1]]),
            ],
        ]
    )


def a_cluster(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    path = folder / "cluster.yaml"
    path.write_text(_text(changed(_load(given.folder / "cluster.yaml"), chance), chance))
    verify = ["verify", str(given.folder / "plan.yaml"), f"--cluster={path}"]
    return chance.choice([["show", str(path)], verify, verify, _plan(given, folder, "cluster", path)])


def a_profile(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    path = folder / "profile.yaml"
    path.write_text(_known(_text(changed(_load(given.folder / "profile.yaml"), chance), chance)))
    verify = ["verify", str(given.folder / "plan.yaml"), f"--profile={path}"]
    return chance.choice([["show", str(path)], verify, verify, _plan(given, folder, "profile", path)])


def _known(text: str) -> str:
    """Returns the text of a profile with the fingerprint that its layers have, as whoever writes it can find out."""
    try:
        loads(text)
    except BadInput as error:
        if found := re.match("(sha256:[0-9a-f]+), which is that of these layers", error.allowed):
            return re.sub("sha256:[0-9a-f]+", found[1], text)
    return text


def a_calibration(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    path = folder / "calibration.yaml"
    path.write_text(_text(changed(_load(given.folder / "calibration.yaml"), chance), chance))
    show = ["show", str(path)]
    return chance.choice([show, show, show, _plan(given, folder, "calibration", path)])


def _plan(given: Seeds, folder: Path, option: str, path: Path) -> list[str]:
    files = {name: given.folder / f"{name}.yaml" for name in ("profile", "cluster")} | {option: path}
    words = [f"--{name}={file}" for name, file in files.items()]
    return ["plan", *words, "--batch=8", "--schedule=1f1b", f"--output={folder / 'out.yaml'}", "--force"]


def a_run(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(given.folder / "run", run)
    paths = Paths(run)
    _spoilt(paths, chance)
    return chance.choice(
        [
            ["show", str(run)],
            ["status", str(run)],
            ["status", str(run), "--json"],
            ["logs", str(run)],
            ["report", str(given.folder / "plan.yaml"), str(run), f"--output={folder / 'x.html'}", "--force"],
            ["calibrate", str(run), f"--output={folder / 'c.yaml'}", "--force"],
            ["cancel", str(run)],
        ]
    )


def _spoilt(paths: Paths, chance: random.Random) -> None:
    """Changes one of the files of a run."""
    records = [
        paths.job,
        paths.outcome,
        paths.attempts,
        paths.rank_metrics(0),
        paths.plan,
        paths.holder,
        paths.slurm,
    ]
    kind = chance.choice(["trace", "trace", "log", *records])
    if isinstance(kind, Path):
        text = kind.read_text() if kind.exists() else json.dumps({"job": 7, "submitted_s": 1.0, "inside": 0})
        if kind == paths.holder:
            text = json.dumps({"host": "elsewhere", "pid": 0, "started": ""})
        if kind == paths.plan:
            kind.write_text(_text(changed(_load(kind), chance), chance))
            return
        parts = text.splitlines() if kind.suffix == ".jsonl" else [text]
        kind.write_text("".join(_text(changed(json.loads(part), chance), chance) + "\n" for part in parts))
    elif kind == "trace":
        _spoil_trace(paths.trace, chance)
    else:
        paths.log(0).write_bytes(chance.randbytes(300) + EVIL.encode() + b"\x80")


def _spoil_trace(path: Path, chance: random.Random) -> None:
    found = Timeline.load(path)
    arrays: dict[str, Any] = {row.name: getattr(found, row.name).copy() for row in fields(found)}
    name = chance.choice(sorted(arrays))
    way = chance.randrange(8)
    if way < 4 and len(arrays[name]):
        numbers = (-1, 0, 7, 10**6, 2**40, 2**62, -(2**62))
        arrays[name][chance.randrange(len(arrays[name]))] = chance.choice(numbers)
    elif way == 4:
        arrays[name] = arrays[name][:-1]
    elif way == 5:
        arrays[name] = chance.choice(
            (np.array(["x"]), np.zeros((2, 2)), np.full(len(found), np.nan), np.array(3))
        )
    elif way == 6:
        del arrays[name]
    else:
        raw = bytearray(path.read_bytes())
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw[: chance.choice((len(raw), chance.randrange(len(raw))))])
        return
    np.savez_compressed(path, **arrays)


KINDS: dict[str, Callable[[Seeds, Path, random.Random], list[str]]] = {
    "plan": a_plan,
    "cluster": a_cluster,
    "profile": a_profile,
    "calibration": a_calibration,
    "run": a_run,
}


@dataclass(frozen=True)
class Fault:
    """A fault that a hostile input has shown, with the number that makes the input again."""

    kind: str
    number: int
    words: str
    what: str


def fuzzed(
    given: Seeds, folder: Path, numbers: Sequence[int]
) -> tuple[Counter[tuple[str, int]], list[Fault]]:
    """Sends one hostile input for each number through a command.

    Args: `folder` is for the inputs; a number always makes the same input.
    Returns: how often each kind of input ended in each status, and the faults.
    """
    seen: Counter[tuple[str, int]] = Counter()
    faults = []
    for number in numbers:
        kind = list(KINDS)[number % len(KINDS)]
        words = KINDS[kind](given, folder, random.Random(number))
        found = judged(words)
        seen[kind, found.status] += 1
        if found.fault:
            faults.append(Fault(kind, number, " ".join(words), found.fault))
    return seen, faults


def run(quick: bool) -> Result:
    count = QUICK_INPUTS if quick else INPUTS
    costs = sw.profile("mlp", device="roofline:H100-80GB", micros=(1, 2), layers=4)
    with tempfile.TemporaryDirectory() as place:
        right, spoilt = Path(place) / "right", Path(place) / "spoilt"
        right.mkdir(), spoilt.mkdir()
        seen, faults = fuzzed(seeds(right, costs), spoilt, range(count))
    heads = {0: "worked", 1: "status 1", 2: "wrong input", 3: "infeasible", 4: "wrong plan"}
    rows = [
        (kind, *(seen[kind, status] for status in heads), sum(fault.kind == kind for fault in faults))
        for kind in KINDS
    ]
    tables = [
        Table(
            title="Hostile inputs by how their command ended",
            columns=("input", *heads.values(), "faults"),
            rows=rows,
        )
    ]
    if faults:
        listed = [tuple(map(str, asdict(fault).values())) for fault in faults[:50]]
        tables.append(Table(title="Faults", columns=("input", "number", "command", "what"), rows=listed))
    missed = (
        (f"{len(faults)} of {count:,} hostile inputs end in a fault, and the aim is none.",) if faults else ()
    )
    return Result(
        name="fuzz",
        claim="Whatever is wrong in a plan, cluster, profile, calibration or run, the commands that read it end in one "
        f"message of ours, print nothing that steers a terminal, and end: {count:,} inputs by seed, no faults.",
        tables=tables,
        missed=missed,
    )


if __name__ == "__main__":
    main(run)
