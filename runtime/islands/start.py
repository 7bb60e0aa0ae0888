"""Begins a training by islands, or joins one: settles all that decides its numbers, and writes version 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import plan as plans
from planner.errors import BadInput
from planner.files import absolute, read_text, write_whole
from planner.plan import Plan
from planner.workload import Workload
from runtime import runfolder, slurm
from runtime.islands.folder import IslandsAsked, IslandsFolder, IslandsJob
from runtime.runfolder import Job
from runtime.train import Model, job_of, prepare

OWN = ("steps", "shards", "shard", "save_every", "keep", "generation", "deadline_s")  # no wish of a user
REFUSED = {
    "ema": "averages of parameters",
    "eval_every": "evaluations between steps",
    "kept": "pruned weights",
    "copies": "copies of checkpoints",
    "keep_every": "checkpoints that stay",
    "save_every": "checkpoints within a round",
    "script": "a script of one's own",
    "restarts": "restarts, since what fails is taken again",
}


def begin(
    plan: Plan,
    folder: Path | str,
    asked: IslandsAsked,
    *,
    workload: Workload | None = None,
    **settings: Any,
) -> IslandsFolder:
    """Begins a training by islands in a new folder, or joins the one that is there.

    Args: `settings` are fields of Job.
    Raises: BadInput and BadPlan for whatever can be known before the first step, and where the folder is of another
        training.
    """
    found = IslandsFolder(absolute(Path(folder)))
    job = _job(plan, asked, settings)
    own = IslandsJob(
        rounds=asked.rounds,
        inner_steps=asked.inner_steps,
        shards=asked.shards,
        rate=asked.outer.rate,
        momentum=asked.outer.momentum,
        directory=str(Path.cwd()),
    )
    if found.file.exists():
        _check_joined(found, plan, job, own)
        found.paths.cancelled.unlink(missing_ok=True)
        found.longer(asked.rounds)
        return found
    paths, _ = prepare(Model.of(plan, workload), found.root, job, slurm.refuse)
    try:
        _refuse_earlier(found)
        for inner in (found.results, found.work, found.logs):
            inner.mkdir(exist_ok=True)
        found.write(own)
    finally:
        runfolder.release(paths)
    return found


def _refuse_earlier(found: IslandsFolder) -> None:
    """Raises BadInput where a run without islands has trained in the folder."""
    from runtime import checkpoint as checkpoints

    if checkpoints.newest(found.paths.checkpoints) > 0:
        raise BadInput(
            "is the folder of a run without islands",
            where=str(found.root),
            allowed="a new folder, and --weights with this one",
        )


def _job(plan: Plan, asked: IslandsAsked, settings: dict[str, object]) -> Job:
    wanted = {name: value for name, value in settings.items() if name not in ("keep",)}
    for name, what in REFUSED.items():
        if wanted.get(name):
            raise BadInput(f"islands have no {what}", where="--" + name.replace("_", "-"))
    if wanted.get("store") == "ram":
        raise BadInput("islands keep no samples in memory", where="--store", allowed="none")
    wanted |= {"store": "none"}
    return replace(job_of(plan, asked.rounds * asked.inner_steps, wanted), shards=asked.shards)


def _check_joined(found: IslandsFolder, plan: Plan, job: Job, own: IslandsJob) -> None:
    """Raises BadInput where a folder was begun with another plan, or with other words."""
    where, allowed = str(found.root), "the words that it was begun with, or a new folder with --run"
    if read_text(found.paths.plan, max_bytes=2**30) != plans.dump(plan):
        raise BadInput("was begun with another plan", where=where, allowed=allowed)
    before, there = found.read(), runfolder.read(found.paths)
    same = replace(own, rounds=before.rounds, directory=before.directory)
    ours = replace(job, **{name: getattr(there, name) for name in OWN})
    differ = [
        n for a, b in ((same, before), (ours, there)) for n in vars(a) if getattr(a, n) != getattr(b, n)
    ]
    if differ:
        raise BadInput(f"was begun with another {', '.join(differ)}", where=where, allowed=allowed)


def queue_islands(
    plan: Plan,
    folder: Path | str,
    asked: IslandsAsked,
    elements: int,
    options: slurm.Options,
    *,
    test: bool,
    **settings: Any,
) -> str:
    """Queues islands as the elements of an array of SLURM, each on one node.

    Args: with `test` the script is made and nothing is begun; `settings` are fields of Job.
    Returns: the script, or the number of the job.
    Raises: BadInput where the plan needs several nodes, and as `begin` does.
    """
    nodes = {place.node for place in plan.places}
    if len(nodes) > 1:
        raise BadInput(
            f"the plan needs {len(nodes)} nodes, and an island is one element of an array, on one",
            where="--islands",
            allowed="a plan for one node; or --local inside of an allocation of each island",
        )
    root, cuda = absolute(Path(folder)), settings.get("device") == "cuda"
    ranks = len(plan.places)
    text = slurm.array_text(root, elements, str(Path.cwd()), cuda, options, room="islands", devices=ranks)
    if test:
        return text
    begin(plan, root, asked, **settings)
    script = root / "job.sbatch"
    write_whole(script, text)
    return slurm.queue_script(script)
