"""Looks at what is the user's own in a training before any rank starts: samples, evaluation, optimizer.

Each is tried as ranks will, and described in a few words, so that another training is told from the one that began.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from math import prod

import numpy as np
import torch
from torch.utils import _pytree as pytree

from planner.capture import Captured, evaluation_of, with_names
from planner.errors import BadInput, BadPlan
from planner.plan import BY_ELEMENT, Plan, graph_on_group, is_cut, schedule_of, shard_of, updaters
from planner.workload import Workload, seeded
from runtime.data import Batches, Wanted
from runtime.dedup import index_digest
from runtime.layout import graph_of_others, largest_parts
from runtime.loop.evaluate import Watch, unserved
from runtime.runfolder import Job
from runtime.store import refuse_unstorable


def try_samples(plan: Plan, workload: Workload, captured: Captured, job: Job) -> str:
    """Draws the first micro-batch of a training, and of what it evaluates, as ranks will.

    Returns: words about a dataset that is shorter than a step; empty for any other.
    Raises: BadInput with the user's line, where a dataset cannot be opened, or its samples make no batch for the model.
    """
    if job.store == "ram":
        refuse_unstorable(workload.dataset())
    batches = _opened(plan, workload, captured, job)
    if not batches.by_region:  # such a sample may be larger than the memory of this machine
        next(batches.steps(0))
    if job.eval_every:
        evaluated = _opened(plan, workload, captured, job, workload.valid_dataset())
        if not evaluated.by_region:
            next(evaluated.once())
        _try_rest(plan, captured, (evaluated.stream.length or 0) % plan.batch.micro)
    samples, length = plan.batch.samples, batches.stream.length
    if length is None or samples <= batches.stream.epoch_samples:
        return ""
    return f"dataset() has {length} samples and a step takes {samples}, so that a step has some of them twice"


def _opened(
    plan: Plan, workload: Workload, captured: Captured, job: Job, evaluated: object | None = None
) -> Batches:
    wanted = Wanted(
        micros=(0,),
        first=0,
        micro=plan.batch.micro,
        step_samples=plan.batch.samples,
        values=frozenset(value.name for value in captured.graph.values if value.role != "hidden"),
    )
    return Batches(
        workload,
        wanted,
        captured.batch_values,
        seed=job.seed,
        graph=captured.graph,
        drop_last=job.drop_last,
        evaluated=evaluated,
    )


def _try_rest(plan: Plan, captured: Captured, rest: int) -> None:
    """Raises BadInput where the last samples of what is evaluated make no micro-batch that the model serves."""
    if not rest:
        return
    try:
        if not captured.graph.serves(rest) and not (rest == 1 and captured.graph.symbolic_batch):
            raise BadInput(f"the model serves no micro-batch of {rest}")
        _evaluated(plan, captured, rest)
    except BadInput as error:
        raise unserved(plan, rest, error) from error


def try_evaluation(plan: Plan, captured: Captured, job: Job) -> None:
    """Captures the model as it is evaluated, where it will be.

    Raises: BadInput where that fails, or what tells the best evaluation is none of its values; BadPlan where ranks
        have other parts of parameters than it needs.
    """
    if job.eval_every:
        names = _evaluated(plan, captured, plan.batch.micro).metrics
        Watch.of(job.best_by, job.patience).check(("loss", *names))


def _evaluated(plan: Plan, captured: Captured, micro: int) -> Captured:
    """Returns the model as it is evaluated, tried on the parts of tensors that the plan's ranks have.

    Raises: BadInput or BadPlan where it cannot be evaluated so.
    """
    found = evaluation_of(captured, micro)
    if is_cut(plan):
        trained = graph_on_group(plan, with_names(captured.graph, captured.layout))
        graph_of_others(plan, trained, micro, with_names(found.graph, found.layout))
    return found


def check_averages(plan: Plan, captured: Captured, job: Job) -> None:
    """Raises BadPlan where the averages of parameters do not fit beside what a plan predicts."""
    if job.ema is None or plan.ema:
        return
    sizes, place = _average_bytes(plan, captured), schedule_of(plan).place
    for worker, memory in enumerate(plan.prediction.memory):
        averages = sum(sizes[s] for row in place for s, holder in enumerate(row) if holder == worker)
        if memory.total + averages > memory.limit > 0:
            raise BadPlan(
                f"worker {worker} is predicted to hold {memory.total} of {memory.limit} bytes, and ema adds "
                f"{averages}; plan with `--fix ema=true`, or train without ema"
            )


def _average_bytes(plan: Plan, captured: Captured) -> list[int]:
    """Returns the bytes of averages of each stage on one rank: of all trained parameters, or of its parts of them."""
    graph = captured.graph
    named = with_names(graph, captured.layout)
    cut = largest_parts(graph_on_group(plan, named)) if is_cut(plan) else {}
    own = {p.name: p.bytes * cut.get(p.name, prod(p.shape)) // max(1, prod(p.shape)) for p in graph.trained}
    found = []
    for index, stage in enumerate(plan.stages):
        names = {name for layer in stage.layers for name in graph.layer[layer].parameters}
        shard = shard_of(plan, index)
        ranks = updaters(plan, index) if shard is not None and shard.what in BY_ELEMENT else 1
        found.append(-(-sum(own[name] for name in names & own.keys()) // ranks))
    return found


def described(plan: Plan, workload: Workload, captured: Captured, job: Job) -> dict[str, str]:
    """Returns what makes a training another one beside its model and seed, each thing in a few words.

    What cannot be told here, such as samples that lie on the nodes alone, is left out.
    """
    found = {
        "settings": json.dumps(dict(sorted(plan.model.arguments.items()))),
        "samples a step": str(plan.batch.samples),
        "limit of gradients": f"{job.clip_norm} by {job.clip_by}",
        "precision": plan.precision,
        "index of samples": index_digest(job.samples),
        **({"shard": f"{job.shard} of {job.shards}"} if job.shards > 1 else {}),
    }
    with suppress(Exception):  # whatever user code raises
        found |= _rates(workload, captured)
    if workload.folder is None:
        with suppress(Exception):
            found["samples"] = _samples(workload, job.seed)
    return found


def _rates(workload: Workload, captured: Captured) -> dict[str, str]:
    """Returns the optimizer and the schedule of its rate, with their settings."""
    rows = [row for row in captured.graph.parameters if row.trainable]
    named = [(r.name, torch.nn.Parameter(torch.empty(r.shape, device="meta"))) for r in rows]
    optimizer = workload.optimizer(iter(named))
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups[:8]]
    schedule = workload.lr_schedule(optimizer)
    found = {"optimizer": f"{type(optimizer).__name__} {json.dumps(groups, default=_kind, sort_keys=True)}"}
    if schedule is not None:
        state = json.dumps(schedule.state_dict(), default=_kind, sort_keys=True)
        found["schedule of the rate"] = f"{type(schedule).__name__} {state}"
    return found


def _samples(workload: Workload, seed: int) -> str:
    """Returns the number of samples, and a digest of the first one where it is read whole."""
    data, digest = workload.dataset(), hashlib.sha256()
    with seeded(seed):
        if data is None:
            first: object = workload.batch(1)
        else:
            digest.update(str(len(data)).encode())  # type: ignore[arg-type]
            first = None if getattr(data, "regions", False) is True else data[0]  # type: ignore[index]
    for leaf in pytree.tree_leaves(first):
        if isinstance(leaf, torch.Tensor | np.ndarray):
            whole = torch.as_tensor(leaf).detach().cpu().contiguous()
            digest.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
            digest.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, str | int | float | bool):
            digest.update(repr(leaf).encode())
    return digest.hexdigest()[:16]


def _kind(value: object) -> object:
    return value.tolist() if isinstance(value, torch.Tensor) else type(value).__name__
