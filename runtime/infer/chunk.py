"""Chooses the chunk of a task: of all aligned boxes that fit into memory, the one that makes most voxels a second.

A task computes its box at once, or goes along one axis of it pass by pass (`sweep.py`), whichever is faster.

What a box computes and holds is summed over the operations, each with its own margins. How many bytes and seconds
that is on the device is measured on a box in the middle, in a process that may die; a box that does not fit is halved.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import NamedTuple

import torch

from planner.errors import BadInput
from planner.spatial import Box
from runtime.infer.box_work import Work
from runtime.infer.folder import InferJob
from runtime.infer.model import Applied

ROUNDS = 6  # of measurements
LEAST = 8  # rows of a chunk along each axis, about
LENGTHS = 12  # tried along each axis
PER_TASK_S = 0.02  # that a task takes whatever its size
PER_PASS_S = 0.03  # and a pass of a sweep
PASSES = 3  # of a sweep that is measured
WORTH_S = 20.0  # of all tasks, from which other ways are measured, too
NEAR = 1.25  # times the fastest way's prediction
MEASURE_S = 600
SHARE = 0.7  # of the memory that is free


class BoxCost(NamedTuple):
    """The time and memory of one box on a device."""

    seconds: float
    peak_bytes: int


class TaskShape(NamedTuple):
    """The rows of a task along each axis, and how it goes through them: at once, or along an axis in passes."""

    chunk: tuple[int, ...]
    sweep: tuple[int, ...] = ()  # the axis, and the rows of a pass


@dataclass(frozen=True, kw_only=True)
class ChunkChoice:
    """A chunk with what it costs; figures are predictions unless `measured`."""

    chunk: tuple[int, ...]  # rows of the output
    sweep: tuple[int, ...]  # the axis that a task goes along, and the rows of a pass; empty for boxes at once
    alignment: tuple[int, ...]
    margin: tuple[tuple[int, int], ...]  # rows of the input before and behind, along each axis
    overcompute: float  # work of all tasks over that of the whole volume at once
    tasks: int
    peak_bytes: int
    task_s: float
    measured: bool
    cube: tuple[int, ...]  # the largest cube that fits, with the margin computed by every layer
    cube_overcompute: float

    @property
    def total_s(self) -> float:
        """Returns the seconds of all tasks on one worker."""
        return self.tasks * self.task_s


def choose(applied: Applied, memory: int, *, measure: bool = True) -> ChunkChoice:
    """Returns the chunk that makes most voxels a second.

    Args: `memory` is in bytes; without `measure`, bytes and seconds are those of the operations' results alone.
    Raises: BadInput where not even the smallest box fits.
    """
    work = Work(applied)
    base = tuple(min(n, a * ceil(LEAST / a)) for n, a in zip(work.space, work.alignment, strict=True))
    if not measure:
        return _choice(work, best(work, base, memory, None), None, memory)
    shape, cost, scale = _fitting(applied, work, base, memory)
    limit, rate = memory / scale, cost.seconds / work.of(*_sample(work, shape))[0]
    least = best(work, base, limit, rate)
    if seconds(work, least, rate) > WORTH_S:
        near = [best(work, base, limit, rate, (way,)) for way in (None, *range(len(base)))]
        tried = [x for x in near if seconds(work, x, rate) <= NEAR * seconds(work, least, rate)]
    else:
        tried = [least]
    fits = [(shape, cost)]
    for other in dict.fromkeys(tried):
        if other != shape and (again := measured(applied.job, work, other)) and again.peak_bytes <= memory:
            fits.append((other, again))
    return _choice(work, *min(fits, key=lambda fit: _total_s(work, *fit)), limit)


def _fitting(
    applied: Applied, work: Work, base: Sequence[int], memory: int
) -> tuple[TaskShape, BoxCost, float]:
    """Returns a shape that was measured to fit, what it took, and how many bytes stand for one that is predicted."""
    shape, per_byte = best(work, base, memory, None), 1.0
    for _ in range(ROUNDS):
        found = measured(applied.job, work, shape)
        predicted = work.of(*shape)[1]
        if found is not None and found.peak_bytes <= memory:
            return shape, found, max(per_byte, found.peak_bytes / predicted)
        per_byte = max(per_byte * 2 if found is None else found.peak_bytes / predicted * 1.1, per_byte)
        smaller = best(work, base, min(memory / per_byte, predicted / 2 if found is None else memory), None)
        if smaller == shape:
            break
        shape = smaller
    raise BadInput(
        f"not even a chunk of {shape.chunk} fits into {memory / 2**30:.2f} GiB",
        where="--memory",
        allowed="more memory, or fewer workers on this machine",
    )


def best(
    work: Work,
    unit: Sequence[int],
    limit: float,
    rate: float | None,
    ways: Sequence[int | None] | None = None,
) -> TaskShape:
    """Returns the shape of least time for all tasks whose bytes fit; the smallest where none does.

    Args: `unit` has the rows of which a chunk is a multiple; `limit` is in bytes; `rate` is the seconds of a unit of
        work; `ways` are the axes to go along, None for boxes at once, and all of these when left out.
    """
    rate = rate or PER_TASK_S / max(1.0, work.of(unit)[0])
    found, least = TaskShape(tuple(map(min, unit, work.space))), float("inf")
    for shape in _shapes(work, unit, ways if ways is not None else (None, *range(len(unit)))):
        if (took := seconds(work, shape, rate)) < least and work.of(*shape)[1] <= limit:
            found, least = shape, took
    return found


def _shapes(work: Work, unit: Sequence[int], ways: Sequence[int | None]) -> Iterator[TaskShape]:
    every = [lengths(n, u) for n, u in zip(work.space, unit, strict=True)]
    for way in ways:
        if way is None:
            yield from map(TaskShape, itertools.product(*every))
            continue
        size = work.space[way]
        long = sorted(
            {n for n in every[way] if n * 4 >= size}
        )  # short ones would compute their margins again
        steps = [step for step in every[way] if step * 2 <= size]
        for chunk in itertools.product(*(long if axis == way else found for axis, found in enumerate(every))):
            yield from (TaskShape(chunk, (way, step)) for step in steps if step * 2 <= chunk[way])


def seconds(work: Work, shape: TaskShape, rate: float) -> float:
    """Returns the predicted seconds of all tasks on one worker.

    Args: `rate` is the seconds of a unit of work.
    """
    total, tasks = work.total(*shape)
    passes = ceil(shape.chunk[shape.sweep[0]] / shape.sweep[1]) if shape.sweep else 0
    return total * rate + tasks * (PER_TASK_S + passes * PER_PASS_S)


def _sample(work: Work, shape: TaskShape) -> TaskShape:
    """Returns the part of a task that is measured: all of it, or some passes."""
    if not shape.sweep:
        return shape
    place, step = shape.sweep
    rows = min(shape.chunk[place], PASSES * step)
    return TaskShape((*shape.chunk[:place], rows, *shape.chunk[place + 1 :]), shape.sweep)


def _total_s(work: Work, shape: TaskShape, cost: BoxCost) -> float:
    total, tasks = work.total(*shape)
    return cost.seconds * total / work.of(*_sample(work, shape))[0] + tasks * PER_TASK_S


def free_memory(device: str) -> int:
    """Returns the bytes that one worker may take where nothing else is said."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(torch.device(device))[0] * SHARE)
    lines = Path("/proc/meminfo").read_text().splitlines()
    row = next(line for line in lines if line.startswith("MemAvailable"))
    return int(int(row.split()[1]) * 1024 * SHARE)


def lengths(size: int, unit: int) -> list[int]:
    """Returns the lengths that are tried along an axis: multiples of a unit, more of the small ones, and all of it."""
    most = ceil(size / unit)
    counts = {max(1, round(most ** (i / (LENGTHS - 1)))) for i in range(LENGTHS)}
    even = {ceil(most / parts) for parts in range(1, 7)}  # which leave no small rest
    return sorted({min(size, unit * count) for count in counts | even})


def _choice(work: Work, shape: TaskShape, cost: BoxCost | None, limit: float) -> ChunkChoice:
    total, tasks = work.total(*shape)
    cube, over = _cube(work, limit)
    return ChunkChoice(
        chunk=shape.chunk,
        sweep=shape.sweep,
        alignment=work.alignment,
        margin=work.margin,
        overcompute=total / work.of(work.space)[0],
        tasks=tasks,
        peak_bytes=cost.peak_bytes if cost else int(work.of(*shape)[1]),
        task_s=(_total_s(work, shape, cost) if cost else seconds(work, shape, 1e-10)) / tasks,
        measured=cost is not None,
        cube=cube,
        cube_overcompute=over,
    )


def _cube(work: Work, limit: float) -> tuple[tuple[int, ...], float]:
    """Returns the largest cube whose padded box fits, and how often every layer computes each voxel."""
    step, margin = max(work.alignment), max(max(pair) for pair in work.margin)
    found, over = (min(step, min(work.space)),) * len(work.space), float("inf")
    for side in lengths(min(work.space), step):
        padded = [min(n, side + 2 * margin) for n in work.space]
        if not found or work.of(padded)[1] <= limit or over == float("inf"):
            found, over = (side,) * len(work.space), prod(p / side for p in padded)
    return found, over


def measured(job: InferJob, work: Work, shape: TaskShape) -> BoxCost | None:
    """Computes a box in the middle in a process of its own, or some passes of it.

    Returns: what it took; None where the process was ended, as by the lack of memory.
    Raises: BadInput where it failed for another reason.
    """
    program = [sys.executable, "-P", "-m", "runtime.infer.chunk"]
    part = _sample(work, shape)
    tried = asdict(replace(job, sweep=list(shape.sweep)))
    asked = json.dumps({"job": tried, "box": work.middle(part.chunk), "threads": torch.get_num_threads()})
    try:
        done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=MEASURE_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode <= 0:
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        rest = work.item * (
            work.result(shape.chunk) - work.result(part.chunk)
        )  # which a whole sweep holds more
        return found and BoxCost(float(found[0]), int(found[1] + rest))
    raise BadInput(
        f"a box could not be computed: {done.stderr.strip().splitlines()[-1:]}", where="--chunk auto"
    )


def _measure() -> None:
    """Reads a job and a box from standard input, computes the box on zeros, and prints seconds and bytes."""
    asked = json.loads(sys.stdin.read())
    torch.set_num_threads(int(asked["threads"]))
    applied = Applied(InferJob(**asked["job"]))
    box = tuple((int(low), int(high)) for low, high in asked["box"])
    cuda = applied.device.type == "cuda"

    def zeros(rows: Box) -> torch.Tensor:
        shape = (*applied.shape[:2], *(high - low for low, high in rows))
        return torch.zeros(shape, dtype=applied.dtype, device=applied.device)

    def once(rows: Box) -> None:
        if applied.job.sweep:
            applied.swept(rows, zeros)
        else:
            need = applied.reach.of(rows)
            applied.runner(need, zeros(need.input))
        if cuda:
            torch.cuda.synchronize()

    once(tuple((low, low + 1) for low, _ in box))  # what libraries take whatever the box
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    try:
        once(box)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "memory" not in str(error):
            raise
        print("null")
        return
    peak = torch.cuda.max_memory_allocated() if cuda else _resident("VmHWM") - before
    start = time.perf_counter()
    once(box)
    print(json.dumps([time.perf_counter() - start, peak]))


def _resident(name: str) -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith(name))


if __name__ == "__main__":
    _measure()
