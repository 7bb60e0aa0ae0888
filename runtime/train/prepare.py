"""Prepares the run folder, and checks before any rank starts everything that can be known beforehand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from planner import files
from planner import plan as plans
from planner import workload as workloads
from planner.capture import Captured, capture, initial
from planner.errors import BadInput, BadPlan
from planner.kept import Masks
from planner.plan import (
    Plan,
    awaited_ns,
    cards_of,
    is_cut,
    refused,
    schedule_of,
    shared_by_element,
    told_sums,
    with_store,
)
from planner.program import violations
from planner.schedule import check_schedule
from planner.shown import printable
from planner.workload import Workload, check_optimizer, whole_optimizer
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime import update as updates
from runtime.checkpoint import Checkpoint, Copies, Facts, Keeping
from runtime.dedup import keeping
from runtime.execute import program_of
from runtime.kept import check_halved, check_kept, keep_masks, pruned
from runtime.loop import check_averages, described, try_evaluation, try_samples
from runtime.messages import in_order_of
from runtime.rank import check_supported
from runtime.runfolder import Job, Paths, check, keep_room, write_whole
from runtime.world import alone, check_cards

Refuse = Callable[[Paths], None]  # raises BadInput where somebody else uses the folder of a run
START_DEADLINE_S = 60.0
COMPILE_DEADLINE_S = 600.0  # the first forward of a stage compiles it
MOST_CHECKED_ACTIONS = 3_000  # about 10,000 instructions; more are not checked, which would take seconds
MOST_INDEX_BYTES = 2**33  # of 500 million samples
STEPS_A_DEADLINE = 50  # a rank that makes no progress for the time of so many simulated steps hangs


def job_of(plan: Plan, steps: int, settings: dict[str, object]) -> Job:
    """Returns the settings of a run, with a deadline that fits its plan.

    Args: `settings` are fields of Job, given by name.
    Raises: BadInput for an unknown field or a value that is not allowed.
    """
    known = set(Job.__dataclass_fields__) - {"steps"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise BadInput(f"no setting '{unknown[0]}'", where="launch", allowed=", ".join(sorted(known)))
    if settings.get("data_workers") == "auto":
        settings = settings | {"data_workers": None}
    if plan.data is not None and plan.data.store == "ram":
        settings = {"store": "ram", **settings}
    settings = {name: str(x) if isinstance(x, Path) else x for name, x in settings.items()}
    job = replace(Job(steps=steps), **settings)  # type: ignore[arg-type]
    if "deadline_s" not in settings:
        first = COMPILE_DEADLINE_S if plan.execution == "compiled" else START_DEADLINE_S
        awaited_s = awaited_ns(with_store(plan, job.store), 0) * 1e-9
        job = replace(job, deadline_s=max(first, STEPS_A_DEADLINE * awaited_s))
    return check(job)


def prepare(
    model: Model,
    folder: Path,
    job: Job,
    refuse: Refuse = lambda _: None,
    warn: Callable[[str], None] | None = None,
) -> tuple[Paths, Job]:
    """Prepares the folder of a run with all that its ranks read. Nothing more can be wrong with the plan
    afterwards.

    A new folder gets checkpoint 0. One that holds checkpoints is resumed from the last sound one.
    Args: `refuse` raises BadInput where somebody else uses the folder; `warn` is told why samples cannot be read here,
        where ranks run on other machines. Without it that is an error.
    Returns: the files of the run, and the job as ranks will read it; this thread holds the folder.
    Raises: BadPlan or BadInput; a new folder is then removed again.
    """
    model = replace(model, workload=keeping(model.workload, job.samples))
    check_supported(model.plan, model.captured)
    updates.check(model.plan, job.limit, job.clip_by)
    if job.eval_every and "valid_dataset" not in model.workload.functions:
        raise BadInput(
            "eval_every needs a dataset to evaluate", where=model.workload.where, allowed="valid_dataset()"
        )
    check_kept(model.plan, model.captured.graph, job, Paths(folder), model.workload)
    check_halved(model.plan, model.captured)
    check_averages(model.plan, model.captured, job)
    joint = check_optimizer(model.workload, model.captured.graph)
    parted = shared_by_element(model.plan) or is_cut(model.plan)
    whole = whole_optimizer(model.workload, model.captured.graph) if parted else ""
    for found in refused(model.plan, model.captured.graph, joint, whole):
        raise BadPlan(str(found))
    check_sums(model.plan, job, here=warn is None)
    _check_program(model.plan, job)
    if not job.script:
        try_evaluation(model.plan, model.captured, job)
        _try_samples(model, job, warn)
    copies = checkpoints.Copies(job.copies) if job.copies else None
    with runfolder.claimed(folder, refuse) as paths:
        if paths.islands.exists():
            allowed = "--islands, or a new folder with --run"
            raise BadInput("is a folder that islands share", where=str(folder), allowed=allowed)
        checkpoints.remove_partial(paths.checkpoints)
        if copies is not None:
            copies.check()
            _fetch(copies, paths)
        if checkpoints.complete(paths.checkpoints):
            checkpoints.last_sound(paths.checkpoints, lambda what: print(printable(what), file=sys.stderr))
        begin = checkpoints.latest(paths.checkpoints)
        masks = keep_masks(model.plan, model.captured.graph, job, paths)
        if begin is None:
            write_start(paths, model, job, masks)
        else:
            _check_resumed(begin, model, job)
        return paths, _write_folder(model.plan, paths, job)


def check_sums(plan: Plan, job: Job, *, here: bool) -> None:
    """Raises where the sums that a plan names cannot be had: between GPUs, or over a card that is not there.

    Args: `here` is whether the ranks run on this machine.
    """
    if plan.sums is not None and job.device == "cuda":
        raise BadPlan(f"sums: {told_sums(plan)} is of hosts; nccl sums between GPUs: plan without it")
    if here:
        check_cards(cards_of(plan))


def _try_samples(model: Model, job: Job, warn: Callable[[str], None] | None) -> None:
    try:
        said = try_samples(model.plan, model.workload, model.captured, job)
    except BadInput as error:
        if warn is None:
            raise
        said = f"samples cannot be tried on this machine: {error}"
    if said:
        (warn or (lambda what: print(printable(what), file=sys.stderr)))(said)


def _fetch(copies: Copies, paths: Paths) -> None:
    """Brings back the newest copy where it is later than the checkpoints of the run folder, which may be new."""
    found = copies.fetch(paths.checkpoints, checkpoints.newest(paths.checkpoints))
    if found is not None:
        print(f"checkpoint {found.name} was fetched from {printable(copies.url)}", file=sys.stderr)


def kept(job: Job) -> Keeping:
    """Returns which checkpoints of a run stay, and where copies go."""
    copies = checkpoints.Copies(job.copies) if job.copies else None
    return Keeping(last=job.keep, every=job.keep_every, copies=copies)


def prepare_folder(plan: Plan, folder: Path, job: Job, refuse: Refuse = lambda _: None) -> tuple[Paths, Job]:
    """Prepares the folder of a run that has no model and no checkpoints, such as one whose stages sleep.

    Args: `refuse` raises BadInput where somebody else uses the folder.
    Returns: the files of the run, and the job as ranks will read it.
    Raises: BadPlan where the ranks of the plan would wait for each other for ever.
    """
    _check_program(plan, job)
    with runfolder.claimed(folder, refuse) as paths:
        return paths, _write_folder(plan, paths, job)


def _check_program(plan: Plan, job: Job) -> None:
    """Raises BadPlan where an order of the plan contradicts itself, or its ranks would deadlock.

    Orders may have been edited by hand. A large program is not checked here; its ranks then stop at their deadline.
    """
    schedule = schedule_of(plan)
    if sum(map(len, schedule.orders)) > MOST_CHECKED_ACTIONS:
        return
    check_schedule(schedule, plan.hops, barrier=plan.schedule.update == "barrier")
    program = program_of(plan, alone(torch.device(job.device)))
    faults = violations(program, schedule, streams="global" if job.device == "cuda" else "channel")
    if faults:
        raise BadPlan("\n".join(fault.picture(schedule) for fault in faults))


def _write_folder(plan: Plan, paths: Paths, job: Job) -> Job:
    write_whole(paths.plan, plans.dump(plan))
    keep_room(paths, len(plan.places))
    job = replace(job, generation=_next_generation(paths))
    if job.samples:
        files.write_whole(paths.samples, files.read_bytes(Path(job.samples), max_bytes=MOST_INDEX_BYTES))
        job = replace(job, samples=str(paths.samples.absolute()))
    job.write(paths)
    for old in (paths.outcome, paths.cancelled, *paths.causes()):
        old.unlink(missing_ok=True)
    return job


def write_start(paths: Paths, model: Model, job: Job, masks: Masks | None = None) -> Checkpoint:
    """Writes checkpoint 0 and returns it.

    Args: parameters come from `build()` under the seed of `job`, or from its `weights`; `masks` keep some entries.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        tensors = initial(model.captured, model.workload)
    before = checkpoints.of_run(Path(job.weights)) if job.weights else None
    if before is not None:
        _check_model(before, model.captured)
        tensors |= before.parameters(tensors)
    elif job.weights:
        tensors |= checkpoints.read(Path(job.weights), model.captured)
    facts = Facts(
        step=0,
        sample=0,
        seed=job.seed,
        fingerprint=model.captured.graph.fingerprint,
        training=described(model.plan, model.workload, model.captured, job),
    )
    names, tensors = model.captured.saved, pruned(tensors, masks)
    return checkpoints.write_initial(paths.checkpoints, tensors, facts, names, before)


def _check_resumed(begin: Checkpoint, model: Model, job: Job) -> None:
    _check_model(begin, model.captured)
    if "ema" in begin.facts.extra and job.ema is None:
        decay = begin.facts.extra["ema"]
        raise BadInput(
            "the run keeps averages of its parameters", where=str(begin.folder), allowed=f"ema {decay:g}"
        )
    if begin.facts.seed != job.seed:
        raise BadInput(
            f"seed {job.seed}", where=str(begin.folder), allowed=f"{begin.facts.seed}, as it began"
        )
    now = described(model.plan, model.workload, model.captured, job)
    for what, before in begin.facts.training.items():
        if now.get(what, before) != before:
            told = f": {now[what]} instead of {before}" if what != "samples" else " than those it began with"
            raise BadInput(
                f"another training has begun here, with other {what}{told}",
                where=str(begin.folder),
                allowed="the same training, or a new folder with --run",
            )


def _check_model(begin: Checkpoint, captured: Captured) -> None:
    """Raises BadInput where a checkpoint is of another model, or its tensors have other shapes."""
    graph, where = captured.graph, str(begin.folder)
    if begin.facts.fingerprint != graph.fingerprint:
        raise BadInput("the checkpoint is of another model", where=where)
    wanted = {row.name: tuple(row.shape) for row in graph.parameters}
    wanted |= {row.name: tuple(row.shape) for row in graph.buffers}
    for name, shape in begin.shapes(wanted).items():
        if shape != wanted[name]:
            raise BadInput(f"'{name}' is {shape}", where=where, allowed=f"{wanted[name]}")


def _next_generation(paths: Paths) -> int:
    """Returns the number of the next start of a run.

    Ranks mostly remove the file at which they met, so the job of the last start counts as well.
    """
    ends = (path.name.rpartition("-")[2] for path in paths.root.glob("rendezvous-*"))
    met = (int(end) for end in ends if end.isdecimal())
    told = [runfolder.read(paths).generation] if paths.job.exists() else []
    return 1 + max((*met, *told), default=-1)


@dataclass(frozen=True)
class Model:
    """A plan with its workload and captured graph. Ranks of one host share it by being forked."""

    plan: Plan
    workload: Workload
    captured: Captured

    @classmethod
    def of(cls, plan: Plan, workload: Workload | None = None) -> Model:
        """Returns a plan with its workload, captured for the micro-batches of the plan.

        Args: `workload` is loaded by its name in the plan where it is not given.
        """
        workload = workload or workload_of(plan)
        captured = capture(workload, micro=plan.batch.micro)
        return cls(plan, workload, in_order_of(plan, captured))


def workload_of(plan: Plan) -> Workload:
    """Returns the workload that a plan names, with the settings that the plan has."""
    settings = {name: str(value) for name, value in plan.model.arguments.items()}
    return workloads.load(plan.model.workload, settings)
