"""Makes the rows of a profile: each distinct layer at each micro-batch, measured on a device or counted by roofline.

Measuring yields events. The process that reads them knows which rows were under way when the measuring process
died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture import opaque_layers
from planner.cluster import Device
from planner.measure.bench import Bench
from planner.measure.footprint import Footprint, footprint
from planner.measure.passes import Specimen, forget_gradients, gradients_of, roots_of, whole_backward
from planner.measure.process.protocol import Begun, Done, Failed, MeasureProgress, RowEvent
from planner.measure.reserves import Reserves
from planner.measure.specimens import Situation, fake_specimen, real_specimen
from planner.measure.timing import (
    VISITS,
    PassTimes,
    Samples,
    Visit,
    clock_of,
    pass_times,
    time_rounds,
    with_halves,
)
from planner.measure.work import Counter
from planner.profile import CostKey, LayerCost, Seconds, seconds

T = TypeVar("T")

GROUP_BYTES = 2**29  # specimens that are measured in rounds together


def counted_rows(bench: Bench, device: Device) -> Iterator[Done]:
    """Yields one row a distinct layer without using the device: bytes as they will be, times by roofline.

    Layers whose operations cannot run on fake tensors are run on real ones to count them.

    Args: `device` has the peak rates.
    """
    as_they_are = opaque_layers(bench.captured.layout.grouping.layer_of)
    for micro in bench.micros:
        batch = bench.batch(micro)
        for situation in bench.situations(micro):
            key = bench.key(situation, micro)
            if bench.captured.graph.index[situation.layer.name] in as_they_are:
                specimen = real_specimen(bench.captured, situation, batch, bench.way)
                yield _done(key, _counted_times(specimen, device), footprint(specimen))
                continue
            with FakeTensorMode(), Reserves():
                specimen = fake_specimen(bench.captured, situation, bench.way)
                yield _done(key, _counted_times(specimen, device), footprint(specimen))


def _counted_times(specimen: Specimen, device: Device) -> PassTimes:
    def price(action: Callable[[], T]) -> tuple[Seconds, T]:
        with Counter() as counter:
            result = action()
        return seconds(counter.work, device), result

    forward, outputs = price(specimen.outputs)
    roots = roots_of(outputs)
    gradients = gradients_of(roots)
    whole, _ = price(lambda: whole_backward(specimen, roots, gradients))
    forget_gradients(specimen)
    halves = whole, whole
    if specimen.has_halves:
        again = roots_of(specimen.outputs(specimen.halves.forward))
        first, halfway = price(lambda: specimen.input_half(again, gradients))
        second, _ = price(lambda: specimen.weight_half(halfway))
        halves = first, second
        forget_gradients(specimen)
    return with_halves(specimen, forward, whole, halves)


def _done(key: CostKey, times: PassTimes, memory: Footprint) -> Done:
    columns = asdict(memory)
    slack_bytes = columns.pop("slack_bytes")
    cost = LayerCost(
        forward=times.forward,
        backward=times.backward,
        input_grad=times.input_grad,
        weight_grad=times.weight_grad,
        **columns,
    )
    return Done(key, cost, slack_bytes)


def measured_rows(
    bench: Bench,
    pending: Sequence[CostKey],
    *,
    seconds_per_row: float,
    alone: bool = False,
) -> Iterator[RowEvent]:
    """Yields events while rows are measured: which ones begin, their progress, and each result or failure.

    All rows are visited several times, one visit after the other. The first gives every row, and later ones give
    rows anew with more rounds in them. A layer that ran out of memory at one micro-batch is not tried at larger ones.

    Args: `pending` are the rows to measure, grouped by micro-batch in ascending order. `seconds_per_row` is the
        time for timing one row. `alone` measures each row by itself, to find the one that ends the process.
    """
    rounds = Rounds(bench, seconds_per_row, alone)
    for visit in VISITS:
        yield from rounds.visit(visit, pending)
        pending = [key for key in pending if key in rounds.samples]


@dataclass
class Rounds:
    """The rounds over the rows of a profile: what was timed so far, and what did not fit."""

    bench: Bench
    seconds_per_row: float
    alone: bool
    samples: dict[CostKey, list[Samples]] = field(default_factory=dict)  # one entry a visit
    kept: dict[CostKey, Footprint] = field(default_factory=dict)
    too_large: dict[CostKey, int] = field(
        default_factory=dict
    )  # without the micro-batch, which is what it leads to
    share: float = 0.0  # of all the time, at the end of the last group

    def visit(self, visit: Visit, pending: Sequence[CostKey]) -> Iterator[RowEvent]:
        """Yields the events of one visit.

        Args: `pending` are the rows to visit, grouped by micro-batch in ascending order.
        """
        each = visit.share / max(1, len(pending))
        for micro, keys in groupby(pending, key=lambda key: key.micro):
            wanted = set(keys)
            found = {self.bench.key(x, micro): x for x in self.bench.situations(micro)}
            batch = self.bench.batch(micro)
            rows = {key: x for key, x in found.items() if key in wanted}
            for key in list(rows):
                least = self.too_large.get(key._replace(micro=0), micro + 1)
                if least <= micro:
                    yield Failed(key, f"did not fit at micro-batch {least} already")
                    del rows[key]
            for group in _groups(rows, 0 if self.alone else GROUP_BYTES):
                yield from self._group(visit, group, batch, each)
                self.share += each * len(group)

    def _group(
        self, visit: Visit, group: Mapping[CostKey, Situation], batch: Mapping[str, Tensor], each: float
    ) -> Iterator[RowEvent]:
        again = all(key in self.samples for key in group)
        if not again:
            yield Begun(tuple(group))
        try:
            yield from self._timed(visit, group, batch, each)
            return
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # The exception is gone from here on, and with it the tensors that its frames held.
        if again:
            return  # it fitted before: what was timed then stands
        if len(group) > 1:
            for key, situation in group.items():
                yield from self._group(visit, {key: situation}, batch, each)
            return
        (key,) = group
        self.too_large.setdefault(key._replace(micro=0), key.micro)
        yield Failed(key, "out of memory")

    def _timed(
        self, visit: Visit, group: Mapping[CostKey, Situation], batch: Mapping[str, Tensor], each: float
    ) -> Iterator[RowEvent]:
        specimens = [real_specimen(self.bench.captured, x, batch, self.bench.way) for x in group.values()]
        for key, specimen in zip(group, specimens, strict=True):
            if key not in self.kept:
                self.kept[key] = footprint(specimen)
        timed = [Samples() for _ in specimens]
        budget_s = self.seconds_per_row * len(group) * visit.share
        for share in time_rounds(specimens, timed, clock_of(self.bench.way.device), budget_s, visit):
            yield MeasureProgress(self.share + share * each * len(group))
        for key, specimen, row in zip(group, specimens, timed, strict=True):
            visits = self.samples.setdefault(key, [])
            visits.append(row)
            yield _done(key, pass_times(specimen, visits), self.kept[key])


def _groups(rows: Mapping[CostKey, Situation], limit: int) -> Iterator[dict[CostKey, Situation]]:
    group: dict[CostKey, Situation] = {}
    size = 0
    for key, situation in rows.items():
        own = sum(shape.bytes for shape in (*situation.inputs, *situation.outputs))
        if group and size + own > limit:
            yield group
            group, size = {}, 0
        group[key] = situation
        size += own
    if group:
        yield group


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
