"""Hostile inputs of what a launch is given beside its plan, as rows of the table in `hostile_cases.py`.

Captured models as folders, indices of samples, masks of pruned weights, configurations of other trainers, settings of
a workload, and logs. All of them may be a stranger's.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.mutants import EVIL, judged
from tests.hostile_cases import DEEP, HUGE, Case, Data, Place, Words, refused

MANY_TENSORS = 400_000


def _many() -> bytes:
    """Returns safetensors of many empty tensors: a header of 23 MB."""
    rows = {f"{i:07d}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(MANY_TENSORS)}
    header = json.dumps(rows, separators=(",", ":")).encode()
    return len(header).to_bytes(8, "little") + header


# A captured model with its plan, made once


@cache
def home() -> Path:
    """Returns a folder with a captured model, its plan, and an index of its samples."""
    import torch
    from torch import nn

    from planner.capture import LiveLoop
    from runtime.data import live_workload

    made = Path(tempfile.mkdtemp(prefix="hostile-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    pair = torch.randn(6, 4), torch.randn(6, 3)
    loop = LiveLoop(optimizer=torch.optim.AdamW(module.parameters(), lr=0.1))
    live_workload(module, pair, nn.functional.mse_loss, None, loop, made / "net.model")
    costs, machines = f"--profile={made / 'costs.yaml'}", "--cluster=plans/clusters/one-node.yaml"
    for words in (
        ["profile", str(made / "net.model"), *ROOFLINE, f"--output={made / 'costs.yaml'}"],
        ["plan", costs, machines, "--batch=4", "--fix=pipeline=2", f"--output={made / 'plan.yaml'}"],
    ):
        found = judged(words)
        assert not found.status, found.output
    return made


ROOFLINE = ("--device=roofline:H100-80GB", "--micro=2")


def _kept(at: Place) -> Path:
    """Copies the captured model and its plan into a place."""
    shutil.copytree(home() / "net.model", at.folder / "net.model")
    text = (home() / "plan.yaml").read_text().replace(str(home()), str(at.folder))
    (at.folder / "plan.yaml").write_text(text)
    return at.folder / "net.model"


def _profiled(at: Place) -> Words:
    return ["profile", str(at.folder / "net.model"), *ROOFLINE, f"--output={at.folder / 'out'}"]


def _launched(at: Place, *more: str) -> Words:
    plan, run = at.folder / "plan.yaml", at.folder / "new"
    return ["launch", str(plan), "--inline", "--steps=1", "--trust", f"--run={run}", *more]


def _model_file(name: str, spoil: Callable[[Path], object], launch: bool = False) -> Callable[[Place], Words]:
    def make(at: Place) -> Words:
        path = _kept(at) / name
        path.unlink()
        spoil(path)
        return _launched(at) if launch else _profiled(at)

    return make


def _said(change: Callable[[Data], object], launch: bool = False) -> Callable[[Place], Words]:
    """What `model.json` says is changed."""

    def make(at: Place) -> Words:
        path = _kept(at) / "model.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        return _launched(at) if launch else _profiled(at)

    return make


def _launching(name: str, make: Callable[[Place], Words]) -> Case:
    """Returns an input that is to be refused, perhaps when its run folder is there."""
    return Case(name, make, may_work=False, own=("new",))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 * 2**30)


FILES: Mapping[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "nothing": Path.touch,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "3 GiB": _sparse,
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0\x1b[2J" * 9),
    "many tensors": lambda path: path.write_bytes(_many()),
}
TEXTS: Mapping[str, str] = {
    "nested": "[" * DEEP,
    "dense": '{"version": 1, "captured": [' + "[]," * 9_000_000 + "1]}",
    "a list": "[]",
    "another version": f'{{"version": {HUGE}}}',
    "an escape": json.dumps({"version": EVIL}),
    "empty parts": '{"version": 1, "captured": {}, "evaluation": {}, "batch": [], "recipe": {}}',
}


def _recipe(**changes: Data) -> Callable[[Data], object]:
    return lambda data: data["recipe"]["optimizer"].update(changes)


def _node(**changes: Data) -> Callable[[Data], object]:
    def change(data: Data) -> None:
        next(row for row in data["captured"]["nodes"] if "call" in row).update(changes)

    return change


CHANGES: Mapping[str, tuple[Callable[[Data], object], bool]] = {
    "an operation that reads files": (_node(call="aten.from_file.default"), False),
    "an operation of Python": (_node(call="os.system"), False),
    "an operation called to steer": (_node(call=EVIL), False),
    "a layer of 10^30": (_node(layer=10**30), False),
    "arguments of 2^62 nodes": (_node(args=[{"node": 2**62}]), False),
    "arguments below zero": (_node(args=[{"node": -1}]), False),
    "a number that is none": (_node(args=[{"float": EVIL}]), False),
    "a shape of 10^18": (
        lambda data: data["captured"]["nodes"][0].update(shape=[[10**18, 0]] * 8, stride=[[1, 0]] * 8),
        False,
    ),
    "probes of 10^18": (lambda data: data["captured"].update(probes=[10**18, 10**18 + 1]), False),
    "names that steer": (
        lambda data: data["captured"].update(layers=[EVIL] * len(data["captured"]["layers"])),
        False,
    ),
    "an optimizer that is a program": (_recipe(**{"class": "os:system"}), True),
    "an optimizer next door": (_recipe(**{"class": "..x:y"}), True),
    "an optimizer called to steer": (_recipe(**{"class": EVIL}), True),
    "no optimizer": (_recipe(groups=None), True),
    "a rate of 10^308 as text": (_recipe(options={"lr": EVIL}), True),
    "a rate that is no number": (_recipe(options={"lr": float("nan")}), True),
    "options of nobody": (_recipe(options={EVIL: 1}), True),
    "a dataset that is a program": (lambda data: data["recipe"].update(dataset="os:getcwd"), True),
    "a dataset of nobody": (
        lambda data: data["recipe"].update(dataset=f"socket:/nowhere/{EVIL}#train:9"),
        True,
    ),
    "a batch without tensors": (lambda data: data.update(batch=[{"tensor": EVIL, "rows": True}] * 2), True),
    "a batch of one": (lambda data: data.update(batch=data["batch"][:1]), True),
}


def models() -> Iterator[Case]:
    for file in ("model.json", "weights.safetensors", "samples.safetensors"):
        for name, spoil in FILES.items():
            launch = file == "samples.safetensors"
            yield _launching(f"{file} of a captured model is {name}", _model_file(file, spoil, launch))
    for name, text in TEXTS.items():
        yield refused(f"model.json is {name}", _model_file("model.json", lambda p, t=text: p.write_text(t)))
    for name, (change, launch) in CHANGES.items():
        yield _launching(f"a captured model with {name}", _said(change, launch))


# Indices of samples and masks


def _rows(*rows: tuple[int, int], shape: str = "") -> bytes:
    import io

    out = io.BytesIO()
    np.save(out, np.array(list(rows), np.dtype([("index", "<i8"), ("content", "<u8")])))
    raw = out.getvalue()
    return raw.replace(b"(1,)".ljust(20), shape.encode().ljust(20)) if shape else raw


INDICES: Mapping[str, bytes] = {
    "nothing": b"",
    "no array": b"\x93NUMPY" + b"\xff" * 100,
    "an array of objects": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "a head of a megabyte": b"\x93NUMPY\x02\x00" + (2**20).to_bytes(4, "little") + b"(" * 2**20,
    "a head that runs": b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').system('id')   ",
    "a shape of 10^15": _rows((-1, 6), shape=f"({10**15},)"),
    "another dataset's": _rows((-1, 10**15), (3, 7)),
    "of numbers below zero": _rows((-1, 6), (-5, 7)),
    "of numbers beyond the end": _rows((-1, 6), (2**62, 7)),
    "without samples": _rows((-1, 6)),
    "of more samples than there are": _rows((-1, 1), (0, 1), (0, 1), (0, 1)),
    "a zip": b"PK\x03\x04" + b"\0" * 100,
}


def _given(option: str, spoil: Callable[[Path], object], name: str = "given.npy") -> Callable[[Place], Words]:
    def make(at: Place) -> Words:
        _kept(at)
        spoil(at.folder / name)
        return _launched(at, f"--{option}={at.folder / name}")

    return make


def given() -> Iterator[Case]:
    for name, raw in INDICES.items():
        yield _launching(f"samples: {name}", _given("samples", lambda path, x=raw: path.write_bytes(x)))
    for name, spoil in FILES.items():
        yield _launching(f"samples: {name} as a file", _given("samples", spoil))
        yield _launching(f"masks: {name} as a file", _given("kept", spoil, "given.safetensors"))
    yield _launching("weights: many tensors", _given("weights", FILES["many tensors"], "given.safetensors"))
    for count in ("0", "-1", HUGE, "1e308", EVIL):
        yield _launching(
            f"store: {count!r} steps", lambda at, n=count: (_kept(at), _launched(at, f"--store=ram:{n}"))[1]
        )


# Configurations of other trainers, and settings of a workload

BASELINES: Mapping[str, str | bytes] = {
    "micro-batches of none": "--micro-batch-size 0 --global-batch-size 8",
    "10^30 micro-batches": json.dumps({"train_batch_size": 8, "gradient_accumulation_steps": 10**30}),
    "a contradiction": json.dumps({"train_batch_size": 8, "gradient_accumulation_steps": 10**8}),
    "10^308 samples": json.dumps({"train_batch_size": 1e308}),
    "nested JSON": '{"a":' * DEEP,
    "nested Python": "DP_SHARD = " + "[" * DEEP,
    "Python that runs": "DP_SHARD = __import__('os').system('touch /tmp/owned')\n",
    "a power of powers": "DP_SHARD = 9**9**9**9\n",
    "a number of a megabyte": "DP_SHARD = " + "9" * 10**6,
    "TOML of a megabyte": "[training]\n" + "a.b.c = 1\n" * 90_000,
    "nested TOML": "[training]\nx = " + "[" * DEEP,
    "escapes": f"--micro-batch-size '{EVIL}'",
    "a schedule that steers": f"--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule '{EVIL}'",
    "a layout of 10^9 blocks": "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*1000000000|tL'",
    "a layout nested": f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{'(' * 9000}'",
    "10^9 stages": "--pipeline-model-parallel-size 1000000000 --micro-batch-size 1 --global-batch-size 8",
    "10^9 chunks": "--num-virtual-stages-per-pipeline-rank 1000000000 --micro-batch-size 1 --global-batch-size 8",
    "stages of nobody": json.dumps({"pipeline": {"stages": -5}, "train_batch_size": 8}),
    "an alias": "distributed_type: FSDP\na: &a [1]\nb: *a\n",
    "a tag": 'distributed_type: !!python/object/apply:os.system ["id"]\n',
    "no text": b"\xff\xfe\0",
    "2 MiB": "--micro-batch-size 1 " * 100_000,
}
CONFIGS: Mapping[str, str | bytes] = {
    "nested": "layers: " + "[" * DEEP,
    "an alias": "layers: &a [1]\nx: *a\n",
    "a tag": 'layers: !!python/object/apply:os.system ["id"]\n',
    "names that steer": json.dumps({EVIL: 1}),
    "values that steer": json.dumps({"layers": EVIL}),
    "interpolations": "layers: ${oc.env:HOME}\n",
    "no text": b"\xff\xfe\0",
}


def _plan(at: Place, *more: str) -> Words:
    files = [f"--{name}={at.right.folder / name}.yaml" for name in ("profile", "cluster")]
    return ["plan", *files, "--batch=8", "--schedule=1f1b", f"--output={at.folder / 'out'}", *more]


def texts() -> Iterator[Case]:
    for name, text in BASELINES.items():
        yield refused(
            f"a baseline of {name}", lambda at, t=text: _plan(at, f"--baseline={at.file(t, 'theirs')}")
        )
    for name, spoil in FILES.items():
        yield refused(
            f"a baseline that is {name}",
            lambda at, s=spoil: (s(at.folder / "theirs"), _plan(at, f"--baseline={at.folder / 'theirs'}"))[1],
        )
    for name, text in CONFIGS.items():

        def profiled(at: Place, t: str | bytes = text) -> Words:
            return ["profile", "mlp", f"--config={at.file(t)}", *ROOFLINE, f"--output={at.folder / 'out'}"]

        yield refused(f"settings: {name}", profiled)


LOGS: Mapping[str, bytes] = {
    "16 MiB of colours": b"\x1b[31m" * (2**24 // 5),
    "16 MiB of zeros": bytes(2**24),
    "eight million lines": b"\x07\n" * 2**23,
    "bidirectional lines": "\u202e\n".encode() * 2**22,
    "progress for ever": b"10%\r" * 2**22,
    "titles that never end": b"\x1b]0;" * 2**22,
}


def logs() -> Iterator[Case]:
    for name, content in LOGS.items():
        for more in ((), ("--json",)):

            def make(at: Place, c: bytes = content, m: tuple[str, ...] = more) -> Words:
                run = at.run()
                run.log(0).write_bytes(c)
                return ["logs", str(run.root), *m]

            yield Case(f"a log of {name}{' as JSON' if more else ''}", make)

    def crowded(at: Place) -> Words:
        run = at.run()
        for number in range(3000):
            (run.root / "logs" / f"{number}{EVIL[:5]}.log").write_bytes(b"x\n" * 300)
        return ["logs", str(run.root)]

    yield Case("three thousand logs", crowded)


def cases() -> Iterator[Case]:
    for rows in (models(), given(), texts(), logs()):
        yield from rows
