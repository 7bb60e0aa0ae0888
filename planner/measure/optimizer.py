"""Measures what an update costs an element of the parameters, by running the workload's own optimizer on stand-ins.

A stand-in has its parameter's name and rank, because optimizers group by these, and its shape up to a limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from planner.capture import meter_of
from planner.cluster import Device
from planner.errors import BadInput
from planner.measure.passes import Clock
from planner.measure.rows import Counter
from planner.measure.timing import spread_of
from planner.model import ModelGraph, Parameter
from planner.profile import OptimizerCost, Seconds
from planner.workload import Workload, check_resumed, joint_optimizer, whole_optimizer

TIMED_ELEMENTS = 8 * 2**20  # beyond the caches, as the real ones are
GPU_ELEMENTS = 256 * 2**20  # where what a tensor takes by itself must not count for more than it does
COUNTED_ELEMENTS = 2**16
WARM_UP_STEPS, TIMED_STEPS = 1, 9
MOVED_ELEMENTS, KEPT_EVERY = 4 * 2**20, 10  # of a weight that is pruned, beyond the caches
SECTOR_BYTES = 32  # that a device moves for one entry apart from others
GATHERED_BYTES = (
    4 + SECTOR_BYTES + 4 + 12
)  # an index, an entry of the dense gradient, a copy of it, and a sum
SCATTERED_BYTES = (
    4 + 8 + 8 + 4 + 2 * SECTOR_BYTES
)  # an index in two types, an entry, and its place in the weight


def measured_optimizer(
    workload: Workload, graph: ModelGraph, device: str, clock: Clock, visits: list[list[float]]
) -> OptimizerCost:
    """Times the update of stand-ins on a device and returns its cost an element.

    Args: `device` is where the stand-ins are; `clock` times there. `visits` has the seconds of earlier calls, which
        count as well; those of this one are added.
    Returns: seconds and bytes an element of the parameters; state that does not grow with the size is a tensor's.
    Raises: BadInput where the optimizer cannot step from gradients alone.
    """
    cuda = torch.device(device).type == "cuda"
    optimizer, elements = _stand_in(workload, graph, GPU_ELEMENTS if cuda else TIMED_ELEMENTS, device)
    _step(workload, optimizer)
    samples = _took(clock, optimizer.step, WARM_UP_STEPS + TIMED_STEPS)
    visits.append(samples[WARM_UP_STEPS:])
    whole = spread_of(*visits)
    each = Seconds(median=whole.median / elements, spread=whole.spread / elements)
    transient = _transient(workload, graph, device, on_gpu=False)
    found = _cost(optimizer, elements, each, transient, **_judged(workload, graph))
    gather_s, scatter_s = _moved_s(device, clock)
    return replace(found, gather_seconds_per_parameter=gather_s, scatter_seconds_per_parameter=scatter_s)


def roofline_optimizer(workload: Workload, graph: ModelGraph, device: Device) -> OptimizerCost:
    """Returns the cost of an update from the bytes that it moves.

    Launches are left out, since many parameters share one.

    Args: `device` has the memory rate; the stand-ins are on the CPU.
    Raises: BadInput where the optimizer cannot step from gradients alone.
    """
    optimizer, elements = _stand_in(workload, graph, COUNTED_ELEMENTS, "cpu")
    _step(workload, optimizer)
    with Counter() as counter:
        optimizer.step()
    traffic = sum(work.traffic_bytes for work in counter.work)
    each = Seconds(median=traffic / elements / device.memory_bytes_per_s)
    transient = _transient(workload, graph, "cpu", device.name != "cpu")
    return replace(
        _cost(optimizer, elements, each, transient, **_judged(workload, graph)),
        gather_seconds_per_parameter=GATHERED_BYTES / device.memory_bytes_per_s,
        scatter_seconds_per_parameter=SCATTERED_BYTES / device.memory_bytes_per_s,
    )


def _took(clock: Clock, action: Callable[[], object], times: int = 1) -> list[float]:
    """Returns the seconds of an action, one for each of so many times in a row."""
    found: list[float] = []
    for _ in range(times):
        clock.time(action, found)
    clock.settle()
    return found


def _moved_s(device: str, clock: Clock) -> tuple[float, float]:
    """Returns the seconds that a kept entry takes out of a dense gradient, and into a dense weight."""
    dense = torch.ones(MOVED_ELEMENTS, device=device)
    index = torch.arange(0, MOVED_ELEMENTS, KEPT_EVERY, dtype=torch.int32, device=device)
    kept = torch.zeros(len(index), device=device)

    def gather() -> None:
        kept.add_(dense.index_select(0, index))

    def scatter() -> None:
        dense.index_copy_(0, index.long(), kept)

    rows = [_took(clock, move, WARM_UP_STEPS + TIMED_STEPS) for move in (gather, scatter)]
    gather_s, scatter_s = (statistics.median(each[WARM_UP_STEPS:]) / len(index) for each in rows)
    return gather_s, scatter_s


def _judged(workload: Workload, graph: ModelGraph) -> dict[str, bool]:
    """Returns whether the optimizer looks at all parameters together, and whether it updates each by element."""
    check_resumed(workload, graph)
    joint = bool(joint_optimizer(workload, graph))
    return {"joint": joint, "by_element": not joint and not whole_optimizer(workload, graph)}


def _step(workload: Workload, optimizer: torch.optim.Optimizer) -> None:
    """Makes one step; the first one makes the optimizer's state."""
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
    """Makes the optimizer update all parameters at once, as torch does by default on a GPU.

    This takes memory for each of the parameters.
    """
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
    """Returns the largest power of two that, as a limit on sizes, keeps all stand-ins together below `elements`."""
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


def _cost(
    optimizer: torch.optim.Optimizer,
    elements: int,
    seconds: Seconds,
    transient: tuple[float, float],
    *,
    joint: bool,
    by_element: bool,
) -> OptimizerCost:
    tensors = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    state_bytes = sum(x.nbytes for x in tensors if x.ndim)
    counters_bytes = sum(x.nbytes for x in tensors if not x.ndim)
    return OptimizerCost(
        name=type(optimizer).__name__.lower(),
        state_bytes_per_parameter=state_bytes / elements,
        seconds_per_parameter=seconds,
        state_bytes_per_tensor=counters_bytes / max(1, len(optimizer.state)),
        largest_bytes_per_parameter=transient[0],
        other_bytes_per_parameter=transient[1],
        joint=joint,
        by_element=by_element,
    )


def _transient(workload: Workload, graph: ModelGraph, device: str, on_gpu: bool) -> tuple[float, float]:
    """Returns the bytes that an update makes and frees again, an element of the largest parameter and of the others.

    Updates of two and of three equal parameters tell the two apart. An optimizer that goes through parameters one
    by one may still hold something of the one before, and takes no more for a third.
    """
    trained = [row for row in graph.parameters if row.trainable]
    if not trained:
        return 0.0, 0.0
    largest = max(trained, key=lambda row: math.prod(row.shape))
    limit = _limit([largest], COUNTED_ELEMENTS)
    names = [row.name for row in trained if len(row.shape) == len(largest.shape)]
    rows = [(names[i % len(names)], _like(largest, limit, device)) for i in range(3)]
    two, three = (_peak(workload, rows[:n], on_gpu) for n in (2, 3))
    size = math.prod(_cut(largest, limit))
    return max(0, 2 * two - three) / size, max(0, three - two) / size


def _peak(workload: Workload, stand_ins: list[tuple[str, nn.Parameter]], on_gpu: bool) -> int:
    optimizer = workload.optimizer(iter(stand_ins))
    if on_gpu:
        _as_on_a_gpu(optimizer)
    _step(workload, optimizer)
    with meter_of(stand_ins[0][1].device) as live:
        before = live.now
        optimizer.step()
        return live.peak - before
