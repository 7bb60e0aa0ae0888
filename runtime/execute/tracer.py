"""Records the steps of a rank: every action in nanoseconds of this host's clock, and the peak of its memory.

An action has its start, its end and how long it waited. Memory is the bytes that stay, and the peak of what a step
makes on top. On the host a dispatch mode follows every storage from its making to its end, which is slow and therefore
done in one step only; a GPU's allocator counts by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from planner.capture import LiveBytes
from planner.timeline import (
    BUSY,
    CLOCK_COLUMNS,
    CONVERSION_COLUMNS,
    MEMORY_COLUMNS,
    Timeline,
    decode,
    from_events,
)
from runtime.world import HostClock

T = TypeVar("T")
clock_ns = monotonic_ns
MOST_ROWS = 200_000  # about 50 MB; a long run keeps its latest steps


class ActionCall(NamedTuple):
    """One call of a rank's list, with its code in the trace."""

    run: Callable[[], None]
    code: int  # of the action in the trace; -1 for what only waits, -2 for what does neither


WAITS, SILENT = -1, -2


class DeviceMarks:
    """Marks in the stream of a GPU, whose times are those of this host's clock once the GPU has come to the last."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []  # used again in every step
        self._count = 0

    def mark(self) -> int:
        """Returns the number of a new mark."""
        if self._count == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[self._count].record()
        self._count += 1
        return self._count - 1

    def times(self) -> list[int]:
        """Waits for the GPU and returns the nanoseconds of all marks, which are forgotten."""
        last = self._events[self.mark()]
        last.synchronize()
        now, marks = clock_ns(), self._events[: self._count]
        self._count = 0
        return [now - round(each.elapsed_time(last) * 1e6) for each in marks]


class Tracer:
    """The record of one rank: `rows` takes (step, rank, code, start, end, wait).

    Appending a row costs less than a microsecond.
    """

    def __init__(
        self, rank: int, clock: HostClock | None = None, start: int = 0, device: torch.device | None = None
    ) -> None:
        """Begins the record of a rank.

        Args: `clock` says how this host's clock differs from the first rank's, `start` counts the starts of the run, and
            on a GPU as `device` actions are timed where they run.
        """
        self.rank = rank
        self.marks = DeviceMarks() if device is not None and device.type == "cuda" else None
        self.clock, self.start = clock or HostClock(), start
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []  # step, rank, time, bytes
        self.conversions: list[tuple[int, int, int, int]] = []  # step, rank, code, nanoseconds
        self._converted_ns = 0

    def add(self, step: int, code: int, start_ns: int, end_ns: int, wait_ns: int = 0) -> None:
        """Records one action.

        Args: `code` is the action as `planner.timeline.encode` gives it; `wait_ns` is the time waited since
            the action before.
        """
        self.rows.append((step, self.rank, code, start_ns, end_ns, wait_ns))

    def record(
        self,
        step: int,
        calls: Sequence[ActionCall],
        beat: Callable[[bool], None],
        converting_ns: Callable[[], int] | None = None,
    ) -> None:
        """Runs a step and records its actions, with the time waited before each.

        Args: `calls` are run in order; `beat` is told before each call whether it waits; `converting_ns` tells how long
            conversions have taken so far, which a host knows.
        """
        if self.marks is not None:
            self._record_on_gpu(step, calls, beat, self.marks)
            return
        waited = 0
        for call, code in calls:
            if code == SILENT:
                call()
                continue
            beat(code == WAITS)
            start = clock_ns()
            call()
            end = clock_ns()
            if code == WAITS:
                waited += end - start
            else:
                self.add(step, code, start, end, waited)
                waited = 0
                if converting_ns is not None:
                    self.converting(step, code, converting_ns())

    def _record_on_gpu(
        self, step: int, calls: Sequence[ActionCall], beat: Callable[[bool], None], marks: DeviceMarks
    ) -> None:
        """Asks the GPU for everything, and waits for it at the end."""
        rows, waits = list[tuple[int, int, int, bool]](), False
        for call, code in calls:
            if code == SILENT:
                call()
                continue
            beat(code == WAITS)
            if code == WAITS:
                call()
                waits = True
                continue
            start = marks.mark()
            call()
            rows.append((code, start, marks.mark(), waits))
            waits = False
        times, before = marks.times(), 0
        for code, start, end, waits in rows:
            waited = max(0, times[start] - before) if waits and before else 0
            self.add(step, code, times[start], times[end], waited)
            before = times[end]

    def converting(self, step: int, code: int, total_ns: int) -> None:
        """Records how long an action was busy with conversions.

        Args: `code` is the action's, as in `add`; `total_ns` is how long this rank has been so far.
        """
        self.conversions.append((step, self.rank, code, total_ns - self._converted_ns))
        self._converted_ns = total_ns

    def trim(self) -> None:
        """Lets go of the oldest steps where there are too many rows; called between steps."""
        if len(self.rows) > MOST_ROWS:
            first_kept = self.rows[len(self.rows) // 2][0]
            self.rows = [row for row in self.rows if row[0] >= first_kept]
            self.conversions = [row for row in self.conversions if row[0] >= first_kept]

    def busy_ns(self, step: int) -> int:
        """Returns how long this rank was in actions of a step that it has just done."""
        total = 0
        for number, _, code, start_ns, end_ns, _ in reversed(self.rows):
            if number != step:
                break
            total += (end_ns - start_ns) * _is_busy(code)
        return total

    def sample_memory(self, step: int, in_use_bytes: int) -> None:
        """Records the peak of a step.

        Args: `in_use_bytes` is the peak on this rank.
        """
        self.memory.append((step, self.rank, clock_ns(), in_use_bytes))

    def timeline(self) -> Timeline:
        """Returns everything recorded as a Timeline, in nanoseconds of the first rank's clock."""
        ours = from_events(self.rows)
        table = np.array(self.memory, np.int64).reshape(-1, len(MEMORY_COLUMNS))
        clock = (self.rank, self.start, self.clock.offset_ns, self.clock.error_ns)
        moved = self.clock.offset_ns
        apart = np.array(self.conversions, np.int64).reshape(-1, len(CONVERSION_COLUMNS))
        return Timeline(
            **{name: getattr(ours, name) for name in ("step", "rank", "code", "wait_ns")},
            start_ns=ours.start_ns + moved,
            end_ns=ours.end_ns + moved,
            **{name: table[:, i] + moved * (name == "memory_ns") for i, name in enumerate(MEMORY_COLUMNS)},
            **{name: apart[:, i] for i, name in enumerate(CONVERSION_COLUMNS)},
            **{name: np.array([value]) for name, value in zip(CLOCK_COLUMNS, clock, strict=True)},
        )

    def save(self, path: Path) -> None:
        """Writes the timeline whole or not at all, since a rank may be ended at any moment.

        Args: `path` ends in .npz.
        """
        part = path.with_name(f"{path.stem}.part{path.suffix}")
        self.timeline().save(part)
        part.rename(path)


@lru_cache(maxsize=100_000)
def _is_busy(code: int) -> bool:
    return decode(code).name in BUSY


def with_peak(
    run: Callable[[], T], device: torch.device, kept: Sequence[Tensor], present: Iterable[Tensor] = ()
) -> tuple[T, int]:
    """Runs a function and measures the most bytes in use meanwhile.

    Args: `kept` are tensors held throughout; `present` are tensors in use now, which are not held here and
        count until they are let go.
    Returns: what the function returns, and bytes.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        done = run()
        peak = torch.cuda.max_memory_allocated(device)
        return done, peak - _workspace_bytes(device)
    with LiveBytes(kept) as live:
        live.adopt(present)
        done = run()
    return done, static_bytes(kept) + live.peak


def _workspace_bytes(device: torch.device) -> int:
    """Returns the bytes that cuBLAS keeps of the allocator's, which belong to no tensor; they are let go of.

    What libraries take is part of the margin of a device, as the context is.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        return 0
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    clear()
    return before - torch.cuda.memory_allocated(device)


def static_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of tensors, each storage once, however many views of it there are.

    Args: `tensors` may share storages.
    """
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class Resident:
    """The memory that this process holds, as the kernel counts it: what it held when this was made, and the most since."""

    def __init__(self) -> None:
        with suppress(OSError):  # else the most counts from the start of the process, which is above
            Path("/proc/self/clear_refs").write_text("5")
        self.base_bytes = _status_bytes("VmRSS")

    @property
    def most_bytes(self) -> int:
        """Returns the most bytes that were held at any time since then; 0 where the machine does not tell."""
        return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def free_bytes() -> int:
    """Returns the memory of this host for processes still to come, in bytes; what caches hold can be had."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
