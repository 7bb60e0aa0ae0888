"""A Timeline as the page carries it: rows of events in columns, deflated, so that 130,000 of them are a few 100 kB."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.schedule import Kind
from planner.timeline import BUSY, COLLECTIVE, SEND, Timeline, decode

SHOWN = (*(kind.value for kind in Kind), SEND, COLLECTIVE)  # waiting is what is left between them


@dataclass(frozen=True, kw_only=True)
class Track:
    """Events of one timeline, row by row and in the order of their starts, times from the first start on."""

    rows: tuple[int, ...]  # how many events each row has
    names: tuple[tuple[str, int, int], ...]  # (kind, stage, pipe), which `code` counts into
    start_ns: NDArray[np.int64]
    took_ns: NDArray[np.int64]
    code: NDArray[np.int64]
    micro: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.code)

    @property
    def span_ns(self) -> int:
        return int((self.start_ns + self.took_ns).max(initial=0))

    @property
    def counts(self) -> dict[str, int]:
        """Returns the number of events of each kind."""
        kinds = [self.names[code][0] for code in self.code.tolist()]
        return {kind: kinds.count(kind) for kind in SHOWN if kind in kinds}


def track(timeline: Timeline, ranks: Sequence[int]) -> Track:
    """One row for each of these ranks, in this order."""
    events = [decode(code) for code in timeline.code.tolist()]
    shown = np.array([event.name in SHOWN for event in events], bool) & np.isin(timeline.rank, ranks)
    row_of = {rank: row for row, rank in enumerate(ranks)}
    row = np.array([row_of[rank] for rank in timeline.rank[shown].tolist()], np.int64)
    order = np.lexsort((timeline.end_ns[shown], timeline.start_ns[shown], row))
    chosen = np.flatnonzero(shown)[order]
    keys = [(str(events[i].name), events[i].stage, events[i].pipe) for i in chosen.tolist()]
    names = tuple(sorted(set(keys)))
    number = {name: at for at, name in enumerate(names)}
    start = timeline.start_ns[chosen]
    return Track(
        rows=tuple(np.bincount(row, minlength=len(ranks)).tolist()),
        names=names,
        start_ns=start - start.min(initial=start[0] if len(start) else 0),
        took_ns=timeline.end_ns[chosen] - start,
        code=np.array([number[key] for key in keys], np.int64),
        micro=np.array([events[i].micro for i in chosen.tolist()], np.int64),
    )


def packed(found: Track) -> dict[str, object]:
    """For the page: start (as the difference to the event before), length, code and micro-batch, 64-bit floats and
    32-bit integers in this order, each column whole."""
    columns = [
        np.diff(found.start_ns, prepend=0).astype("<f8").tobytes(),
        found.took_ns.astype("<f8").tobytes(),
        found.code.astype("<i4").tobytes(),
        found.micro.astype("<i4").tobytes(),
    ]
    return {
        "events": len(found),
        "rows": list(found.rows),
        "names": [list(name) for name in found.names],
        "span": found.span_ns,
        "columns": deflated(b"".join(columns)),
    }


def lines(timeline: Timeline, ranks: Sequence[int], zero_ns: int) -> dict[str, object]:
    """Memory samples of each rank, (time, bytes) as differences, in the same packing; equal neighbours are one."""
    rows, parts_ns, parts_bytes = [], [], []
    for rank in ranks:
        own = timeline.memory_rank == rank
        when, size = timeline.memory_ns[own] - zero_ns, timeline.memory_bytes[own]
        order = np.argsort(when, kind="stable")
        when, size = when[order], size[order]
        keep = np.diff(size, prepend=-1) != 0
        rows.append(int(keep.sum()))
        parts_ns.append(np.diff(when[keep], prepend=0))
        parts_bytes.append(np.diff(size[keep], prepend=0))
    columns = [np.concatenate(part).astype("<f8").tobytes() for part in (parts_ns, parts_bytes)]
    return {"rows": rows, "columns": deflated(b"".join(columns))}


def heat(values: NDArray[np.float64]) -> dict[str, object]:
    """For the page: a matrix of shares, row by row in thousandths of 16 bits; what is not known is the highest number."""
    thousandths = np.clip(np.nan_to_num(1000 * values, nan=_UNKNOWN), 0, _UNKNOWN).round().astype("<u2")
    return {"rows": values.shape[0], "columns": values.shape[1], "values": deflated(thousandths.tobytes())}


_UNKNOWN = 65535


def busy_of_ranks(timeline: Timeline) -> tuple[list[int], list[int], NDArray[np.float64]]:
    """Returns the ranks, the steps, and for each pair the nanoseconds that the rank was busy; nan where it has none."""
    codes, at = np.unique(timeline.code, return_inverse=True)
    counts = np.array([decode(code).name in BUSY for code in codes.tolist()], bool)
    own = counts[at] if len(codes) else np.zeros(0, bool)
    ranks, row = np.unique(timeline.rank[own], return_inverse=True)
    steps, column = np.unique(timeline.step[own], return_inverse=True)
    found = np.zeros((len(ranks), len(steps)))
    seen = np.zeros_like(found, bool)
    np.add.at(found, (row, column), (timeline.end_ns - timeline.start_ns)[own])
    seen[row, column] = True
    return ranks.tolist(), steps.tolist(), np.where(seen, found, np.nan)


def filled(timeline: Timeline, ranks: Sequence[int], bins: int) -> NDArray[np.float64]:
    """Returns the most bytes that each rank holds in each of so many equal parts of the time."""
    zero, span = int(timeline.start_ns.min()), max(1, timeline.makespan_ns)
    found = np.zeros((len(ranks), bins))
    for row, rank in enumerate(ranks):
        own = timeline.memory_rank == rank
        when, size = timeline.memory_ns[own] - zero, timeline.memory_bytes[own]
        order = np.argsort(when, kind="stable")
        when, size = when[order], size[order]
        part = np.minimum(when * bins // span, bins - 1)
        np.maximum.at(found[row], part, size)
        starts = np.arange(bins) * span / bins
        held = np.searchsorted(when, starts, side="right") - 1  # what is held as a part begins
        found[row] = np.maximum(
            found[row], np.where(held >= 0, size[np.maximum(held, 0)], 0) if len(size) else 0
        )
    return found


def deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def per_row(found: Track, counted: Callable[[str], bool]) -> list[int]:
    """Sums the time that each row spends on the kinds that count.

    Returns: nanoseconds.
    """
    wanted = np.array([counted(kind) for kind, _, _ in found.names], bool)
    took = np.where(wanted[found.code], found.took_ns, 0) if len(found) else found.took_ns
    edges = np.cumsum([0, *found.rows])
    sums = np.concatenate([[0], np.cumsum(took)])
    return [int(sums[high] - sums[low]) for low, high in pairwise(edges.tolist())]
