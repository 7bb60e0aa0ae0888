"""The captured graph in one process with the same micro-batches: a plain loop that shares no code with the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.capture import Captured, StageModule
from planner.capture.stage_modules import whole
from planner.kept import Masks
from planner.workload import Workload
from runtime.data.stream import mix


@dataclass
class Reference:
    losses: list[float] = field(default_factory=list)
    grads: dict[str, Tensor] = field(default_factory=dict)  # of step 1
    after: list[dict[str, Tensor]] = field(default_factory=list)  # parameters and buffers after each step


def batch_of(workload: Workload, seed: int, first: int, count: int) -> tuple[object, object]:
    """Samples `first` to `first + count` of the synthetic stream, one by one."""
    samples = []
    for index in range(first, first + count):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed, index))
            samples.append(workload.batch(1))
    leaves, spec = zip(*(torch.utils._pytree.tree_flatten(sample) for sample in samples), strict=True)
    joined = [
        torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0] for parts in zip(*leaves, strict=True)
    ]
    inputs, targets = torch.utils._pytree.tree_unflatten(joined, spec[0])
    return inputs, targets


def _pruned(parameter: Tensor, index: NDArray[np.int32]) -> Tensor:
    found = torch.ones(parameter.numel(), dtype=torch.bool)
    found[torch.from_numpy(index).long()] = False
    return found.view(parameter.shape)


def train(
    workload: Workload,
    captured: Captured,
    tensors: dict[str, Tensor],
    *,
    micro: int,
    micros: int,
    steps: int,
    seed: int = 0,
    clip_norm: float | None = None,
    clip_by: str = "step",
    before: Callable[[StageModule, int, int], None] | None = None,
    masks: Masks | None = None,
) -> Reference:
    """With masks, pruned entries begin at zero, and their gradients are zero."""
    module = whole(captured)
    module.materialise(tensors)
    parameters = dict(module.named_parameters())
    pruned = {
        name: _pruned(parameters[name], index) for name, index in (masks.indices if masks else {}).items()
    }
    for name, where in pruned.items():
        parameters[name].data[where] = 0.0
    optimizer = workload.optimizer([(n, p) for n, p in parameters.items() if p.requires_grad])
    schedule = workload.lr_schedule(optimizer)
    found = Reference()
    previous: Tensor | None = None  # norm of the step before
    for step in range(steps):
        optimizer.zero_grad()
        rows = []
        for m in range(micros):
            if before is not None:
                before(module, step + 1, m)
            first = (step * micros + m) * micro
            values = captured.batch_values(*batch_of(workload, seed, first, micro))
            made = module(values)
            rows.append([float(made[name].detach()) for name in sorted(made) if name.startswith("loss:")])
            if captured.graph.loss_kind == "mean":
                (made["loss:0"] / micros).backward()
            else:
                made["loss:0"].backward()
        if captured.graph.loss_kind == "sum_count":
            for parameter in parameters.values():
                if parameter.grad is not None:
                    parameter.grad /= sum(row[1] for row in rows)
        for name, where in pruned.items():
            gradient = parameters[name].grad
            if gradient is not None:
                gradient[where] = 0.0
        found.losses.append(
            sum(r[0] for r in rows) / (sum(r[1] for r in rows) if len(rows[0]) > 1 else micros)
        )
        if clip_norm is not None and clip_by == "previous":
            trained = [p for p in parameters.values() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
            if previous is not None:
                torch.nn.utils.clip_grads_with_norm_(trained, clip_norm, previous)
            previous = norm
        elif clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([p for p in parameters.values() if p.grad is not None], clip_norm)
        if step == 0:
            found.grads = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
        optimizer.step()
        if schedule is not None:
            schedule.step()
        state = {**parameters, **dict(module.named_buffers())}
        found.after.append({name: tensor.detach().clone() for name, tensor in state.items()})
    return found
