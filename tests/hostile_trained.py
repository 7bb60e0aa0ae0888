"""Hostile inputs of what was added last, as rows of the table in `hostile_cases.py`.

Layouts and the operations that they are of, sums and cards of a cluster, checkpoints in pieces, logs of sites and their
jobs, folders of inferences, and plans for other trainers and trackers. All of them may be a stranger's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.mutants import EVIL, trained
from benchmarks.mutants.right import CUT, HOSTS, infer_words
from planner.files import parse_document
from runtime.checkpoint.integrity import settle
from tests.hostile_cases import DEEP, HUGE, Case, Data, Place, Words, refused

ONE = "--cluster=plans/clusters/one-node.yaml"


def _costs() -> str:
    return f"--profile={trained().folder / 'costs.yaml'}"


def _planned(at: Place, *more: str) -> Words:
    return ["plan", _costs(), "--batch=4", "--schedule=1f1b", f"--output={at.folder / 'out'}", *more]


# Files of layouts, and the operations of a profile

CUTS: Mapping[str, str | bytes] = {
    "a group of 10^9": CUT.replace("[2]", f"[{10**9}]"),
    "a group of 10^30": CUT.replace("[2]", f"[{HUGE}]"),
    "a group below zero": CUT.replace("[2]", "[-2]"),
    "a group of no ranks": CUT.replace("[2]", "[0, 2]"),
    "a group of a thousand axes": CUT.replace("[2]", f"[{', '.join(['1'] * 1000)}]"),
    "a factor that steers": json.dumps({"version": 1, "group": [2], "cut": [{"layers": "0", "x": EVIL}]}),
    "a module that steers": json.dumps({"version": 1, "group": [2], "cut": [{"layers": EVIL, "x": "out"}]}),
    "a module of a hundred thousand stars": json.dumps(
        {"version": 1, "group": [2], "cut": [{"layers": ".".join(["*"] * DEEP), "x": "out"}]}
    ),
    "a module of stars without dots": json.dumps(
        {"version": 1, "group": [2], "cut": [{"layers": "*" * 3000 + "x", "x": "out"}]}
    ),
    "a hundred thousand lines": json.dumps(
        {"version": 1, "group": [2], "cut": [{"layers": f"{n}", "x": "out"} for n in range(DEEP)]}
    ),
    "the same line for ever": json.dumps(
        {"version": 1, "group": [2], "cut": [{"layers": "0", "x": "out"}] * DEEP}
    ),
    "no lines": "version: 1\ngroup: [2]\ncut: []\n",
    "lines nested": '{"version": 1, "cut": ' + "[" * DEEP,
    "no text": b"\xff\xfe\0",
}
OPERATIONS: Mapping[str, Callable[[Data], object]] = {
    "that are no JSON": lambda rows: rows.__setitem__(0, EVIL),
    "nested": lambda rows: rows.__setitem__(0, "[" * DEEP),
    "with a shape of 10^30": lambda rows: _operation(rows, outputs=[[int(HUGE)]]),
    "with a shape of infinity": lambda rows: _operation(rows, outputs=[[float("inf")]]),
    "with a shape below zero": lambda rows: _operation(rows, outputs=[[-1, 8]]),
    "without results": lambda rows: _operation(rows, outputs=[]),
    "with another shape": lambda rows: _operation(rows, outputs=[[2, 9]]),
    "with more dims": lambda rows: _operation(rows, outputs=[[1, 2, 8]]),
    "that read themselves": lambda rows: _operation(rows, arguments={"input": {"tensor": "%linear"}}),
    "that read what is not there": lambda rows: _operation(rows, arguments={"input": {"tensor": EVIL}}),
    "without arguments": lambda rows: _operation(rows, arguments={}),
    "of a layer that is not there": lambda rows: _operation(rows, layer=EVIL),
    "of another kind": lambda rows: _operation(rows, operation="aten.scaled_dot_product_attention"),
    "of a kind that steers": lambda rows: _operation(rows, operation=EVIL),
    "called to steer": lambda rows: _operation(rows, name=EVIL),
    "with samples along dim 10^9": lambda rows: _operation(rows, samples=[10**9]),
    "twice": lambda rows: rows.append(rows[-1]),
    "out of order": lambda rows: rows.reverse(),
    "of which one is lacking": lambda rows: rows.pop(2),
}


def _operation(rows: Data, **changes: Data) -> None:
    at = next(i for i, text in enumerate(rows) if "aten.linear" in text)
    rows[at] = json.dumps(json.loads(rows[at]) | changes)


def _profile(at: Place, change: Callable[[Data], object]) -> Path:
    data: Data = parse_document((trained().folder / "costs.yaml").read_text(), name="costs")
    change(data["graph"]["operations"])
    return at.file(json.dumps(data), "costs.yaml")


def layouts() -> Iterator[Case]:
    for name, text in CUTS.items():
        yield refused(f"a layout: {name}", lambda at, t=text: _planned(at, ONE, f"--fix=cut={at.file(t)}"))
    for name, spoil in SPOILT.items():
        yield refused(
            f"a layout: {name}",
            lambda at, s=spoil: (s(at.folder / "x"), _planned(at, ONE, f"--fix=cut={at.folder / 'x'}"))[1],
        )
    for name, change in OPERATIONS.items():
        for words in (["layouts", "--group=2", "--axes=1"], ["verify"], ["show"]):

            def make(at: Place, c: Callable[[Data], object] = change, w: list[str] = words) -> Words:
                given, plan = str(_profile(at, c)), str(trained().plan("cut"))
                if w[0] == "layouts":
                    return [*w, given, ONE]
                return [w[0], plan, f"--layouts={given}" if w[0] == "show" else f"--profile={given}"]

            yield Case(f"operations {name}: {words[0]}", make, own=("cuts",))
    for group in ("1000000000", "0", HUGE):
        words = ["layouts", f"--group={group}", ONE]
        yield refused(f"a group of {group}", lambda at, w=words: [*w, str(trained().folder / "costs.yaml")])
        yield refused(f"a pinned group of {group}", lambda at, g=group: _planned(at, ONE, f"--fix=group={g}"))
    for mesh in ("1000000000x1", "0x2", "2x", "x" * 5000, f"2x{HUGE}", EVIL, "-1x-2"):
        words = ["layouts", f"--mesh={mesh}", "--group=2", ONE]
        yield refused(
            f"a mesh of {mesh[:20]!r}", lambda at, w=words: [*w, str(trained().folder / "costs.yaml")]
        )


SPOILT: Mapping[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "nothing": Path.touch,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "3 GiB": lambda path: (path.touch(), os.truncate(path, 3 * 2**30)),
}

# Clusters with sums and cards

RATE = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}
SUMS: Mapping[str, Data] = {
    "of a name that steers": {"ring": RATE, "direct": RATE, EVIL: RATE},
    "of nobody's name": {"ring": RATE, "direct": RATE, "rings 0": RATE},
    "of 10^30 rings": {"ring": RATE, "direct": RATE, f"rings {HUGE}": RATE},
    "of a hundred thousand names": {f"rings {n}": RATE for n in range(DEEP)},
    "without a ring": {"direct": RATE},
    "without numbers": {"ring": {}, "direct": RATE},
    "as fast as 10^308": {"ring": RATE | {"bandwidth_bytes_per_s": float("inf")}, "direct": RATE},
    "as slow as 10^300 s": {"ring": RATE | {"latency_s": 1e300}, "direct": RATE},
    "as a list": [RATE],
    "of NCCL": {"ring": RATE, "direct": RATE, "nccl": RATE},
}
CARDS: Mapping[str, Data] = {
    "called to steer": [{"interface": EVIL}],
    "twice the same": [{"interface": "ib0"}] * 2,
    "a hundred thousand": [{"interface": f"ib{n}"} for n in range(DEEP)],
    "without a name": [{}],
    "with options of a linker": [{"interface": "ib0,LD_PRELOAD=/tmp/x"}],
    "named by numbers": [{"interface": 0}],
}


def _hosts(at: Place, change: Callable[[Data], object]) -> Path:
    data: Data = parse_document(HOSTS, name="hosts")
    change(data)
    return at.file(json.dumps(data), "hosts.yaml")


def clusters() -> Iterator[Case]:
    changes = {
        f"sums {name}": lambda data, v=sums: data["links"]["rack"].update(sums=v)
        for name, sums in SUMS.items()
    } | {
        f"cards {name}": lambda data, v=cards: data["nodes"][0].update(cards=v)
        for name, cards in CARDS.items()
    }
    for name, change in changes.items():
        yield Case(f"{name}: show", lambda at, c=change: ["show", str(_hosts(at, c))])
        yield Case(
            f"{name}: plan", lambda at, c=change: _planned(at, f"--cluster={_hosts(at, c)}", "--fix=data=4")
        )


# Checkpoints of shared parameters, which are in pieces


def _pieces(index: Data) -> Data:
    return next(iter(index["pieces"].values()))


PIECES: Mapping[str, Callable[[Data], object]] = {
    "of no file": lambda index: index.update(pieces={EVIL: {"shape": [1], "parts": {}}}),
    "of a file elsewhere": lambda index: _pieces(index).update(parts={"../../../etc/passwd": [0, 1]}),
    "of a shape of 10^18": lambda index: _pieces(index).update(shape=[10**18]),
    "of a shape of 10^30": lambda index: _pieces(index).update(shape=[int(HUGE)]),
    "of a shape below zero": lambda index: _pieces(index).update(shape=[-8, -4]),
    "that overlap": lambda index: _pieces(index)["parts"].update({"part-00000.safetensors": [0, 10**6]}),
    "that begin below zero": lambda index: _pieces(index)["parts"].update(
        {"part-00000.safetensors": [-1, 3]}
    ),
    "of a list": lambda index: index.update(pieces=[1]),
    "a hundred thousand": lambda index: _pieces(index).update(
        parts={f"part-{n}.safetensors": [n, n + 1] for n in range(DEEP)}
    ),
    "without steps": lambda index: index["facts"].update(step=-1),
    "of settings of settings": lambda index: index.update(settings={EVIL: {EVIL: {EVIL: [EVIL] * 9}}}),
}
NAMED: Mapping[str, Callable[[Path], object]] = {
    "a part that is a pipe": lambda folder: _replaced(folder / "part-00000.safetensors", os.mkfifo),
    "a part that is a link": lambda folder: _replaced(
        folder / "part-00000.safetensors", lambda path: path.symlink_to("/etc/passwd")
    ),
    "a part that is lacking": lambda folder: (folder / "part-00001.safetensors").unlink(),
    "an index of 3 GiB": lambda folder: os.truncate(folder / "index.json", 3 * 2**30),
    "an index that is a pipe": lambda folder: _replaced(folder / "index.json", os.mkfifo),
}


def _replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _shared(at: Place, spoil: Callable[[Path], object]) -> Path:
    """A run folder of shared parameters, of which the last checkpoint is spoilt."""
    run = at.folder / "shared"
    shutil.copytree(trained().folder / "shared", run)
    spoil(max((run / "checkpoints").glob("step-*")))
    return run


def _index(change: Callable[[Data], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        path = folder / "index.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        (folder / "index.sum").write_text(settle(path))

    return spoil


def checkpoints() -> Iterator[Case]:
    spoilt = {f"pieces {name}": _index(change) for name, change in PIECES.items()} | dict(NAMED)
    for name, spoil in spoilt.items():
        for command in ("launch", "weights", "status", "prune"):

            def make(at: Place, s: Callable[[Path], object] = spoil, c: str = command) -> Words:
                run = str(_shared(at, s))
                launch = ["launch", str(trained().plan("plain")), "--inline", "--steps=2", "--trust"]
                if c == "launch":
                    return [*launch, f"--run={run}"]
                if c == "weights":
                    return [*launch, f"--run={at.folder / 'new'}", f"--weights={run}"]
                return (
                    ["status", run]
                    if c == "status"
                    else ["prune", run, "--keep=0.5", f"-o{at.folder / 'out'}"]
                )

            yield Case(f"a checkpoint with {name}: {command}", make, own=("new", "shared"))


# Logs of sites, and the jobs that are to use them

LOGS: Mapping[str, str | bytes] = {
    "escapes": f"seconds,node,idle\n0,{EVIL.replace(' ', '')},1\n9,a,0\n",
    "a state that steers": f"seconds,node,idle\n0,a,{EVIL.replace(' ', '')}\n",
    "no end of nodes": "JobID|Start|End|NodeList\n1|2026-01-01T00:00:00|2026-01-01T00:01:00|n[1-999999999]\n",
    "nodes of 10^30": f"JobID|Start|End|NodeList\n1|2026-01-01T00:00:00|2026-01-01T00:01:00|n[{HUGE}]\n",
    "nodes nested": f"JobID|Start|End|NodeList\n1|2026-01-01T00:00:00|2026-01-01T00:01:00|{'n[' * DEEP}\n",
    "nodes of brackets": f"JobID|Start|End|NodeList\n1|2026-01-01T00:00:00|2026-01-01T00:01:00|{'a[1-2]b' * 9000}\n",
    "the year 10^9": "JobID|Start|End|NodeList\n1|999999999-01-01T00:00:00|2026-01-01T00:01:00|n1\n",
    "an end before its begin": "JobID|Start|End|NodeList\n1|2026-01-01T00:01:00|2026-01-01T00:00:00|n1\n",
    "10^308 seconds": "seconds,node,idle\n0,a,1\n1e308,a,0\n",
    "no number of seconds": "seconds,node,idle\nnan,a,1\n5,a,0\n",
    "infinite seconds": "seconds,node,idle\n0,a,1\ninf,a,0\n",
    "10^18 processors": "; MaxProcs: 1000000000000000000\n1 0 0 100 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1\n",
    "a job of 10^18 processors": f"; MaxProcs: 8\n1 0 0 100 {10**18} -1 -1 {10**18} -1 -1 1 1 1 1 1 1 -1 -1\n",
    "numbers of a megabyte": f"; MaxProcs: {'9' * 10**6}\n",
    "a line of 16 MiB": "seconds,node,idle\n0," + "a" * 2**24 + ",1\n",
    "a hundred thousand nodes": "seconds,node,idle\n" + "".join(f"0,n{n},1\n" for n in range(DEEP)),
    "five thousand events": "seconds,node,idle\n" + "".join(f"{n},n{n % 7},{n % 2}\n" for n in range(5_000)),
    "zeros": bytes(2**20),
    "no text": b"\xff\xfe\0" * 999,
    "nothing": "",
    "blank lines": "\n" * 2**22,
}
CURVES: Mapping[str, str | bytes] = {
    "escapes": f"nodes,samples_per_s\n{EVIL},1\n",
    "10^30 nodes": f"nodes,samples_per_s\n{HUGE},1\n",
    "no nodes": "nodes,samples_per_s\n0,1\n",
    "infinite rates": "nodes,samples_per_s\n1,inf\n",
    "no rates": "nodes,samples_per_s\n1,nan\n",
    "rates of 10^308": "nodes,samples_per_s\n1,1e308\n2,1e308\n",
    "a quote for ever": 'nodes,samples_per_s\n1,"' + "x" * 2**20,
    "zeros": bytes(2**16),
    "a hundred thousand sizes": "nodes,samples_per_s\n" + "".join(f"{n},{n}\n" for n in range(1, DEEP)),
    "nothing": "",
}


def _replay(at: Place, log: str | bytes = "seconds,node,idle\n0,a,1\n9,a,0\n") -> Words:
    if not (at.folder / "jobs").exists():
        shutil.copytree(trained().folder / "jobs", at.folder / "jobs")
    file = at.file(log, "log.txt")
    return ["scavenge", "replay", str(file), f"--jobs={at.folder / 'jobs'}", "--at-once=2"]


def _curve(at: Place, text: str | bytes) -> Words:
    (at.folder / "jobs").mkdir()
    at.file(text, "jobs/curve.csv")
    return _replay(at)


def _jobs(at: Place, spoil: Callable[[Path], object]) -> Words:
    spoil(at.folder / "jobs")
    return ["scavenge", "replay", str(at.file("0,a,1\n9,a,0\n", "log.txt")), f"--jobs={at.folder / 'jobs'}"]


def logs() -> Iterator[Case]:
    for name, text in LOGS.items():
        yield Case(f"a log of a site: {name}", lambda at, t=text: _replay(at, t))
    for name, text in CURVES.items():
        yield Case(f"rates of a job: {name}", lambda at, t=text: _curve(at, t))
    for name, spoil in SPOILT.items():
        if name != "a folder":
            yield refused(f"jobs: {name}", lambda at, s=spoil: _jobs(at, s))
        yield refused(
            f"a log of a site: {name} as a file",
            lambda at, s=spoil: (
                s(at.folder / "log"),
                ["scavenge", "replay", str(at.folder / "log"), f"--jobs={trained().folder / 'jobs'}"],
            )[1],
        )


# Folders of inferences

INFER: Mapping[str, Data] = {
    "other chunks": {"chunk": [9, 8, 1]},
    "chunks of nothing": {"chunk": [0, 0, 0]},
    "chunks below zero": {"chunk": [-4, 8, 8]},
    "chunks of 10^30": {"chunk": [int(HUGE)] * 3},
    "chunks of text": {"chunk": EVIL},
    "a workload that steers": {"workload": EVIL},
    "a workload elsewhere": {"workload": "/etc/passwd"},
    "an output elsewhere": {"output": "/etc/passwd"},
    "an input that is a device": {"input": "/dev/zero"},
    "weights that are a device": {"weights": "/dev/zero"},
    "a mode that steers": {"mode": EVIL},
    "a type that steers": {"dtype": EVIL},
    "10^9 devices": {"devices": 10**9},
    "settings that steer": {"settings": {EVIL: EVIL}},
    "a fingerprint that steers": {"fingerprint": EVIL},
    "keys of nobody": {EVIL: 1},
}
TASK_FILES: Mapping[str, Callable[[Path], object]] = {
    "space of 2^40": lambda root: (root / "space.json").write_text("[1099511627776, 8, 8]"),
    "space of 10^30": lambda root: (root / "space.json").write_text(f"[{HUGE}]"),
    "space of a million dims": lambda root: (root / "space.json").write_text(f"[{'1,' * 10**4}1]"),
    "space nested": lambda root: (root / "space.json").write_text("[" * DEEP),
    "space of another output": lambda root: (root / "space.json").write_text("[1, 9, 1000000]"),
    "space that is a pipe": lambda root: _replaced(root / "space.json", os.mkfifo),
    "a job that is a pipe": lambda root: _replaced(root / "infer.json", os.mkfifo),
    "a job of 3 GiB": lambda root: os.truncate(root / "infer.json", 3 * 2**30),
    "tasks called to steer": lambda root: (root / "done" / f"{EVIL.replace('/', '')}.json").write_text("{}"),
    "tasks that are pipes": lambda root: _replaced(min((root / "done").iterdir()), os.mkfifo),
    "tasks that are links": lambda root: _replaced(
        min((root / "done").iterdir()), lambda path: path.symlink_to("/etc/passwd")
    ),
    "tasks that steer": lambda root: min((root / "done").iterdir()).write_text(
        json.dumps({"checksum": EVIL, "odd": 1, "odd_made": 0, "seconds": 1.0, "host": EVIL})
    ),
    "tasks of 10^308 seconds": lambda root: min((root / "done").iterdir()).write_text(
        json.dumps({"checksum": "0", "odd": 10**30, "odd_made": 0, "seconds": 1e308})
    ),
    "claims that are files": lambda root: (shutil.rmtree(root / "claims"), (root / "claims").write_text("x")),
    "logs that are pipes": lambda root: os.mkfifo(root / "logs" / "pipe.log"),
    "a log of 16 MiB": lambda root: (root / "logs" / "large.log").write_bytes(b"\x1b]0;" * 2**22),
    "no tasks": lambda root: shutil.rmtree(root / "done"),
}


def _inferred(at: Place, spoil: Callable[[Path], object], command: str) -> Words:
    root, right = at.folder / "out.npy.tasks", trained().folder
    shutil.copytree(right / "out.npy.tasks", root)
    shutil.copy(right / "out.npy", at.folder / "out.npy")
    text = (root / "infer.json").read_text().replace(str(right / "out.npy"), str(at.folder / "out.npy"))
    (root / "infer.json").write_text(text)
    spoil(root)
    if command == "infer":
        return ["infer", *infer_words(right, at.folder)]
    return [command, str(root)]


def _job(**changes: Data) -> Callable[[Path], object]:
    def spoil(root: Path) -> None:
        path = root / "infer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def inferences() -> Iterator[Case]:
    spoilt = {f"a job with {name}": _job(**changes) for name, changes in INFER.items()} | dict(TASK_FILES)
    for name, spoil in spoilt.items():
        for command in ("status", "logs", "infer"):
            yield Case(
                f"an inference, {name}: {command}",
                lambda at, s=spoil, c=command: _inferred(at, s, c),
                own=("out.npy.tasks", "out.npy"),
            )


# Plans for other trainers, and runs for trackers

TEXTS: Mapping[str, Callable[[Data], object]] = {
    "a workload that steers": lambda plan: plan["model"].update(workload=EVIL),
    "a workload that is a command": lambda plan: plan["model"].update(workload="$(touch /tmp/owned)`id`;&"),
    "a workload that is Python": lambda plan: plan["model"].update(
        workload='""" + __import__("os").system("id") + """'
    ),
    "arguments that steer": lambda plan: plan["model"].update(arguments={EVIL: EVIL}),
    "a cluster that steers": lambda plan: plan["provenance"].update(cluster=EVIL),
}


def others() -> Iterator[Case]:
    for to in ("torchtitan", "megatron", "deepspeed", "accelerate", "fsdp2", "torchrun"):
        for name, change in TEXTS.items():

            def make(at: Place, c: Callable[[Data], object] = change, t: str = to) -> Words:
                data: Data = at.data("plan")
                c(data)
                return ["export", str(at.file(json.dumps(data))), f"--to={t}"]

            yield Case(f"a plan for {to} with {name}", make)
    for name, spoil in SPOILT.items():

        def onto(at: Place, s: Callable[[Path], object] = spoil) -> Words:
            s(at.folder / "theirs")
            return [
                "export",
                str(at.right.folder / "plan.yaml"),
                "--to=torchrun",
                f"-o{at.folder / 'theirs'}",
            ]

        yield refused(f"a plan for torchrun onto {name}", onto)
    for to in ("wandb", "mlflow", EVIL, "../x"):
        for name in ("job.json", "outcome.json", "plan.yaml", "metrics/rank-00000.jsonl"):

            def tracked(at: Place, t: str = to, n: str = name) -> Words:
                run = at.run()
                (run.root / n).write_text(json.dumps({EVIL: EVIL}) + "\n")
                return ["track", str(run.root), f"--to={t}"]

            own = ("run",) if to.isalpha() else ()  # what a tracker keeps of it lies in the run folder
            yield Case(f"a run for {to[:9]!r} with a spoilt {name}", tracked, own=own)


def labelled(at: Place, label: int) -> Words:
    """A captured model whose samples are all of one class, launched."""
    import torch
    from safetensors.torch import load_file, save_file

    model = at.folder / "net.model"
    shutil.copytree(trained().model, model)
    tensors = load_file(model / "samples.safetensors")
    full = {name: torch.full_like(x, label) if x.dtype == torch.int64 else x for name, x in tensors.items()}
    save_file(full, model / "samples.safetensors")
    text = trained().plan("plain").read_text().replace(str(trained().model), str(model))
    plan = at.file(text, "plan.yaml")
    return ["launch", str(plan), "--inline", "--steps=1", "--trust", f"--run={at.folder / 'new'}"]


def without_state(at: Place, key: str) -> Words:
    """A run whose last checkpoint lacks one tensor of the optimizer of each parameter, launched again."""

    def lose(index: Data) -> None:
        index["files"] = {name: part for name, part in index["files"].items() if not name.endswith(key)}

    return _again(at, lose)


def with_option(at: Place, key: str, value: Data) -> Words:
    """A run whose last checkpoint has another value of one option of the optimizer, launched again."""

    def put(data: Data) -> None:
        for own in data.values() if isinstance(data, dict) else ():
            put(own)
        if isinstance(data, dict) and key in data:
            data[key] = value

    return _again(at, put)


def _again(at: Place, change: Callable[[Data], None]) -> Words:
    run = at.folder / "run"
    shutil.copytree(trained().folder / "run", run)
    _index(change)(max((run / "checkpoints").glob("step-*")))
    return ["launch", str(trained().plan("plain")), "--inline", "--steps=4", "--trust", f"--run={run}"]


def cases() -> Iterator[Case]:
    for rows in (layouts(), clusters(), checkpoints(), logs(), inferences(), others()):
        yield from rows
