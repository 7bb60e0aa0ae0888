"""Chooses the chunk of a task: of all aligned boxes that fit into memory, the one that makes most voxels a second.

What a box computes and holds is summed over the operations, each with its own margins. How many bytes and seconds
that is on the device is measured on a box in the middle, in a process that may die; a box that does not fit is halved.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from planner.errors import BadInput
from planner.spatial import Box, Layout, alignment, local_shape
from runtime.infer.folder import InferJob
from runtime.infer.model import Applied

ROUNDS = 6  # of measurements
PROBED = 32  # rows of the box that tells margins
LEAST = 8  # rows of a chunk along each axis, about
LENGTHS = 12  # tried along each axis
TRAFFIC = 8  # floating-point operations that a number costs that is only read and written
PER_TASK_S = 0.02  # that a task takes whatever its size
MEASURE_S = 600


class BoxCost(NamedTuple):
    """The time and memory of one box on a device."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class ChunkChoice:
    """A chunk with what it costs; figures are predictions unless `measured`."""

    chunk: tuple[int, ...]  # rows of the output
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


class Work:
    """The work and memory of a box by its rows, summed over the operations of a model."""

    def __init__(self, applied: Applied) -> None:
        reach = self.reach = applied.reach
        self.space, self.alignment = (
            reach.output_space,
            tuple(min(a, n) for a, n in zip(alignment(reach), reach.output_space, strict=True)),
        )
        self.probed = tuple(map(_probed, self.space, self.alignment))
        self.need = reach.of(self.middle(self.probed))
        forward, flops = applied.forward, applied.forward.captured.layout.probes[0].flops
        made = [
            (done, layout) for done in self.need.placed for layout in self.need.layouts[done.operation.name]
        ]
        inner = [(done, layout) for done, layout in made if not layout.whole]
        axes = sorted(reach.spaces(reach.result))
        self.first = np.array([[_rows(layout, axis)[0] for axis in axes] for _, layout in inner], float)
        self.whole = np.array([[_rows(layout, axis)[1] for axis in axes] for _, layout in inner], float)
        self.other = np.array([prod(layout.shape) for _, layout in inner], float) / self.whole.prod(1)
        self.flops = np.array([flops.get(forward.nodes[d.operation.name], 0) for d, _ in inner], float)
        self.item = torch.empty(0, dtype=applied.dtype).element_size()
        self.alive = _alive([d.operation.name for d, _ in inner], [d.operation.reads() for d, _ in inner])

    def middle(self, rows: Sequence[int]) -> Box:
        """Returns an aligned box of so many rows in the middle of the output."""
        starts = ((n - m) // 2 // a * a for n, m, a in zip(self.space, rows, self.alignment, strict=True))
        return tuple((first, first + m) for first, m in zip(starts, rows, strict=True))

    def _elements(self, rows: Sequence[float]) -> NDArray[np.float64]:
        rate = self.whole / np.array(self.space, float)
        grown = np.minimum(self.first + rate * (np.array(rows, float) - np.array(self.probed)), self.whole)
        grown = np.where(np.array(rows) >= np.array(self.space), self.whole, np.maximum(grown, 1))
        found: NDArray[np.float64] = self.other * grown.prod(1)
        return found

    def of(self, rows: Sequence[float]) -> tuple[float, float]:
        """Returns the work of a box in floating-point operations, and the bytes that it holds at once."""
        elements = self._elements(rows)
        share = elements / (self.other * self.whole.prod(1))
        work = float((self.flops * share).sum() + TRAFFIC * elements.sum())
        return work, float((self.alive @ elements).max() * self.item)

    def total(self, chunk: Sequence[int]) -> tuple[float, int]:
        """Returns the work of all tasks of a chunk, and their number."""
        counts = [ceil(n / c) for n, c in zip(self.space, chunk, strict=True)]
        mean = [n / count for n, count in zip(self.space, counts, strict=True)]
        return prod(counts) * self.of(mean)[0], prod(counts)

    @property
    def margin(self) -> tuple[tuple[int, int], ...]:
        """Returns the rows of the input before and behind those in proportion to a box in the middle."""
        found = []
        rows = zip(self.need.input, self.need.output, self.space, self.reach.input_shape[2:], strict=False)
        for (low, high), (first, last), made, size in rows:
            found.append((max(0, first * size // made - low), max(0, high - -(-last * size // made))))
        return tuple(found)


def choose(applied: Applied, memory: int, *, measure: bool = True) -> ChunkChoice:
    """Returns the chunk that makes most voxels a second.

    Args: `memory` is in bytes; without `measure`, bytes and seconds are those of the operations' results alone.
    Raises: BadInput where not even the smallest box fits.
    """
    work = Work(applied)
    base = tuple(min(n, a * ceil(LEAST / a)) for n, a in zip(work.space, work.alignment, strict=True))
    per_byte, limit = 1.0, float(memory)
    chunk = best(work, base, limit, None)
    if not measure:
        return _choice(work, chunk, None, limit)
    fits: tuple[tuple[int, ...], BoxCost] | None = None
    for _ in range(ROUNDS):
        found = measured(applied.job, work.middle(chunk))
        if found is not None and found.peak_bytes <= memory:
            fits = chunk, found
            break
        predicted = work.of(chunk)[1]
        per_byte = max(per_byte * 2 if found is None else found.peak_bytes / predicted * 1.1, per_byte)
        smaller = best(work, base, min(memory / per_byte, predicted / 2 if found is None else memory), None)
        if smaller == chunk:
            break
        chunk = smaller
    if fits is None:
        raise BadInput(
            f"not even a chunk of {chunk} fits into {memory / 2**30:.2f} GiB",
            where="--memory",
            allowed="more memory, or fewer workers on this machine",
        )
    seconds = fits[1].seconds / work.of(chunk)[0]
    scale = max(1.0, fits[1].peak_bytes / work.of(chunk)[1])
    better = best(work, base, memory / scale, seconds)
    if better != chunk and (again := measured(applied.job, work.middle(better))) is not None:
        rate = prod(chunk) / fits[1].seconds
        if again.peak_bytes <= memory and prod(better) / again.seconds > rate:
            fits = better, again
    return _choice(work, *fits, memory / scale)


def best(work: Work, unit: Sequence[int], limit: float, seconds: float | None) -> tuple[int, ...]:
    """Returns the chunk of least time for all tasks whose bytes fit; the smallest where none does.

    Args: `unit` has the rows of which a chunk is a multiple; `limit` is in bytes; `seconds` are for a unit of work.
    """
    rate = seconds or PER_TASK_S / max(1.0, work.of(unit)[0])
    found, least = tuple(map(min, unit, work.space)), float("inf")
    for chunk in itertools.product(*(lengths(n, u) for n, u in zip(work.space, unit, strict=True))):
        if work.of(chunk)[1] > limit:
            continue
        total, tasks = work.total(chunk)
        if (took := total * rate + tasks * PER_TASK_S) < least:
            found, least = chunk, took
    return found


def lengths(size: int, unit: int) -> list[int]:
    """Returns the lengths that are tried along an axis: multiples of a unit, more of the small ones, and all of it."""
    most = ceil(size / unit)
    counts = {max(1, round(most ** (i / (LENGTHS - 1)))) for i in range(LENGTHS)}
    even = {ceil(most / parts) for parts in range(1, 7)}  # which leave no small rest
    return sorted({min(size, unit * count) for count in counts | even})


def _choice(work: Work, chunk: tuple[int, ...], cost: BoxCost | None, limit: float) -> ChunkChoice:
    total, tasks = work.total(chunk)
    whole = work.of(work.space)[0]
    made, peak = work.of(chunk)
    cube, over = _cube(work, limit)
    return ChunkChoice(
        chunk=chunk,
        alignment=work.alignment,
        margin=work.margin,
        overcompute=total / whole,
        tasks=tasks,
        peak_bytes=cost.peak_bytes if cost else int(peak),
        task_s=(cost.seconds if cost else made / 1e10) * (total / tasks / made) + PER_TASK_S,
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


def measured(job: InferJob, box: Box) -> BoxCost | None:
    """Computes one box in a process of its own.

    Returns: what it took; None where the process was ended, as by the lack of memory.
    Raises: BadInput where it failed for another reason.
    """
    program = [sys.executable, "-P", "-m", "runtime.infer.chunk"]
    asked = json.dumps({"job": asdict(job), "box": box, "threads": torch.get_num_threads()})
    try:
        done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=MEASURE_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode <= 0:
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        return found and BoxCost(float(found[0]), int(found[1]))
    raise BadInput(
        f"a box could not be computed: {done.stderr.strip().splitlines()[-1:]}", where="--chunk auto"
    )


def _probed(size: int, alignment: int) -> int:
    """Returns the rows of a box that has borders of its own where the volume is large enough for them."""
    return min(
        size, max(alignment, min(alignment * ceil(PROBED / alignment), size // 2 // alignment * alignment))
    )


def _rows(layout: Layout, axis: int) -> tuple[int, int]:
    """Returns the rows of a box and of the whole tensor along an axis; ones where the tensor does not have it."""
    for dim, cut in enumerate(layout.cuts):
        if cut is not None and cut.axis == axis:
            return local_shape(layout)[dim], layout.shape[dim]
    return 1, 1


def _alive(names: Sequence[str], reads: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Returns, for each operation, which results are held while it runs, its own among them."""
    last = {name: i for i, row in enumerate(reads) for name in row}
    found = np.zeros((len(names), len(names)))
    for i, name in enumerate(names):
        found[i : last.get(name, len(names) - 1) + 1, i] = 1
    return found


def _measure() -> None:
    """Reads a job and a box from standard input, computes the box on zeros, and prints seconds and bytes."""
    asked = json.loads(sys.stdin.read())
    torch.set_num_threads(int(asked["threads"]))
    applied = Applied(InferJob(**asked["job"]))
    box = tuple((int(low), int(high)) for low, high in asked["box"])
    runner, cuda = applied.runner, applied.device.type == "cuda"

    def once(rows: Box) -> None:
        need = applied.reach.of(rows)
        shape = (*applied.shape[:2], *(high - low for low, high in need.input))
        runner(need, torch.zeros(shape, dtype=applied.dtype, device=applied.device))
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
