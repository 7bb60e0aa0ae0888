"""Hostile inputs as a table: each makes a file or a folder, and names the command that is to read it.

A case gets a `Place`: an empty folder to write into, beside right inputs. What lies in its folder `foreign` belongs to
somebody else, and no command may touch it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mutants import EVIL, Seeds
from runtime import runfolder
from runtime.checkpoint.integrity import settle
from runtime.runfolder import Paths

Words = list[str]
Data = Any
HUGE = "1" + "0" * 30
DEEP = 100_000
GIB = 2**30


@dataclass(frozen=True)
class Place:
    folder: Path
    right: Seeds

    @property
    def foreign(self) -> Path:
        """A folder of somebody else's, with files in it."""
        made = self.folder / "foreign"
        if not made.exists():
            made.mkdir(mode=0o755)
            (made / "precious.txt").write_text("precious")
            (made / "step-00000009").mkdir()
        return made

    def run(self) -> Paths:
        """A right run folder."""
        shutil.copytree(self.right.folder / "run", self.folder / "run")
        return Paths(self.folder / "run")

    def file(self, content: str | bytes, name: str = "given.yaml") -> Path:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return path

    def text(self, kind: str) -> str:
        return (self.right.folder / f"{kind}.yaml").read_text()

    def data(self, kind: str) -> Data:
        from planner.files import parse_document

        return parse_document(self.text(kind), name=kind)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Place], Words]
    may_work: bool = True  # else it is to be refused
    own: tuple[str, ...] = ()  # names in the place that belong to the caller


def refused(name: str, make: Callable[[Place], Words]) -> Case:
    return Case(name, make, may_work=False)


# Texts that are no YAML of ours

ALIASES = "\n".join(
    ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
)
TEXTS: Mapping[str, str | bytes] = {
    "a bomb of aliases": ALIASES,
    "a loop": "a: &a [*a]\n",
    "a merge": "a: &a {b: 1}\nc: {<<: *a}\n",
    "a tag that runs code": '!!python/object/apply:os.system ["touch /tmp/owned"]\n',
    "a tag of a key": "version: !!python/name:os.system 1\n",
    "a binary tag": "version: !!binary aGk=\n",
    "lists a hundred thousand deep": "version: " + "[" * DEEP,
    "mappings a hundred thousand deep": '{"a":' * DEEP,
    "blocks a thousand deep": "\n".join(" " * n + f"k{n}:" for n in range(1000)),
    "quoted for ever": 'version: "' + "x" * 2_000_000,
    "two documents": "version: 1\n---\nversion: 1\n",
    "a key twice": "version: 1\nversion: 1\n",
    "a key that is a list": "? [1, 2]\n: 3\n",
    "a version of 10^30": f"version: {HUGE}\n",
    "a version of 10^5000": f"version: 1{'0' * 5000}\n",
    "a version of 1e308": "version: 1e308\n",
    "a version of infinity": "version: .inf\n",
    "a version of no number": "version: .nan\n",
    "a version of true": "version: true\n",
    "a version below zero": "version: -1\n",
    "zero bytes": b"\0" * 1000,
    "a million values": "version: [" + "1," * 1_000_000 + "]\n",
    "a million empty lists": "version: [" + "[]," * 1_000_000 + "]\n",
    "half a pair": 'version: "\\ud800"\n',
    "half a pair, raw": b"version: \xed\xa0\x80\n",
    "a directive": "%YAML 9.9\n---\nversion: 1\n",
    "a mark in the middle": "version: 1\nname: \ufeffx\n",
    "an escape as a key": json.dumps({EVIL: 1}),
    "a key of a megabyte": json.dumps({"k" * 2**20: 1}),
    "a value of a megabyte": json.dumps({"version": "v" * 2**20}),
    "a key with a newline": '{"version": 1, "a\\nerror: all is well": 1}',
}


def texts() -> Iterator[Case]:
    for name, content in TEXTS.items():
        for command in ("verify", "show"):
            yield refused(f"{name}: {command}", lambda at, c=content, w=command: [w, str(at.file(c))])
    for kind in ("profile", "cluster"):
        for name in ("lists a hundred thousand deep", "a million empty lists", "zero bytes"):
            yield refused(
                f"{name}: --{kind}",
                lambda at, n=name, k=kind: [
                    "verify",
                    str(at.right.folder / "plan.yaml"),
                    f"--{k}={at.file(TEXTS[n])}",
                ],
            )
    yield refused("a sparse file of 3 GiB", lambda at: ["show", str(_sparse(at.folder / "x.yaml"))])
    yield refused(
        "a profile dense in lists",
        lambda at: ["show", str(at.file('{"costs": [' + "[]," * 9_000_000 + "1]}"))],
    )


def _sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(3 * GIB)
    return path


# Numbers that are far too large, in right files

NUMBERS: Mapping[str, Data] = {
    "10^18": 10**18,
    "2^63-1": 2**63 - 1,
    "1e308": 1e308,
    "below zero": -1,
    "zero": 0,
}
COUNTS = (
    *(("axes", "data"), ("axes", "spatial"), ("axes", "pipeline")),
    *(
        ("schedule", "chunks"),
        ("schedule", "pairs"),
        ("batch", "micros"),
        ("batch", "micro"),
        ("batch", "samples"),
    ),
    *(("prediction", "step_ns"), ("times", 0, "forward_ns"), ("hops", 0, "ns"), ("hops", 0, "sender")),
)


def at_key(data: Data, path: tuple[str | int, ...], value: Data) -> Data:
    spot = data
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    return data


def numbers() -> Iterator[Case]:
    for path in COUNTS:
        for name, number in NUMBERS.items():
            if path == ("schedule", "chunks") and name != "zero":
                continue  # more than there are is allowed
            key = ".".join(map(str, path))

            def make(at: Place, path: tuple[str | int, ...] = path, number: Data = number) -> Words:
                file = at.file(json.dumps(at_key(at.data("plan"), path, number)))
                return ["verify", str(file), f"--cluster={at.right.folder / 'cluster.yaml'}"]

            yield Case(f"{key} of {name}", make)
    for name, count in {"nodes": 10**6, "devices": 10**15}.items():
        key = ("nodes", 0, "count" if name == "nodes" else "devices_per_node")

        def cluster(at: Place, key: tuple[str | int, ...] = key, count: int = count) -> Words:
            return ["show", str(at.file(json.dumps(at_key(at.data("cluster"), key, count))))]

        yield Case(f"a cluster of {count} {name}", cluster)
    yield Case("forty groups of a million nodes", _many_groups)


def _many_groups(at: Place) -> Words:
    data = at.data("cluster")
    data["nodes"] = [data["nodes"][0] | {"count": 10**6}] * 40
    return ["show", str(at.file(json.dumps(data)))]


# Text that steers a terminal, in every field of every kind of file


def _leaves(data: Data, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """One path to each kind of text: of a list, the first."""
    if isinstance(data, str):
        yield path
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else list(enumerate(data))[:1]
        if isinstance(data, list)
        else ()
    ):
        yield from _leaves(value, (*path, key))


def strings(right: Mapping[str, Data]) -> Iterator[Case]:
    """Args: `right` is the data of right files by kind."""
    for kind, data in right.items():
        commands = ("show", "verify", "simulate", "report") if kind == "plan" else ("show",)
        for path in _leaves(data):
            for command in commands:

                def make(
                    at: Place, k: str = kind, p: tuple[str | int, ...] = path, c: str = command
                ) -> Words:
                    file = at.file(json.dumps(at_key(at.data(k), p, EVIL)))
                    return [c, str(file), *([f"--output={at.folder / 'x.html'}"] if c == "report" else [])]

                yield Case(f"{kind} {'.'.join(map(str, path))}: {command}", make)


# Run folders of strangers

RECORDS = (
    "job.json",
    "outcome.json",
    "attempts.jsonl",
    "holder.json",
    "slurm.json",
    "plan.yaml",
    "trace.npz",
)
IN_FOLDERS = ("metrics/rank-00000.jsonl", "logs/rank-00000.log", "turns/00001")
WAYS: Mapping[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "empty": Path.touch,
    "torn": lambda path: path.write_text('{"steps": 1'),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0\x1b[2J"),
    "a list": lambda path: path.write_text("[]\n"),
    "null": lambda path: path.write_text("null\n"),
    "a number of 5000 digits": lambda path: path.write_text("9" * 5000 + "\n"),
    "nested a hundred thousand deep": lambda path: path.write_text("[" * DEEP + "]" * DEEP + "\n"),
    "keys of another kind": lambda path: path.write_text(json.dumps({EVIL: EVIL, "step": "x"}) + "\n"),
    "3 GiB": _sparse,
}


def run_files() -> Iterator[Case]:
    for file in (*RECORDS, *IN_FOLDERS):
        for way, spoil in WAYS.items():
            for command in ("status", "show", "logs") if file[:3] in ("job", "log") else ("status", "show"):

                def make(
                    at: Place, f: str = file, s: Callable[[Path], object] = spoil, c: str = command
                ) -> Words:
                    path = at.run().root / f
                    path.parent.mkdir(exist_ok=True)
                    path.unlink(missing_ok=True)
                    s(path)
                    return [c, str(path.parents[f.count("/")])]

                yield Case(f"{file} {way}: {command}", make)


ATTEMPT: Mapping[str, Data] = {
    "generation": 0,
    "nodes": ["a"],
    "begin_s": 1.0,
    "end_s": 2.0,
    "state": "lost",
    "cause": "x",
}
JOB: Mapping[str, Data] = {"steps": 6}
OUTCOME: Mapping[str, Data] = {"state": "failed", "rank": 0, "cause": "x", "exits": [1]}
FIELDS: tuple[tuple[str, Mapping[str, Data]], ...] = (
    *(("attempts.jsonl", ATTEMPT | {key: value}) for key in ("state", "cause", "job") for value in (EVIL,)),
    *(("attempts.jsonl", ATTEMPT | {"end_s": value}) for value in (1e308, -1e308, 1e18, "x", None, [1])),
    *(("attempts.jsonl", ATTEMPT | {"generation": value}) for value in (-1, 10**30, 1.5, True)),
    *(("attempts.jsonl", ATTEMPT | {"nodes": value}) for value in ("a", [1], [[["a"]]], [EVIL])),
    *(("job.json", JOB | {"steps": value}) for value in (0, -1, 10**30, "6", 1e308, None)),
    *(("job.json", JOB | {key: EVIL}) for key in ("content", "weights", "rendezvous", "device", "clip_by")),
    ("job.json", JOB | {"script": [EVIL, "a b"]}),
    ("job.json", JOB | {"deadline_s": float("nan")}),
    *(("outcome.json", OUTCOME | {key: EVIL}) for key in ("state", "cause")),
    *(("outcome.json", OUTCOME | {"rank": value}) for value in (7, -1, 10**30, "0")),
    ("outcome.json", OUTCOME | {"exits": [10**30]}),
    *(("slurm.json", {"job": value, "submitted_s": 1.0}) for value in (-1, EVIL, 10**30, 1.5)),
    *(("holder.json", {"host": EVIL, "pid": pid, "started": ""}) for pid in (1, 0, -1)),
)
ROW: Mapping[str, Data] = {
    "step": 1,
    "generation": 0,
    "micros": 1,
    "seconds": 0.1,
    "losses": {"0": {"loss:0": 1.0}},
}
ROWS: tuple[Mapping[str, Data], ...] = (
    *(ROW | {key: value} for key in ("step", "micros", "seconds") for value in (-1, 10**30, "1", None, [1])),
    *(
        ROW | {"losses": value}
        for value in ([], {"x": {}}, {"0": 1}, {"0": {"loss:0": "1"}}, {"²": {"loss:0": 1.0}})
    ),
    ROW | {"losses": {"0": {"loss:0": 1.0, "loss:1": 0.0}}},
    ROW | {"losses": {"0": {"loss:0": float("nan")}}},
    ROW | {"seconds": float("inf")},
    ROW | {"seconds": 5e-324},
)


def run_fields() -> Iterator[Case]:
    for number, (file, record) in enumerate(FIELDS):
        for command in ("status", "logs") if file == "job.json" else ("status",):

            def make(at: Place, f: str = file, r: Mapping[str, Data] = record, c: str = command) -> Words:
                run = at.run()
                run.outcome.unlink()
                (run.root / f).write_text(json.dumps(r) + "\n")
                return [c, str(run.root)]

            yield Case(f"field {number} of {file}: {command}", make)
    for number, row in enumerate(ROWS):

        def metrics(at: Place, r: Mapping[str, Data] = row) -> Words:
            run = at.run()
            run.rank_metrics(0).write_text(json.dumps(r) + "\n")
            return ["status", str(run.root)]

        yield Case(f"metrics {number}: status", metrics)


def _trace(at: Place, name: str, raw: bytes, *, compress: int = zipfile.ZIP_DEFLATED) -> Words:
    run = at.run()
    with zipfile.ZipFile(run.trace, "w", compress) as file:
        file.writestr(name, raw)
    return ["show", str(run.root)]


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _claims(shape: str) -> bytes:
    return _npy(np.zeros(100, np.int64)).replace(b"(100,)", shape.encode().ljust(6))


def _arrays(at: Place, **changes: Any) -> Words:
    run = at.run()
    with np.load(run.trace) as file:
        found = {name: file[name] for name in file.files}
    np.savez(run.trace, **(found | {name: change(found[name]) for name, change in changes.items()}))
    return ["show", str(run.root)]


def _bomb(at: Place) -> Words:
    run = at.run()
    with zipfile.ZipFile(run.trace, "w", zipfile.ZIP_DEFLATED) as file, file.open("step.npy", "w") as inner:
        for _ in range(160):
            inner.write(bytes(2**20))
    return ["show", str(run.root)]


def _lying(at: Place) -> Words:
    """A zip whose directory says that little is in it."""
    words = _bomb(at)
    path = Path(words[1]) / "trace.npz"
    path.write_bytes(
        path.read_bytes().replace((160 * 2**20).to_bytes(4, "little"), (800).to_bytes(4, "little"))
    )
    return words


def traces() -> Iterator[Case]:
    yield refused("trace: a zip bomb", _bomb)
    yield refused("trace: a zip bomb that lies", _lying)
    yield refused("trace: a pickle", lambda at: _trace(at, "step.npy", _npy(np.array([{}], dtype=object))))
    yield refused("trace: an unknown column", lambda at: _trace(at, f"{EVIL[1:6]}.npy", _npy(np.zeros(3))))
    yield refused("trace: a name that leads out", lambda at: _trace(at, "../../step.npy", _npy(np.zeros(3))))
    yield refused("trace: no array", lambda at: _trace(at, "step.npy", b"nothing"))
    yield refused("trace: a shape of 10^15", lambda at: _trace(at, "step.npy", _claims("(10**15,)")))
    yield refused("trace: a shape of 9e8", lambda at: _trace(at, "step.npy", _claims("(9" + "0" * 8 + ",)")))
    yield refused(
        "trace: another compression", lambda at: _trace(at, "step.npy", b"x", compress=zipfile.ZIP_LZMA)
    )
    yield refused("trace: ranks of nobody", lambda at: _arrays(at, rank=lambda x: x + 1000))
    yield refused("trace: stages of nobody", lambda at: _arrays(at, code=lambda x: x + (1 << 24) * 1000))
    yield refused("trace: codes of nothing", lambda at: _arrays(at, code=lambda x: x - 2**62))
    yield refused("trace: no numbers", lambda at: _arrays(at, start_ns=lambda x: x * float("nan")))
    yield refused("trace: text", lambda at: _arrays(at, step=lambda x: x.astype(str)))
    yield refused("trace: a table", lambda at: _arrays(at, step=lambda x: x.reshape(-1, 1)))
    yield refused("trace: a shorter column", lambda at: _arrays(at, step=lambda x: x[1:]))
    yield refused("trace: ends before starts", lambda at: _arrays(at, end_ns=lambda x: x * 0))
    yield refused("trace: times of 2^62", lambda at: _arrays(at, end_ns=lambda x: x + 2**62))
    yield Case("trace: every event its own step", lambda at: _arrays(at, step=lambda x: np.arange(len(x))))
    for command in ("calibrate", "report"):

        def other(at: Place, c: str = command) -> Words:
            run = _arrays(at, rank=lambda x: x + 1000)[1]
            first = [str(at.right.folder / "plan.yaml")] if c == "report" else []
            return [c, *first, run, f"--output={at.folder / 'out'}"]

        yield refused(f"trace: ranks of nobody: {command}", other)


def _log(content: bytes, name: str = "rank-00000.log") -> Callable[[Place], Words]:
    def make(at: Place) -> Words:
        run = at.run()
        (run.root / "logs" / name).write_bytes(content)
        return ["logs", str(run.root)]

    return make


def _named(at: Place, name: str, command: str) -> Words:
    run = at.run().root.rename(at.folder / name)
    return [command, str(run)]


def _cancels(at: Place, held: Mapping[str, Data]) -> Words:
    run = at.run()
    run.outcome.unlink()
    run.holder.write_text(json.dumps(held))
    return ["cancel", str(run.root)]


def others() -> Iterator[Case]:
    yield Case("a log that steers", _log(EVIL.encode() + b"\x80" + b"\x1b]52;c;aGk=\x07\n\x9b31m\n"))
    yield Case("a log of one line of 20 MB", _log(b"x" * 20_000_000))
    yield Case("a log with a name that steers", _log(b"x\n", "a\x1b[2Jb.log"))
    yield Case("a log with a name of no text", lambda at: _log(b"x\n", os.fsdecode(b"a\xff.log"))(at))
    for command in ("status", "logs", "show", "cancel"):
        yield Case(
            f"a run called to steer: {command}", lambda at, c=command: _named(at, "a\x1b[2J\u202eb", c)
        )
        yield Case(f"a run called a newline: {command}", lambda at, c=command: _named(at, "a\nerror: b", c))
        yield refused(f"no folder at all: {command}", lambda at, c=command: [c, str(at.folder / "gone")])
        yield refused(f"a name too long: {command}", lambda at, c=command: [c, "x" * 5000])
        yield refused(f"a name with a zero: {command}", lambda at, c=command: [c, "x\0y"])
        yield refused(f"a folder that is none: {command}", lambda at, c=command: [c, str(at.foreign)])
        yield refused(f"a device: {command}", lambda at, c=command: [c, "/dev/null"])
        yield refused(f"a link to itself: {command}", lambda at, c=command: [c, str(_looped(at))])
    mine = runfolder.of(os.getpid())
    for name, held in {
        "this very process": asdict(mine),
        "the first process": asdict(runfolder.of(1)),
        "no process": {"host": socket.gethostname(), "pid": 0, "started": ""},
        "everybody": {"host": socket.gethostname(), "pid": -1, "started": ""},
        "a process of 10^18": {"host": socket.gethostname(), "pid": 10**18, "started": "x"},
    }.items():
        yield refused(f"cancel: {name}", lambda at, h=held: _cancels(at, h))
    yield refused("-o a pipe", lambda at: _onto(at, "fifo", os.mkfifo))
    yield refused("-o a folder", lambda at: _onto(at, "x", Path.mkdir))
    yield refused(
        "-o in no folder", lambda at: [*_report(at), f"--output={at.folder / 'no/where.html'}", "--force"]
    )
    yield refused(
        "-o a name too long", lambda at: [*_report(at), f"--output={at.folder / ('x' * 300)}", "--force"]
    )


def _report(at: Place) -> Words:
    return ["report", str(at.right.folder / "plan.yaml")]


def _onto(at: Place, name: str, make: Callable[[Path], object]) -> Words:
    make(at.folder / name)
    return [*_report(at), f"--output={at.folder / name}", "--force"]


# Weights, checkpoints and folders that a launch is given

LAUNCH = ("launch", "plans/mlp-two-stages.yaml", "--inline", "--steps=1")


def _tensors() -> dict[str, Any]:
    """The parameters of the model that is launched, all zero."""
    import torch

    from planner.plan import load

    plan = load(Path(LAUNCH[1]))
    return {name: torch.zeros(shape) for name, shape in _shapes(plan.model.workload).items()}


@cache
def _shapes(workload: str) -> dict[str, tuple[int, ...]]:
    from tests.captures import captured_of

    return {row.name: tuple(row.shape) for row in captured_of(workload, {}, 1)[1].graph.parameters}


def _safe(at: Place, tensors: Mapping[str, Any]) -> Path:
    from safetensors.torch import save_file

    save_file(dict(tensors), at.folder / "given.safetensors")
    return at.folder / "given.safetensors"


def _changed(change: Callable[[Any], Any]) -> Callable[[Place], Path]:
    """The right weights, of which one tensor is changed."""

    def make(at: Place) -> Path:
        tensors = _tensors()
        name = sorted(tensors)[0]
        return _safe(at, tensors | {name: change(tensors[name])})

    return make


def _raw(content: bytes, name: str = "given.safetensors") -> Callable[[Place], Path]:
    return lambda at: at.file(content, name)


def _header(header: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header


def _shards(weight_map: Data) -> Callable[[Place], Path]:
    return lambda at: at.file(json.dumps({"weight_map": weight_map}), "a.safetensors.index.json")


def _made(at: Place, make: Callable[[Path], object]) -> Path:
    make(at.folder / "given.safetensors")
    return at.folder / "given.safetensors"


def _pickled(at: Place) -> Path:
    import torch

    torch.save(_tensors(), at.folder / "given.safetensors")
    return at.folder / "given.safetensors"


WEIGHTS: Mapping[str, Callable[[Place], Path]] = {
    "a pickle": _pickled,
    "nothing": _raw(b""),
    "a header of 2^60 bytes": _raw(_header(b"{}", 2**60)),
    "a header of 90 MB": _raw(_header(b"{" + b" " * 90_000_000 + b"}")),
    "a header of a list": _raw(_header(b"[]")),
    "a header a hundred thousand deep": _raw(_header(b'{"a":' * DEEP)),
    "a header that leads out": _raw(_header(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}')),
    "a shape of 10^18": _raw(
        _header(b'{"a":{"dtype":"F32","shape":[1000000000000000000],"data_offsets":[0,4]}}')
    ),
    "offsets below zero": _raw(_header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}')),
    "names that steer": lambda at: _safe(at, {EVIL: next(iter(_tensors().values()))}),
    "no tensors": lambda at: _safe(at, {}),
    "integers": _changed(lambda x: x.int()),
    "complex numbers": _changed(lambda x: x.cfloat()),
    "truths": _changed(lambda x: x.bool()),
    "no numbers": _changed(lambda x: x + float("nan")),
    "infinities": _changed(lambda x: x + float("inf")),
    "doubles too large for the model": _changed(lambda x: x.double() + 1e300),
    "another shape": _changed(lambda x: x[1:].clone()),
    "a pipe": lambda at: _made(at, os.mkfifo),
    "a link to a device": lambda at: _made(at, lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": lambda at: _made(at, lambda path: path.symlink_to(path)),
    "3 GiB of zeros": lambda at: _made(at, _sparse),
    "a folder of somebody else": lambda at: at.foreign,
    "shards of a list": _shards([1, 2]),
    "shards that are elsewhere": _shards({"a": "../../../etc/passwd", "b": "/etc/passwd"}),
    "shards of numbers": _shards({"a": 1}),
    "an index of no JSON": _raw(b"[" * DEEP, "a.safetensors.index.json"),
}


def _in_run(name: str) -> Callable[[Place], Path]:
    """A run folder in which one name is a link to what belongs to somebody else."""

    def make(at: Place) -> Path:
        root = at.run().root
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(at.foreign if path.suffix == "" else at.foreign / "precious.txt")
        return root

    return make


def _given_away(at: Place) -> Path:
    os.chown(at.foreign, 12345, -1)
    return at.foreign


def _linked(at: Place) -> Path:
    (at.folder / "link").symlink_to(at.foreign)
    return at.folder / "link"


def _looped(at: Place) -> Path:
    (at.folder / "loop").symlink_to(at.folder / "loop")
    return at.folder / "loop"


def _with_checkpoint(index: str) -> Callable[[Place], Path]:
    """A run folder with a checkpoint of somebody else."""

    def make(at: Place) -> Path:
        run = at.run()
        folder = run.checkpoints / "step-00000009"
        folder.mkdir(parents=True)
        (folder / "index.json").write_text(index)
        (folder / "index.sum").write_text(settle(folder / "index.json"))
        return run.root

    return make


INDEX: Mapping[str, Data] = {
    "version": 2,
    "facts": {"step": 9, "sample": 0, "seed": 0, "fingerprint": EVIL, "extra": {}},
    "files": {"model/w": "part-00000.safetensors"},
    "settings": {},
    "names": {"w": "w"},
    "sums": {},
}
RUNS: Mapping[str, Callable[[Place], Path]] = {
    "a folder of somebody else": lambda at: at.foreign,
    "a folder of another user": _given_away,
    "a link": _linked,
    "a file": lambda at: at.file("x"),
    "a device": lambda at: Path("/dev/null"),
    "the root": lambda at: Path("/"),
    "a folder inside a run folder": lambda at: at.run().root / "checkpoints" / "step-00000099",
    "a link to itself": _looped,
    "below a link to itself": lambda at: _looped(at) / "run",
    "a name too long": lambda at: at.folder / ("x" * 300),
    "a name with a zero": lambda at: at.folder / "x\0y",
    **{
        f"{name} is a link": _in_run(name) for name in ("checkpoints", "logs", "metrics", "turns", "job.json")
    },
    "a checkpoint of another model": _with_checkpoint(json.dumps(INDEX)),
    "a checkpoint of a list": _with_checkpoint("[]"),
    "a checkpoint a hundred thousand deep": _with_checkpoint("[" * DEEP),
    "a checkpoint that leads out": _with_checkpoint(
        json.dumps({**INDEX, "files": {"model/w": "../../../etc/passwd"}})
    ),
    "a checkpoint of step 10^30": _with_checkpoint(
        json.dumps({**INDEX, "facts": INDEX["facts"] | {"step": 10**30}})
    ),
}


def launches() -> Iterator[Case]:
    for name, make in WEIGHTS.items():
        yield refused(
            f"weights: {name}",
            lambda at, m=make: [*LAUNCH, f"--run={at.folder / 'new'}", f"--weights={m(at)}"],
        )
    for name, make in RUNS.items():
        own = ("run",) if name.startswith("a checkpoint") else ()
        yield Case(f"--run {name}", lambda at, m=make: [*LAUNCH, f"--run={m(at)}"], may_work=False, own=own)


def cases(right: Mapping[str, Data]) -> list[Case]:
    return [
        *(*texts(), *numbers(), *strings(right), *run_files(), *run_fields(), *traces()),
        *(*others(), *launches()),
    ]
