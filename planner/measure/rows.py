"""Makes the rows of a profile: each distinct layer at each micro-batch, measured on a device or counted by roofline.

Measuring yields events. The process that reads them knows which rows were under way when the measuring process
died. A roofline counts what the passes of a layer ask of a device, operation by operation; fake tensors are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from planner.capture import opaque_layers, storage_of
from planner.cluster import Device
from planner.measure.bench import Bench
from planner.measure.footprint import Footprint, Reserves, footprint
from planner.measure.passes import (
    Specimen,
    clock_of,
    forget_gradients,
    gradients_of,
    roots_of,
    whole_backward,
)
from planner.measure.process.protocol import Begun, Done, Failed, MeasureProgress, RowEvent
from planner.measure.specimens import Situation, fake_specimen, real_specimen
from planner.measure.timing import (
    AGAIN,
    VISITS,
    PassTimes,
    Samples,
    Visit,
    pass_times,
    time_rounds,
    with_halves,
)
from planner.profile import CostKey, LayerCost, OperationWork, Seconds, seconds

T = TypeVar("T")
aten = torch.ops.aten

GROUP_BYTES = 2**29  # specimens that are measured in rounds together


def counted_rows(bench: Bench, device: Device) -> Iterator[Done]:
    """Yields one row a distinct layer without using the device: bytes as they will be, times by roofline.

    Layers whose operations cannot run on fake tensors are run on real ones to count them.

    Args: `device` has the peak rates.
    """
    as_they_are = opaque_layers(bench.captured.layout.grouping.layer_of)
    for micro in bench.micros:
        found = bench.situations(micro)
        batch = bench.batch(micro) if as_they_are else {}
        for situation in found:
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
    bench: Bench, pending: Sequence[CostKey], *, seconds_per_row: float, alone: bool = False
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
    for visit in AGAIN:
        pending = [key for key in pending if rounds.times[key].doubtful]
        yield from rounds.visit(visit, pending)


@dataclass
class Rounds:
    """The rounds over the rows of a profile: what was timed so far, and what did not fit."""

    bench: Bench
    seconds_per_row: float
    alone: bool
    samples: dict[CostKey, list[Samples]] = field(default_factory=dict)  # one entry a visit
    times: dict[CostKey, PassTimes] = field(default_factory=dict)  # by all visits so far
    kept: dict[CostKey, Footprint] = field(default_factory=dict)
    too_large: dict[CostKey, int] = field(default_factory=dict)  # at micro 0: the least that did not fit
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
            yield MeasureProgress(min(1.0, self.share + share * each * len(group)))
        for key, specimen, row in zip(group, specimens, timed, strict=True):
            visits = self.samples.setdefault(key, [])
            visits.append(row)
            self.times[key] = pass_times(specimen, visits)
            yield _done(key, self.times[key], self.kept[key])


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


_PRECISION = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_FREE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach}
# These read the rows that they are asked for, not the whole table.
_GATHERS = {aten.embedding, aten.gather, aten.index, aten.index_select}


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    shapes = grad.shape, query.shape, key.shape, value.shape
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _recurrence(frames: Tensor, input_weight: Tensor, hidden_weight: Tensor, *_: object) -> int:
    steps = prod(frames.shape[:-1])
    return 2 * steps * (input_weight.numel() + hidden_weight.numel())


# Kernels of the CPU that torch's own table does not know.
_FORMULAS: dict[object, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mkldnn_rnn_layer: _recurrence,
    aten.mkldnn_rnn_layer_backward: lambda *args: 2 * _recurrence(*args[:3]),
}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that records the work of every operation executed under it; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[OperationWork] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        work = _work(function, args, kwargs, result)
        if work is not None:
            self.work.append(work)
        return result


def _work(
    function: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], result: object
) -> OperationWork | None:
    packet = function._overloadpacket
    read, written = _tensors((args, kwargs)), _tensors(result)
    if packet in _FREE or not written or _is_view(function, read, written):
        return None
    if packet in _GATHERS:
        read = written + read[1:]
    return OperationWork(
        flops=_flops(packet, args, kwargs, result),
        traffic_bytes=sum(x.nbytes for x in (*read, *written)),
        precision=_PRECISION.get(written[0].dtype, "fp32"),
    )


def _tensors(tree: object) -> list[Tensor]:
    """Returns the tensors of a tree; indices and values stand for a sparse one."""
    found = [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
    return [y for x in found for y in ((x._indices(), x._values()) if x.layout == torch.sparse_coo else (x,))]


def _flops(packet: object, args: tuple[object, ...], kwargs: Mapping[str, object], result: object) -> int:
    if packet in _FORMULAS:
        return _FORMULAS[packet](*args)
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0


def _is_view(function: torch._ops.OpOverload, read: list[Tensor], written: list[Tensor]) -> bool:
    sources = {storage_of(x) for x in read}
    return not function._schema.is_mutable and all(storage_of(x) in sources for x in written)
