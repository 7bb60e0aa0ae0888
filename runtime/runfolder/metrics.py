"""Joins the metrics that ranks write of each step, and tells whether steps keep to the prediction.

Nothing here needs torch, so that a run is shown at once. `recent` reads the ends of the files alone, however long a
run has gone on.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NotRequired, TypedDict, cast

from planner.errors import BadInput
from planner.files import open_regular, whole_lines
from planner.timeline import WARM_UP_STEPS
from runtime.runfolder.job import MOST
from runtime.runfolder.paths import Paths

Machine = tuple[float, float, float, float]  # processor seconds, of busy seconds; load; cores

TAIL_BYTES, LEAST_TAIL_BYTES = 8 * 2**20, 2**17  # of all files, and of each: more than a thousand steps
MOST_MACHINES = 1000  # steps of a rank
ENOUGH_SHARE = 0.8  # of a processor: less is a busy machine; two ranks on two idle cores have 0.88
LEAST_BUSY_S = 0.02  # the clock of a thread tells less badly
MOST_BYTES = 80 * 2**20  # of one rank's file, which is thinned out before
JUDGED_STEPS = 10  # the last steps, whose median is compared with the bars of the prediction
OPTIONAL = ("samples", "learning_rate", "gradient_norm", "waited_s")
LOSS = "loss:0"
COUNT = "loss:1"

# Micro-batch over all replicas -> loss and, where it counts, its count.
Losses = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class StepMetrics:
    """The loss and the duration of one step of the whole run."""

    loss: float
    seconds: float  # of the slowest rank that has a share of the loss
    samples_per_second: float = math.nan
    learning_rate: float = math.nan
    gradient_norm: float = math.nan  # before clipping; where something needed it


def mean_loss(losses: Losses) -> float:
    """Returns the mean loss of a whole step.

    Losses are summed in the order of micro-batches, so that the mean is the same under every plan.
    Args: `losses` has every micro-batch of all replicas. With counts, the mean is weighted by them.
    """
    rows = [losses[micro] for micro in sorted(losses)]
    total = sum(row[LOSS] for row in rows)
    counts = [row[COUNT] for row in rows if COUNT in row]
    whole = sum(counts) if counts else len(rows)
    return total / whole if whole else float("nan")


def steps_of(paths: Paths) -> dict[int, StepMetrics]:
    """Returns the steps that every rank with a loss has finished, by number.

    A step may be done again after a restart, perhaps under another plan. Its last time counts.
    Args: `paths` is the run folder; the run may still go on.
    Returns: step -> loss and seconds, in the order of steps.
    """
    found = {step: row for _, step, row in sorted(MetricLines(paths).complete(), key=lambda told: told[:2])}
    return dict(sorted(found.items()))


def losses_of(paths: Paths) -> dict[int, float]:
    """Returns the mean loss of each finished step: step -> loss."""
    return {step: found.loss for step, found in steps_of(paths).items()}


@dataclass(frozen=True, kw_only=True)
class Recent:
    """The last steps of a run, of a run of some thousand steps all."""

    done: int  # the last step of all
    loss: float | None
    seconds: tuple[float, ...]  # of the steps that count: those of the last start, without its warm-up
    machine: str  # a sentence where the machine was busy with other work
    waits: tuple[tuple[float, float], ...] = ()  # steps of the rank that waited most: seconds, waited


def recent(paths: Paths) -> Recent:
    """Returns the last steps of a run from the ends of its metrics files.

    Args: `paths` is the run folder; the run may still go on.
    """
    share = max(TAIL_BYTES // max(1, len(paths.all_metrics())), LEAST_TAIL_BYTES)
    lines = MetricLines(paths, last_bytes=share)
    found = sorted(lines.complete(), key=lambda told: told[:2])
    if not found:
        lines = MetricLines(paths)
        found = sorted(lines.complete(), key=lambda told: told[:2])
    started = found[-1][0] if found else 0
    steps = {step: row for _, step, row in found}
    own = [row.seconds for generation, _, row in found if generation == started]
    done = max(steps, default=0)
    return Recent(
        done=done,
        loss=steps[done].loss if steps else None,
        seconds=tuple(own[min(WARM_UP_STEPS, max(0, len(own) - 1)) :]),
        machine=_busy(lines.machines),
        waits=tuple(max(lines.waits.values(), default=(), key=lambda row: sum(x for _, x in row))),
    )


def _busy(machines: Mapping[Path, Collection[tuple[int, Machine]]]) -> str:
    """Says that other work took processors from a run; empty where it did not, or the metrics do not tell.

    A rank that computes on an idle machine has a processor to itself. Steps of warm-up are left out, as everywhere.
    """
    started = max((row[0] for rows in machines.values() for row in rows), default=0)
    shares: list[float] = []
    latest: Machine | None = None
    for rows in machines.values():
        own = [machine for generation, machine in rows if generation == started][WARM_UP_STEPS:]
        if own and (busy_s := sum(row[1] for row in own)) > LEAST_BUSY_S:
            shares.append(min(1.0, sum(row[0] for row in own) / busy_s))
            latest = own[-1]
    if latest is None or (share := median(shares)) > ENOUGH_SHARE:
        return ""
    _, _, load, cores = latest
    return (
        f"the machine was busy: while ranks computed, each had {share:.0%} of a processor (load {load:.1f} on "
        f"{cores:g} cores); on an idle machine steps are shorter"
    )


@dataclass
class _Try:
    micros: int
    losses: dict[int, dict[str, float]]
    seconds: float
    samples: float = math.nan
    rate: float = math.nan
    norm: float = math.nan

    def metrics(self) -> StepMetrics:
        samples_per_second = self.samples / self.seconds if self.seconds else math.nan
        return StepMetrics(mean_loss(self.losses), self.seconds, samples_per_second, self.rate, self.norm)


class _Row(TypedDict):
    step: int
    generation: int
    micros: int
    seconds: float
    losses: dict[str, dict[str, float]]
    machine: list[float]  # absent where the device is no processor of the host
    samples: NotRequired[int]  # of the step, over all replicas
    learning_rate: NotRequired[float]
    gradient_norm: NotRequired[float]
    waited_s: NotRequired[float]  # for samples


class MetricLines:
    """The metrics of all ranks of a run, read as ranks write them."""

    def __init__(self, paths: Paths, last_bytes: int = MOST_BYTES) -> None:
        """Begins at the start of the files, or so many bytes before the ends that they have now."""
        self._paths = paths
        self._read: dict[Path, int] = {path: _last(path, last_bytes) for path in paths.all_metrics()}
        self.machines: dict[
            Path, deque[tuple[int, Machine]]
        ] = {}  # of the last steps, with the start of the run
        self.waits: dict[Path, deque[tuple[float, float]]] = {}  # of the last steps of ranks: seconds, waited
        self.times: dict[Path, deque[tuple[int, float]]] = {}  # of the last steps of ranks: number, seconds
        self._tries: dict[tuple[int, int], _Try] = {}  # by generation and step
        self._files: dict[Path, int] = {}  # as the file system numbers them
        self._latest: dict[Path, tuple[int, int]] = {}

    def complete(self) -> Iterator[tuple[int, int, StepMetrics]]:
        """Yields the steps that have become complete since the last call.

        Yields: the generation (how many starts came before), the step, and its metrics.
        """
        for path in self._paths.all_metrics():
            for row in self._rows(path):
                if (machine := row.get("machine")) is not None:
                    told = self.machines.setdefault(path, deque(maxlen=MOST_MACHINES))
                    told.append((row["generation"], (machine[0], machine[1], machine[2], machine[3])))
                if (waited_s := row.get("waited_s")) is not None:
                    told_waits = self.waits.setdefault(path, deque(maxlen=MOST_MACHINES))
                    told_waits.append((row["seconds"], waited_s))
                taken = self.times.setdefault(path, deque(maxlen=MOST_MACHINES))
                taken.append((row["step"], row["seconds"]))
                if row["losses"]:
                    self._add(row)
        for key in [key for key, one in self._tries.items() if len(one.losses) == one.micros]:
            one = self._tries.pop(key)
            yield *key, one.metrics()

    def _add(self, row: _Row) -> None:
        key = row["generation"], row["step"]
        one = self._tries.setdefault(key, _Try(row["micros"], {}, 0.0))
        one.losses.update({int(micro): losses for micro, losses in row["losses"].items()})
        one.seconds = max(one.seconds, row["seconds"])
        one.samples = row.get("samples", one.samples)
        one.rate, one.norm = row.get("learning_rate", one.rate), row.get("gradient_norm", one.norm)

    def _rows(self, path: Path) -> Iterator[_Row]:
        """Yields the new whole lines of one rank's file.

        A line that is still being written is left for the next call. A line that its rank never finished is
        skipped.
        """
        seen = self._seen_again(path)
        for line in whole_lines(path, start=self._read.get(path, 0), max_bytes=MOST_BYTES):
            self._read[path] = self._read.get(path, 0) + len(line)
            row = _row(line, path)
            if row is not None and (key := (row["generation"], row["step"])) > seen:
                self._latest[path] = key
                yield row

    def _seen_again(self, path: Path) -> tuple[int, int]:
        """Begins anew with a file that its rank has thinned out, and returns the last step of it that was read before."""
        with suppress(OSError):
            file = path.stat().st_ino
            if self._files.setdefault(path, file) != file:
                self._files[path], self._read[path] = file, 0
                return self._latest.get(path, (-1, -1))
        return -1, -1


def _last(path: Path, last_bytes: int) -> int:
    """Returns where the first whole line of the last bytes of a file begins."""
    with suppress(OSError), open_regular(path) as file:
        start = file.seek(0, 2) - last_bytes
        if start > 0:
            file.seek(start)
            return start + len(file.readline())
    return 0


def _row(line: bytes, path: Path) -> _Row | None:
    """Returns the metrics in a line, None where a rank was ended in the middle of it.

    Raises: BadInput where the line is whole and holds anything but metrics.
    """
    try:
        row = json.loads(line)
        right = all(is_right(row[name]) for name, is_right in _RIGHT.items())
        if right and all(_number(row.get(name, 0.0)) for name in OPTIONAL) and _machine(row.get("machine")):
            return cast(_Row, row)
    except RecursionError:
        pass
    except ValueError:
        return None
    except (TypeError, LookupError):
        pass
    raise BadInput("holds a line that is no step", where=str(path), allowed=f"objects of {', '.join(_RIGHT)}")


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _number(value: object) -> bool:
    return type(value) is float or _whole(value)


def _losses(value: object) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,12}", micro) and _number(row[LOSS]) and _number(row.get(COUNT, 1.0))
        for micro, row in value.items()
    )


def _machine(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and len(value) == 4 and all(_number(x) and 0 <= x <= MOST for x in value)
    )


_RIGHT: Mapping[str, Callable[[object], bool]] = {
    "step": _whole,
    "generation": _whole,
    "micros": _whole,
    "seconds": lambda value: _number(value) and 0 <= value <= MOST,  # type: ignore[operator]
    "losses": _losses,
}
