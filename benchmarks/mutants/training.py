"""Hostile files of those who train: each kind writes one and returns the command that reads it."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mutants.changes import EVIL, as_text, changed, changed_tensors, changed_text, folded, loaded
from benchmarks.mutants.right import CONV, Seeds, infer_words, trained
from planner.timeline import Timeline
from runtime.checkpoint.integrity import INDEX, settle
from runtime.runfolder import Paths


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
            kind.write_text(as_text(changed(loaded(kind), chance), chance))
            return
        parts = text.splitlines() if kind.suffix == ".jsonl" else [text]
        kind.write_text("".join(as_text(changed(json.loads(part), chance), chance) + "\n" for part in parts))
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


def _launched(plan: Path, folder: Path, *more: str) -> list[str]:
    run = folder / "new"
    shutil.rmtree(run, ignore_errors=True)
    return ["launch", str(plan), "--inline", "--steps=1", "--trust", f"--run={run}", *more]


def _elsewhere(name: str, model: Path, folder: Path) -> Path:
    """Writes a plan for a model that lies elsewhere."""
    path = folder / "plan.yaml"
    path.write_text(trained().plan(name).read_text().replace(str(trained().model), str(model)))
    return path


def a_model(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A captured model: what it says, its weights or its samples."""
    model = folder / "net.model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(trained().model, model)
    name = chance.choice(["model.json"] * 4 + ["weights.safetensors", "samples.safetensors"])
    if name == "model.json":
        data = json.loads((model / name).read_text())
        (model / name).write_text(as_text(folded(data, chance), chance))
    else:
        (model / name).write_bytes(changed_tensors((model / name).read_bytes(), chance))
    out = f"--output={folder / 'out'}"
    profile = ["profile", str(model), "--device=roofline:H100-80GB", "--micro=2", out, "--force"]
    kind = chance.choice(["plain", "cut", "ema", "shard"])
    launch = _launched(_elsewhere(kind, model, folder), folder)
    return profile if chance.random() < 0.4 else launch


def a_mask(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """The entries of pruned weights that stay."""
    right, path = trained(), folder / "kept.safetensors"
    path.write_bytes(changed_tensors((right.folder / "kept.safetensors").read_bytes(), chance))
    files = [f"--profile={right.folder / 'costs.yaml'}", "--cluster=plans/clusters/one-node.yaml"]
    plan = ["plan", *files, "--batch=4", "--fix=pipeline=2", "--schedule=1f1b", f"--kept={path}"]
    launch = _launched(right.plan("kept"), folder, f"--kept={path}")
    return chance.choice([[*plan, f"--output={folder / 'out'}", "--force"], launch])


def a_checkpoint(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A run folder with a checkpoint of whole tensors, of kept entries or of pieces, which a training goes on from."""
    right, run = trained(), folder / "run"
    name, plan = chance.choice([("run", "plain"), ("run", "cut"), ("pruned", "kept"), ("shared", "shard")])
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(right.folder / name, run)
    checkpoint = max((run / "checkpoints").glob("step-*"))
    part = chance.choice([INDEX, INDEX, *(x.name for x in checkpoint.glob("*.safetensors"))])
    path = checkpoint / part
    if part == INDEX:
        path.write_text(as_text(folded(json.loads(path.read_text()), chance), chance))
    else:
        path.write_bytes(changed_tensors(path.read_bytes(), chance))
        index = json.loads((checkpoint / INDEX).read_text())
        index["sums"][part] = settle(path)
        (checkpoint / INDEX).write_text(json.dumps(index))
    (checkpoint / "index.sum").write_text(settle(checkpoint / INDEX))
    kept = [f"--kept={right.folder / 'kept.safetensors'}"] if plan == "kept" else []
    launch = ["launch", str(right.plan(plan)), "--inline", "--steps=3", "--trust"]
    return chance.choice(
        [
            [*launch, f"--run={run}"],
            _launched(right.plan(plan), folder, f"--weights={run}", *kept),
            ["status", str(run)],
            ["prune", str(run), "--keep=0.3", f"--output={folder / 'out'}", "--force"],
        ]
    )


def some_weights(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """Weights of somebody else, for a training, an inference or a choice of entries."""
    right, path = trained(), folder / "given.safetensors"
    part = max((right.folder / "run" / "checkpoints").glob("step-*")) / "part-00000.safetensors"
    source = chance.choice([right.model / "weights.safetensors", part])
    path.write_bytes(changed_tensors(source.read_bytes(), chance))
    prune = ["prune", str(path), "--keep=0.5", f"--output={folder / 'out'}", "--force"]
    return chance.choice([_launched(right.plan("plain"), folder, f"--weights={path}"), prune])


def some_samples(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """An index of the samples to train on, from `dedup`."""
    path = folder / "given.npy"
    rows = np.load(trained().folder / "index.npy")
    for _ in range(chance.choice((0, 0, 1, 3))):
        numbers = chance.choice((-5, -1, 0, 5, 6, 2**62)), chance.choice((0, 5, 6, 2**63))
        rows[chance.randrange(len(rows))] = numbers
    np.save(path, rows[: chance.choice((len(rows), len(rows), 0, 1, 4))])
    if chance.random() < 0.4:
        raw = changed_text(path.read_bytes().decode("latin1"), chance)
        path.write_bytes(raw.encode("latin1", "replace"))
    return _launched(trained().plan("plain"), folder, f"--samples={path}")


def an_inference(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """The folder of tasks beside an output volume, or the volume itself."""
    right, out = trained().folder, folder / "out.npy"
    tasks = folder / "out.npy.tasks"
    shutil.rmtree(tasks, ignore_errors=True)
    out.unlink(missing_ok=True)
    shutil.copytree(right / "out.npy.tasks", tasks)
    shutil.copy(right / "out.npy", out)
    job = tasks / "infer.json"
    job.write_text(job.read_text().replace(str(right / "out.npy"), str(out)))
    path = chance.choice([job, job, tasks / "space.json", *sorted((tasks / "done").iterdir()), out])
    if path == out:
        path.write_bytes(changed_text(path.read_bytes().decode("latin1"), chance).encode("latin1", "replace"))
    else:
        path.write_text(as_text(changed(json.loads(path.read_text()), chance), chance))
    for done in chance.sample(sorted((tasks / "done").iterdir()), chance.choice((0, 1, 3))):
        done.unlink()
    again = ["infer", *infer_words(right, folder)]
    return chance.choice(
        [["status", str(out)], ["status", str(tasks), "--json"], ["logs", str(tasks)], again, again]
    )


def a_volume(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A volume that a model is applied to."""
    right, path = trained().folder, folder / "in.npy"
    shutil.rmtree(folder / "out.npy.tasks", ignore_errors=True)
    (folder / "out.npy").unlink(missing_ok=True)
    raw = (right / "in.npy").read_bytes()
    head = changed_text(raw[:128].decode("latin1"), chance).encode("latin1", "replace")
    path.write_bytes(head + raw[128:])
    words = [x for x in infer_words(right, folder) if not x.startswith("--input=")]
    return ["infer", *words, f"--input={path}"]


def some_settings(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """Settings of a workload as YAML, or a workload file that is torn."""
    out = ["--device=roofline:H100-80GB", "--micro=2", f"--output={folder / 'out'}", "--force"]
    if chance.random() < 0.5:
        path = folder / "settings.yaml"
        path.write_text(as_text(changed({"label": "b", "scale": 0.5, "bias": False}, chance), chance))
        return ["profile", str(trained().folder / "conv.py"), f"--config={path}", *out]
    path = folder / f"work{chance.randrange(10**9)}.py"
    path.write_text(changed_text(CONV, chance), errors="surrogatepass")
    return ["profile", str(path), *out]
