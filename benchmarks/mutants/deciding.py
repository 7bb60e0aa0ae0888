"""Hostile files of those who decide: each kind writes one and returns the command that reads it."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

from benchmarks.mutants.changes import as_text, changed, changed_text, folded, loaded
from benchmarks.mutants.right import ONE_NODE, PLANS, Seeds, trained
from planner.errors import BadInput
from planner.export import TRAINERS
from planner.profile.yaml import loads


def a_plan(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    path = folder / "plan.yaml"
    path.write_text(as_text(changed(loaded(given.folder / "plan.yaml"), chance), chance))
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
    path.write_text(as_text(changed(loaded(given.folder / "cluster.yaml"), chance), chance))
    verify = ["verify", str(given.folder / "plan.yaml"), f"--cluster={path}"]
    return chance.choice([["show", str(path)], verify, verify, _plan(given, folder, "cluster", path)])


def a_profile(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    path = folder / "profile.yaml"
    path.write_text(_known(as_text(changed(loaded(given.folder / "profile.yaml"), chance), chance)))
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
    path.write_text(as_text(changed(loaded(given.folder / "calibration.yaml"), chance), chance))
    show = ["show", str(path)]
    return chance.choice([show, show, show, _plan(given, folder, "calibration", path)])


def _plan(given: Seeds, folder: Path, option: str, path: Path) -> list[str]:
    files = {name: given.folder / f"{name}.yaml" for name in ("profile", "cluster")} | {option: path}
    words = [f"--{name}={file}" for name, file in files.items()]
    return ["plan", *words, "--batch=8", "--schedule=1f1b", f"--output={folder / 'out.yaml'}", "--force"]


def a_plan_with_sections(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A plan with a cut, kept weights, shares, sums of other names, an average, or samples that were timed."""
    right, path = trained(), folder / "plan.yaml"
    name = chance.choice(sorted(PLANS))
    data = loaded(right.plan(name))
    if chance.random() < 0.3:
        data["data"] = {"sample_ns": 1000, "sample_bytes": 64, "store": chance.choice(["none", "ram"])}
    path.write_text(as_text(changed(data, chance), chance))
    cluster = right.folder / "hosts.yaml" if name == "sums" else Path(ONE_NODE)
    profile = right.folder / "costs.yaml"
    return chance.choice(
        [
            ["verify", str(path)],
            ["verify", str(path), f"--profile={profile}", f"--cluster={cluster}"],
            ["show", str(path), *chance.choice([[], ["--json"], [f"--layouts={profile}"]])],
            ["simulate", str(path), "--force"],
            ["report", str(path), "--force", f"--output={folder / 'x.html'}"],
            ["export", str(path), f"--to={chance.choice(list(TRAINERS))}"],
            ["launch", str(path), "--inline", "--dry-run", "--steps=1", "--trust", f"--run={folder / 'new'}"],
        ]
    )


def a_cluster_with_sums(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A cluster of hosts with cards and sums that were measured."""
    right, path = trained(), folder / "hosts.yaml"
    path.write_text(as_text(changed(loaded(right.folder / "hosts.yaml"), chance), chance))
    words = [f"--profile={right.folder / 'costs.yaml'}", f"--cluster={path}"]
    verify = ["verify", str(right.plan("sums")), *words]
    plan = [
        "plan",
        *words,
        "--batch=4",
        "--schedule=1f1b",
        "--fix=data=4",
        f"--output={folder / 'out'}",
        "--force",
    ]
    return chance.choice([["show", str(path)], verify, verify, plan])


def a_cut(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A file of a layout that somebody has chosen, for `plan --fix cut=`."""
    right, path = trained(), folder / "cut.yaml"
    path.write_text(as_text(changed(loaded(right.folder / "cuts.yaml"), chance), chance))
    files = [f"--profile={right.folder / 'costs.yaml'}", f"--cluster={ONE_NODE}"]
    words = ["--batch=4", "--schedule=1f1b", f"--fix=cut={path}", f"--output={folder / 'out'}", "--force"]
    return ["plan", *files, *words]


def a_profile_of_operations(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A profile whose operations are read, by those who choose layouts, price a cut, or show one."""
    right, path = trained(), folder / "profile.yaml"
    path.write_text(_known(as_text(folded(loaded(right.folder / "costs.yaml"), chance), chance)))
    one = [f"--cluster={ONE_NODE}"]
    priced = [
        "plan",
        f"--profile={path}",
        *one,
        "--batch=4",
        "--schedule=1f1b",
        "--fix=group=2",
        "--fix=cut=0:out,2:in",
    ]
    return chance.choice(
        [
            ["layouts", str(path), *one, "--group=2", "--axes=1", f"--output={folder / 'cuts'}", "--force"],
            [*priced, f"--output={folder / 'out'}", "--force"],
            ["show", str(right.plan("cut")), f"--layouts={path}"],
            ["verify", str(right.plan("cut")), f"--profile={path}", *one],
        ]
    )


LOGS = {
    "events": "seconds,node,idle\n0,a,1\n0,b,0\n10,b,1\n20,a,0\n30,b,0\n40,a,0\n",
    "sacct": "JobID|Start|End|NodeList\n1|2026-01-01T00:00:00|2026-01-01T00:01:40|n[1-2]\n"
    "2|2026-01-01T00:00:00|2026-01-01T00:00:50|n3\n3|2026-01-01T00:03:20|Unknown|n3\n",
    "swf": "; MaxProcs: 8\n1 0 0 100 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1\n"
    "2 50 10 40 8 -1 -1 8 -1 -1 1 1 1 1 1 1 -1 -1\n",
}
CURVE = "nodes,samples_per_s\n1,10.5\n2,20\n4,35\n"


def a_log_of_a_site(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """A log of idle nodes, or the jobs that are to use them."""
    log, jobs = folder / "log.txt", folder / "jobs"
    shutil.rmtree(jobs, ignore_errors=True)
    kind = chance.choice(sorted(LOGS))
    log.write_text(LOGS[kind])
    shutil.copytree(trained().folder / "jobs", jobs)
    way = chance.randrange(4)
    if way < 2:
        log.write_bytes(changed_text(LOGS[kind], chance).encode("utf-8", "surrogatepass"))
    elif way == 2:
        plan = chance.choice(sorted(jobs.glob("*.yaml")))
        plan.write_text(as_text(changed(loaded(plan), chance), chance))
    else:
        shutil.rmtree(jobs)
        jobs.mkdir()
        (jobs / "curve.csv").write_text(changed_text(CURVE, chance))
    more = chance.choice([[], [f"--format={kind}"], ["--nodes=2"], ["--processors=2"], ["--unit=samples"]])
    return ["scavenge", "replay", str(log), f"--jobs={jobs}", "--at-once=2", *more]


SETTINGS = {
    "flags": "--micro-batch-size 2 --global-batch-size 8 --pipeline-model-parallel-size 2 --num-layers 4 --recompute-granularity full",
    "deepspeed": '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, '
    '"pipeline": {"stages": 2}, "bf16": {"enabled": true}}',
    "accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: "
    "FULL_SHARD\nnum_machines: 1\nnum_processes: 8\nmixed_precision: bf16\n",
    "torchtitan": "[training]\nlocal_batch_size = 2\nglobal_batch_size = 8\n[parallelism]\n"
    'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "1F1B"\ndata_parallel_shard_degree = 2\n',
    "fsdp2": "DP_SHARD = 2\nDP_REPLICATE = 1\nMICRO = 2\nBATCH = 8\n",
    "torchrun": "torchrun --nnodes 1 --nproc_per_node 4 train.py --batch-size 8",
}


def a_baseline(given: Seeds, folder: Path, chance: random.Random) -> list[str]:
    """Settings of another trainer, to be priced beside a plan."""
    right, path = trained(), folder / "theirs"
    name = chance.choice(sorted(SETTINGS))
    path.write_bytes(changed_text(SETTINGS[name], chance).encode("utf-8", "surrogatepass"))
    files = [f"--profile={right.folder / 'costs.yaml'}", f"--cluster={ONE_NODE}"]
    words = ["--batch=8", "--schedule=1f1b", f"--baseline={path}", f"--output={folder / 'out'}", "--force"]
    return ["plan", *files, *words]
