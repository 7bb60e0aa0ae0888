"""The masks of a run: checked before anything starts, and written into its folder, from where its ranks read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from planner.capture import Captured
from planner.errors import BadInput, BadPlan
from planner.kept import Masks, dump, load_masks
from planner.model import ModelGraph
from planner.plan import Plan
from planner.workload import Workload
from runtime.kept.flat import refuse_other
from runtime.kept.trial import refuse_mixing
from runtime.runfolder import Job, Paths


def masks_of(plan: Plan, graph: ModelGraph, job: Job, paths: Paths) -> Masks | None:
    """Returns the masks of a run, under the model's own names; None where nothing is pruned.

    Args: `job` names a file where the run folder has none yet. A dense plan goes on from a pruned run without masks.
    Raises: BadInput where the file has no masks of this model, BadPlan where the plan is for others.
    """
    file = Path(job.kept) if job.kept else None
    if plan.kept is not None and paths.kept.exists():
        file = paths.kept
    masks = None if file is None else load_masks(file).fitted(graph, str(file))
    refuse_other(plan, graph, masks)
    return masks if masks is not None and masks.indices else None


def check_kept(plan: Plan, graph: ModelGraph, job: Job, paths: Paths, workload: Workload) -> None:
    """Checks whether a model can be trained pruned as the plan and the job have it.

    Raises: BadInput or BadPlan where the masks, the optimizer or the job do not go with it.
    """
    if job.kept and paths.kept.exists():
        given, there = load_masks(Path(job.kept)).fitted(graph, job.kept), load_masks(paths.kept)
        if given.digest != there.digest:
            allowed = f"{paths.kept}, or a new folder with --run"
            raise BadInput("the run was begun with other masks", where=job.kept, allowed=allowed)
    masks = masks_of(plan, graph, job, paths)
    if masks is None:
        return
    if job.ema is not None:
        raise BadInput(
            "ema averages whole parameters, and these are pruned",
            where="launch",
            allowed="no ema, or a dense plan",
        )
    refuse_mixing(workload.optimizer, graph, masks.counts, workload.where)


def check_halved(plan: Plan, captured: Captured) -> None:
    """Refuses weights in bf16 where the model says itself what runs in which precision.

    Raises: BadPlan where an operation runs under an autocast of the model's own.
    """
    if plan.weights == "same":
        return
    nodes = captured.layout.traced.graph.nodes
    if any(part[0] == "autocast" for node in nodes for part in node.meta.get("context", ())):
        raise BadPlan(
            "the model switches autocast itself, so its weights may be read in fp32: plan without weights=bf16"
        )


def keep_masks(plan: Plan, graph: ModelGraph, job: Job, paths: Paths) -> Masks | None:
    """Writes the masks of a run into its folder.

    Returns: the masks; None where nothing is pruned.
    """
    masks = masks_of(plan, graph, job, paths)
    if masks is not None and not paths.kept.exists():
        dump(masks, paths.kept)
    return masks


def pruned(tensors: Mapping[str, Tensor], masks: Masks | None) -> dict[str, Tensor]:
    """Returns the tensors of a model with zeros in the place of pruned entries.

    Args: `masks` name tensors, which are copied.
    """
    found = dict(tensors)
    for name, index in (masks.indices if masks is not None else {}).items():
        whole = torch.zeros_like(found[name], memory_format=torch.contiguous_format)
        kept = torch.from_numpy(index.astype(np.int64))
        whole.view(-1).index_copy_(0, kept, found[name].reshape(-1).index_select(0, kept))
        found[name] = whole
    return found
