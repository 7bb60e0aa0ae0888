"""Begins an inference: settles everything that decides the numbers, chooses the chunk, and starts those who compute.

request = InferRequest(workload="unet3d", weights="runs/mine", input="scan.zarr:raw", output="labels.zarr")
plan = prepared(request)     # BadInput with one message where anything does not go together
print(plan.text())           # what --dry-run prints
run(plan, print)             # here, in as many processes as were asked for
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod
from pathlib import Path

import torch

from planner.errors import BadInput
from planner.spatial import NoRule, cut_model
from planner.units import format_bytes, format_duration
from runtime.infer import chunk as chunks
from runtime.infer.blend import default_overlap
from runtime.infer.chunk import ChunkChoice, free_memory
from runtime.infer.folder import InferJob
from runtime.infer.model import DTYPES, Applied
from runtime.infer.storage import one_writer, opened
from runtime.infer.weights import digest_of, stamp_of, weights_of
from runtime.same_bits import threads

PATCH = 96  # rows of a blended patch along each axis, where nothing is said
WIDE = 4  # patches that a task of a blended output is wide, at least
STORED = 64  # rows of a storage chunk along each axis, at most about


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """The wishes of a user for one inference."""

    workload: str
    weights: str
    input: str
    output: str
    settings: Mapping[str, str] = field(default_factory=dict)
    mode: str = "exact"
    chunk: str = "auto"  # or rows along each axis, with commas
    patch: str = ""  # of a blended forward pass, likewise
    overlap: str = ""
    flips: bool = False
    workers: int = 1
    devices: int = 0
    mask: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    memory: int = 0  # bytes of one worker; 0: what is free here, shared by the workers


@dataclass(frozen=True, kw_only=True)
class InferPlan:
    """An inference that is settled and not begun."""

    request: InferRequest
    job: InferJob
    applied: Applied
    choice: ChunkChoice | None  # None where the chunk was given, or the output is blended
    unit: tuple[int, ...]  # the storage chunk of the output along each axis of space
    error: (
        float | None
    )  # of a blended box against the same box computed whole, relative to its largest number

    @cached_property
    def tasks(self) -> int:
        return prod(ceil(n / c) for n, c in zip(self.applied.output_space, self.job.chunk, strict=True))

    @property
    def bytes_written(self) -> int:
        return prod(self.applied.output_shape) * self.applied.output_dtype.itemsize

    def facts(self) -> dict[str, object]:
        """Returns what `--dry-run` says, by name."""
        found: dict[str, object] = {
            "mode": self.job.mode,
            "input": list(self.applied.shape[1:]),
            "output": list(self.applied.output_shape),
            "chunk": list(self.job.chunk),
            "storage_chunk": list(self.unit),
            "tasks": self.tasks,
            "bytes_written": self.bytes_written,
        }
        if self.choice is not None:
            found |= {
                "sweep": list(self.choice.sweep),
                "alignment": list(self.choice.alignment),
                "margin": [list(pair) for pair in self.choice.margin],
                "overcompute": self.choice.overcompute,
                "peak_bytes": self.choice.peak_bytes,
                "hours": self.choice.total_s / 3600 / self.request.workers,
                "measured": self.choice.measured,
                "cube": list(self.choice.cube),
                "cube_overcompute": self.choice.cube_overcompute,
            }
        else:
            found |= {"patch": list(self.job.patch), "overlap": list(self.job.overlap), "error": self.error}
        return found

    def text(self) -> str:
        """Returns what `--dry-run` prints."""
        job, choice = self.job, self.choice
        lines = [
            f"{job.mode}: {_by(self.applied.shape[1:])} in, {_by(self.applied.output_shape)} out, "
            f"{format_bytes(self.bytes_written)}",
            f"chunk {_by(job.chunk)}, {self.tasks} tasks, stored as chunks of {_by(self.unit)}",
        ]
        if choice is not None:
            margin = _by([max(pair) for pair in choice.margin])
            how = "measured" if choice.measured else "not measured"
            took = format_duration(choice.total_s / self.request.workers * 1e9)
            if choice.sweep:
                axis, step = choice.sweep
                lines.append(
                    f"each task goes along axis {axis} in passes of {step} rows, and computes no row twice"
                )
            lines += [
                f"margin {margin} rows of the input, alignment {_by(choice.alignment)}",
                f"overcompute {choice.overcompute:.2f} times the work of the whole volume at once",
                f"beside it: the largest cube, {_by(choice.cube)} with the margin in every layer, "
                f"{choice.cube_overcompute:.2f} times",
                f"peak {format_bytes(choice.peak_bytes)} a worker, {format_duration(choice.task_s * 1e9)} a task "
                f"({how})",
                f"all tasks: {took} with {self.request.workers} worker{'s' * (self.request.workers > 1)}",
            ]
        elif job.mode == "blend":
            over = prod(
                len(self.applied.blend.starts(axis)) * rows / size
                for axis, (rows, size) in enumerate(
                    zip(self.applied.blend.patch, self.applied.space, strict=True)
                )
            )
            lines.append(
                f"patch {_by(self.applied.blend.patch)}, overlap {_by(job.overlap)}, "
                f"overcompute {over:.2f} times, without what tasks share"
            )
            lines.append(
                "on a box in the middle, blended and whole could not be compared"
                if self.error is None
                else f"on a box in the middle, blended differs from whole by {self.error:.2g} of its largest number"
            )
        return "\n".join(lines)


def prepared(request: InferRequest, *, measure: bool = True) -> InferPlan:
    """Settles an inference.

    Args: without `measure`, a chunk is chosen without a measurement on this machine.
    Raises: BadInput where workload, weights and volumes do not go together, or the model needs all of space.
    """
    _check(request)
    weights = weights_of(request.weights)
    job = InferJob(
        workload=_name_of_workload(request.workload),
        settings=dict(request.settings),
        directory=str(Path.cwd()),
        weights=str(weights.resolve()),
        weights_digest=digest_of(weights),
        input=os.path.abspath(request.input),
        output=os.path.abspath(request.output),
        mask=os.path.abspath(request.mask) if request.mask else "",
        mode=request.mode,
        flips=request.flips,
        dtype=request.dtype,
        device=request.device,
        devices=request.devices,
    )
    applied = Applied(job)
    if request.mode == "blend":
        patch = _rows(request.patch, "--patch", applied.space) or tuple(min(PATCH, n) for n in applied.space)
        overlap = _rows(request.overlap, "--overlap", applied.space) or default_overlap(patch)
        applied.job = job = replace(job, patch=list(patch), overlap=list(overlap))
    space = applied.output_space
    _check_mask(job, space)
    stamp = stamp_of((job.input, job.mask))
    applied.job = job = replace(
        job, fingerprint=applied.digest, stamp=stamp
    )  # loads the weights, which must fit
    with threads(_threads(request.workers)):
        error = _sample_error(applied) if job.mode == "blend" else None
    given = None if request.chunk == "auto" else _rows(request.chunk, "--chunk", space)
    if request.devices:
        given = _whole(applied)
    choice, sweep = None, list[int]()
    if given is None and job.mode == "exact":
        each = request.memory or free_memory(job.device) // request.workers
        with threads(_threads(request.workers)):
            choice = chunks.choose(applied, each, measure=measure)
        given = choice.chunk
        sweep = list(choice.sweep)
    elif given is None:  # as few tasks as leave the patches that two of them compute a small share
        given = tuple(
            ceil(n / max(1, n // (WIDE * p))) for p, n in zip(applied.blend.patch, space, strict=True)
        )
    applied.job = job = replace(job, chunk=list(given), sweep=sweep)
    unit = tuple(map(_divisor, given))
    return InferPlan(request=request, job=job, applied=applied, choice=choice, unit=unit, error=error)


def _check(request: InferRequest) -> None:
    if request.mode not in ("exact", "blend"):
        raise BadInput(f"'{request.mode}'", where="--mode", allowed="exact or blend")
    if request.dtype not in DTYPES:
        raise BadInput(f"'{request.dtype}'", where="--dtype", allowed=", ".join(DTYPES))
    there = (
        ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    )  # under SLURM, too: boxes are measured here
    if request.device not in there:
        raise BadInput(f"'{request.device}'", where="--device", allowed=" or ".join(there))
    if request.mode == "exact" and (request.patch or request.overlap or request.flips):
        raise BadInput("--patch, --overlap and --flips are of --mode blend", where="--mode exact")
    boxed = request.mode != "exact" or request.chunk != "auto" or request.mask
    if request.devices < 0 or (request.devices and boxed):
        raise BadInput(
            f"{request.devices}",
            where="--devices",
            allowed="1 or more, with --mode exact, without --chunk and --mask: they compute the whole volume at once",
        )
    if request.workers < 1:
        raise BadInput(f"{request.workers}", where="--workers", allowed="1 or more")
    if (request.workers > 1 or request.devices > 1) and one_writer(Path(request.output)):
        raise BadInput(
            "an HDF5 file is written by one process",
            where="--output",
            allowed="one worker and device, .zarr or .npy",
        )
    if Path(request.output).resolve() == Path(request.input).resolve():
        raise BadInput("is the input, too", where="--output", allowed="another path")


def _check_mask(job: InferJob, space: tuple[int, ...]) -> None:
    if job.mask and opened(job.mask).shape != space:
        raise BadInput(
            f"has the shape {opened(job.mask).shape}", where=job.mask, allowed=f"{space}, as the output"
        )


def _whole(applied: Applied) -> tuple[int, ...]:
    """Returns the whole output as one chunk, where the devices can share the volume."""
    if applied.job.devices > max(applied.space):
        raise BadInput(
            f"{applied.job.devices} devices for {max(applied.space)} rows", where="--devices", allowed="fewer"
        )
    try:
        cut_model(applied.forward.operations, applied.grid)
    except NoRule as error:
        raise applied.forward.line(error) from None
    return applied.output_space


def _sample_error(applied: Applied) -> float | None:
    """Returns how far blending is from the whole on a box in the middle; None where the device cannot compute it."""
    rows = [min(n, 3 * p // 2) for n, p in zip(applied.space, applied.blend.patch, strict=True)]
    box = tuple(((n - m) // 2, (n - m) // 2 + m) for n, m in zip(applied.space, rows, strict=True))
    try:
        return applied.blend_error(box)
    except (RuntimeError, MemoryError):  # too large for the device, or of a size that the model does not take
        return None


def _divisor(rows: int) -> int:
    """Returns the largest divisor that is at most STORED; all of them where that would be few."""
    found = max(n for n in range(1, min(rows, STORED) + 1) if rows % n == 0)
    return found if found >= STORED // 4 else rows


def _rows(text: str, option: str, space: Sequence[int]) -> tuple[int, ...] | None:
    """Returns rows along each axis from text such as "64,64,32"; one number counts for all axes."""
    if not text:
        return None
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words) or len(words) not in (1, len(space)):
        allowed = f"one whole number of rows above 0, or {len(space)} with commas"
        raise BadInput(f"'{text}'", where=option, allowed=allowed)
    rows = [int(word) for word in words] * (len(space) if len(words) == 1 else 1)
    return tuple(rows) if option == "--overlap" else tuple(map(min, rows, space))


def _name_of_workload(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).is_file() else name


def _threads(workers: int) -> int:
    """Returns the threads of one of several workers on this machine."""
    return max(1, (os.cpu_count() or 1) // workers)


def _by(rows: Sequence[int]) -> str:
    return " x ".join(map(str, rows))
