"""What an update costs an element of the parameters, by running the workload's own optimizer on stand-ins.

A stand-in has its parameter's name and rank, since optimizers group by them, and its shape up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from planner.devices import Device
from planner.errors import BadInput
from planner.measure_bytes import meter_of
from planner.measure_timing import Clock, spread_of
from planner.measure_work import Counter
from planner.model import ModelGraph, Parameter
from planner.profile import OptimizerCost, Seconds
from planner.workload import Workload

TIMED_ELEMENTS = 8 * 2**20  # beyond the caches, as the real ones are
COUNTED_ELEMENTS = 2**16
WARM_UP_STEPS, TIMED_STEPS = 1, 9


def measured_optimizer(workload: Workload, graph: ModelGraph, device: str, clock: Clock) -> OptimizerCost:
    optimizer, elements = _stand_in(workload, graph, TIMED_ELEMENTS, device)
    _step(workload, optimizer)
    samples = [clock.time(optimizer.step)[0] for _ in range(WARM_UP_STEPS + TIMED_STEPS)]
    whole = spread_of(samples[WARM_UP_STEPS:])
    each = Seconds(median=whole.median / elements, spread=whole.spread / elements)
    return _cost(optimizer, elements, each)


def roofline_optimizer(workload: Workload, graph: ModelGraph, device: Device) -> OptimizerCost:
    """From the bytes that the update moves; many parameters share a launch, so launches are left out."""
    optimizer, elements = _stand_in(workload, graph, COUNTED_ELEMENTS, "cpu")
    _step(workload, optimizer)
    with Counter() as counter:
        optimizer.step()
    traffic = sum(work.traffic_bytes for work in counter.work)
    if device.name != "cpu":
        _as_on_a_gpu(optimizer)
    return _cost(optimizer, elements, Seconds(median=traffic / elements / device.memory_bytes_per_s))


def _step(workload: Workload, optimizer: torch.optim.Optimizer) -> None:
    """The first step, which makes the state."""
    try:
        optimizer.step()
    except Exception as error:
        name = type(optimizer).__name__
        raise BadInput(
            f"step() of {name} raised {type(error).__name__}: {error}",
            where=workload.where,
            allowed="an optimizer that steps from the gradients alone",
        ) from error


def _as_on_a_gpu(optimizer: torch.optim.Optimizer) -> None:
    """There torch updates all parameters at once unless told otherwise, which takes more memory."""
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def _stand_in(
    workload: Workload, graph: ModelGraph, elements: int, device: str
) -> tuple[torch.optim.Optimizer, int]:
    limit = _limit(graph.parameters, elements)
    stand_ins = [(row.name, _like(row, limit, device)) for row in graph.parameters]
    trained = sum(x.numel() for _, x in stand_ins if x.requires_grad)
    if not trained:
        one = nn.Parameter(torch.ones(1, device=device))  # nothing is trained: any optimizer costs nothing
        return torch.optim.SGD([one]), 1
    return workload.optimizer(iter(stand_ins)), trained


def _limit(parameters: Sequence[Parameter], elements: int) -> int:
    """The largest power of two to which sizes may be cut so that all stand-ins together stay below `elements`."""
    limit = 2**16
    while limit > 1 and sum(math.prod(_cut(row, limit)) for row in parameters) > elements:
        limit //= 2
    return limit


def _cut(row: Parameter, limit: int) -> list[int]:
    return [min(size, limit) for size in row.shape]


def _like(row: Parameter, limit: int, device: str) -> nn.Parameter:
    tensor = torch.full(_cut(row, limit), 0.1, dtype=getattr(torch, row.dtype), device=device)
    stand_in = nn.Parameter(tensor, requires_grad=row.trainable)
    if row.trainable:
        stand_in.grad = torch.full_like(tensor, 0.01)
    return stand_in


def _cost(optimizer: torch.optim.Optimizer, elements: int, seconds: Seconds) -> OptimizerCost:
    tensors = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    state_bytes = sum(x.nbytes for x in tensors if x.ndim)  # counters of steps are single numbers
    largest, others = _transient(optimizer)
    return OptimizerCost(
        name=type(optimizer).__name__.lower(),
        state_bytes_per_parameter=state_bytes / elements,
        seconds_per_parameter=seconds,
        largest_bytes_per_parameter=largest,
        other_bytes_per_parameter=others,
    )


def _transient(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """What an update makes and frees again, an element of the largest parameter and of the others."""
    trained = [x for group in optimizer.param_groups for x in group["params"] if x.grad is not None]
    if not trained:
        return 0.0, 0.0
    whole = _peak(optimizer, trained[0].device)
    largest = max(trained, key=torch.Tensor.numel)
    gradients = [x.grad for x in trained]
    for x in trained:
        x.grad = x.grad if x is largest else None
    alone = _peak(optimizer, largest.device)
    for x, gradient in zip(trained, gradients, strict=True):
        x.grad = gradient
    rest = sum(x.numel() for x in trained) - largest.numel()
    return alone / largest.numel(), max(0, whole - alone) / rest if rest else 0.0


def _peak(optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    with meter_of(device) as live:
        before = live.now
        optimizer.step()
        return live.peak - before
