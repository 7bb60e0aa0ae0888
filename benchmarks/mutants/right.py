"""Right inputs of every kind, from which hostile ones are made."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.mutants.judging import judged
from planner import cluster as clusters
from planner import plan as plans
from planner.calibrate import Observation, fit
from planner.cluster import Cluster
from planner.milp import Question, solve
from planner.plan import Plan
from planner.profile import Profile, save
from planner.simulate import simulate_plan
from runtime.checkpoint.integrity import INDEX, OF_PIECES, settle
from runtime.runfolder import Attempt, Job, Outcome, Paths, note_attempt, tell

ONE_NODE = "plans/clusters/one-node.yaml"
ROOFLINE = ("--device=roofline:H100-80GB", "--micro=2")
HOSTS = """version: 1
name: hosts
nodes:
- {count: 4, device: cpu, devices_per_node: 1, memory_bytes: 8000000000, cards: [{interface: ib0}, {interface: ib1}]}
links:
  rack:
    latency_s: 5.0e-05
    bandwidth_bytes_per_s: 1.25e+09
    sums:
      ring: {latency_s: 6.1e-05, bandwidth_bytes_per_s: 1.1e+09}
      direct: {latency_s: 1.3e-04, bandwidth_bytes_per_s: 7.2e+08}
      rings 2: {latency_s: 8.4e-05, bandwidth_bytes_per_s: 1.05e+09}
"""
CUT = "version: 1\ngroup: [2]\ncut:\n- {layers: '0', x: out}\n- {layers: '2', x: in}\n"
CONV = """import torch
from torch import nn

def build(label: str = "a", scale: float = 1.0, bias: bool = True):
    return nn.Conv3d(1, 1, 3, padding=1)

def batch(n):
    return torch.rand(n, 1, 8, 8, 8), torch.rand(n, 1, 8, 8, 8)

def loss(outputs, targets):
    return (outputs - targets).square().mean()
"""


@dataclass(frozen=True)
class Seeds:
    """Right inputs of those who decide."""

    plan: Plan
    profile: Profile
    cluster: Cluster
    folder: Path  # has plan.yaml, profile.yaml, cluster.yaml, calibration.yaml and the folder run


@dataclass(frozen=True)
class Trained:
    """Right inputs of those who train: a captured model, its plans with all sections, and what its runs have left."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "net.model"

    def plan(self, name: str) -> Path:
        """Returns the plan of a name in `PLANS`."""
        return self.folder / f"{name}.yaml"


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


# A captured model, what is planned for it, and what its trainings leave

PLANS: dict[str, tuple[str, ...]] = {
    "plain": ("--fix=pipeline=2",),
    "cut": ("--schedule=1f1b", "--fix=group=2", "--fix=cut=0:out,2:in"),
    "kept": ("--fix=pipeline=2", "--kept={folder}/kept.safetensors"),
    "shard": ("--fix=data=2", "--fix=shard=parameters", "--fix=pipeline=1"),
    "sums": ("--fix=data=2", "--fix=pipeline=2", "--fix=sums=rings 2"),
    "ema": ("--schedule=zb-h1", "--fix=pipeline=2", "--fix=ema=true", "--fix=recompute=true"),
}


@cache
def trained() -> Trained:
    """Returns the right inputs of those who train, made once for this process."""
    import torch
    from safetensors.torch import save_file

    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Trained(folder)
    _capture(made.model)
    (folder / "hosts.yaml").write_text(HOSTS)
    (folder / "cuts.yaml").write_text(CUT)
    _do("profile", str(made.model), *ROOFLINE, f"--output={folder / 'costs.yaml'}")
    _plan(made, "plain")
    _train(made, "plain", "run", "--steps=2", "--save-every=1")
    _do("prune", str(folder / "run"), "--keep=0.3", f"--output={folder / 'kept.safetensors'}")
    for name in PLANS:
        _plan(made, name)
    _train(made, "kept", "pruned", "--steps=1", f"--kept={folder / 'kept.safetensors'}")
    shutil.copytree(folder / "run", folder / "shared")
    _split(max((folder / "shared" / "checkpoints").glob("step-*")))
    jobs = f"--output={folder / 'jobs'}"
    _do("plan", *_files(made), "--batch=4", "--schedule=1f1b", "--devices=1,2", jobs)
    torch.manual_seed(0)
    (folder / "conv.py").write_text(CONV)
    save_file({"weight": torch.ones(1, 1, 3, 3, 3), "bias": torch.zeros(1)}, folder / "conv.safetensors")
    np.save(folder / "in.npy", np.ones((9, 8, 8), np.float32))
    _do("infer", *infer_words(folder, folder))
    return made


def infer_words(right: Path, folder: Path) -> list[str]:
    """Returns the words of an inference behind `infer`.

    Args: `right` has the model and its input; the output lies in `folder`.
    """
    files = {"weights": right / "conv.safetensors", "input": right / "in.npy", "output": folder / "out.npy"}
    return [str(right / "conv.py"), *(f"--{name}={path}" for name, path in files.items()), "--chunk=4,8,8"]


def _capture(folder: Path) -> None:
    import torch
    from torch import nn

    from planner.capture import LiveLoop
    from planner.workload import load
    from runtime.data import live_workload, raw_of
    from runtime.dedup import save_index
    from runtime.dedup.index import content_of, parts_of

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    pair = torch.randn(6, 4), torch.randint(4, (6,))
    loop = LiveLoop(optimizer=torch.optim.AdamW(module.parameters(), lr=0.1))
    live_workload(module, pair, nn.functional.cross_entropy, None, loop, folder)
    data = load(str(folder), {}).dataset()
    contents = np.array([content_of(parts_of(raw_of(data, i))[0]) for i in range(len(data))])
    save_index(folder.with_name("index.npy"), np.array([0, 2, 3, 4, 5]), contents)


def _files(at: Trained, cluster: str = ONE_NODE) -> list[str]:
    return [f"--profile={at.folder / 'costs.yaml'}", f"--cluster={cluster}"]


def _plan(at: Trained, name: str) -> None:
    cluster = str(at.folder / "hosts.yaml") if name == "sums" else ONE_NODE
    words = (word.format(folder=at.folder) for word in PLANS[name])
    _do("plan", *_files(at, cluster), "--batch=4", *words, f"--output={at.plan(name)}", "--force")


def _train(at: Trained, name: str, run: str, *more: str) -> None:
    _do("launch", str(at.plan(name)), "--inline", "--trust", f"--run={at.folder / run}", *more)


def _split(checkpoint: Path) -> None:
    """Splits the tensors of a checkpoint between two parts, as ranks that share parameters write them."""
    from safetensors.torch import load_file, save_file

    index = json.loads((checkpoint / INDEX).read_text())
    parts = ["part-00000.safetensors", "part-00001.safetensors"]
    whole = load_file(checkpoint / parts[0])
    pieces = {name: x for name, x in whole.items() if x.numel() > 1}
    rows: dict[str, dict[str, list[int]]] = {name: {} for name in pieces}
    for number, part in enumerate(parts):
        tensors = {name: x for name, x in whole.items() if name not in pieces and not number}
        for name, x in pieces.items():
            start, stop = x.numel() // 2 * number, x.numel() if number else x.numel() // 2
            tensors[name] = x.reshape(-1)[start:stop].clone()
            rows[name][part] = [start, stop]
        save_file(tensors, checkpoint / part)
        index["sums"][part] = settle(checkpoint / part)
    index["files"] = {name: part for name, part in index["files"].items() if name not in pieces}
    index["pieces"] = {name: {"shape": list(pieces[name].shape), "parts": row} for name, row in rows.items()}
    index["version"] = OF_PIECES
    (checkpoint / INDEX).write_text(json.dumps(index))
    (checkpoint / "index.sum").write_text(settle(checkpoint / INDEX))


def _do(*words: str) -> None:
    found = judged(words)
    assert not found.status, found.output
