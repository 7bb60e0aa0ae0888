"""Holds what all rows of a profile have in common: the model, its batches, what reading one costs, how layers run."""

from __future__ import annotations

import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset

from planner.arrays import NS_PER_S
from planner.capture import Captured, capture, check_sizes, check_training
from planner.cluster import name_of
from planner.errors import BadInput
from planner.measure.passes import BackwardSplit, CpuClock, SpatialSplit
from planner.measure.process.protocol import MeasureRequest
from planner.measure.spatial_walk import cut_situations
from planner.measure.specimens import PRECISIONS, Situation, Way, situations
from planner.model import served as serving
from planner.profile import CostKey, SampleCost
from planner.workload import Workload, has_raw, reseed, spared

EXECUTIONS = ("eager", "compiled")
MOST_SAMPLES, SAMPLES_S = 32, 2.0  # that are read to time them, and how long at most
JOINED = (1, 5)  # samples of the batches that they are joined to


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A captured model set up for measuring; a bench gives the rows of every micro-batch."""

    batch_of: Callable[[int], tuple[object, object]]
    captured: Captured
    micros: tuple[int, ...]  # of those asked for, in ascending order
    execution: str
    way: Way
    grids: tuple[tuple[int, ...], ...] = ()  # spatial splits, beside whole samples
    said: str = ""  # what the user is told of the module: that it was not run, or mixes samples
    _found: dict[int, list[Situation]] = field(default_factory=dict, init=False, repr=False)  # by micro-batch

    def batch(self, micro: int) -> Mapping[str, Tensor]:
        """Returns the tensors of one micro-batch by the names of their Values.

        Args: `micro` is the number of samples.
        Raises: BadInput where they are not as large as the model was captured with.
        """
        found = self.captured.batch_values(*self.batch_of(micro))
        for name, tensor in found.items():
            size = self.captured.graph.value[name].bytes(micro)
            if tensor.nbytes != size:
                raise BadInput(
                    f"'{name}' has {tensor.nbytes} bytes for {micro} samples",
                    where="the batch",
                    allowed=f"{size} bytes, as the model was captured with: capture it again",
                )
        return found

    def situations(self, micro: int) -> list[Situation]:
        """Returns the distinct layers on whole samples, then on shards for each grid where layers can be cut.

        Args: `micro` is the number of samples.
        Raises: BadInput where no layer can be computed on a grid.
        """
        if micro not in self._found:
            batch = self.batch(micro)
            found = situations(self.captured, batch, self.way)
            for grid in self.grids:
                found += cut_situations(self.captured, batch, self.way, grid)
            self._found[micro] = found
        return self._found[micro]

    def key(self, situation: Situation, micro: int) -> CostKey:
        """Returns the profile key of a layer in a situation.

        Args: `micro` is the number of whole samples, also where the situation is a shard.
        """
        return CostKey(situation.layer.signature, micro, situation.grid, self.way.precision, self.execution)

    def keys(self) -> list[CostKey]:
        """Returns the keys of all rows, by ascending micro-batch.

        The layers are cut once, at the smallest micro-batch, because the micro-batch does not decide which can be
        cut.
        """
        first = [self.key(situation, self.micros[0]) for situation in self.situations(self.micros[0])]
        return [key._replace(micro=micro) for micro in self.micros for key in first]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Returns which micro-batches are left out and why, in words."""
        found = [f"micro-batch {micro} is left out: {why}" for micro, why in self.captured.left_out.items()]
        return tuple(found or [f"no other micro-batch: {why}" for why in [self.captured.alone] if why])


def bench_of(
    workload: Workload,
    request: MeasureRequest,
    device: str,
    split: BackwardSplit | None,
    spatial: SpatialSplit | None,
) -> Bench:
    """Captures a workload, checks that its graph trains as it does, and returns the bench that measures it.

    Args: `device` is where tensors are made: the CPU where the request names a roofline. `split` and `spatial` run
        backwards in halves and shards as the runtime does; None leaves them out.
    Raises: BadInput for an unknown precision or execution, a grid that cannot be measured, a model that serves none
        of the micro-batches, or one whose forward has a state that the graph would not carry. Micro-batches that it
        does not serve are left out.
    """
    precision, execution, micros = request.precision, request.execution, request.micros
    if precision not in PRECISIONS:
        raise BadInput(f"unknown precision '{precision}'", allowed=", ".join(PRECISIONS))
    if execution not in EXECUTIONS:
        raise BadInput(f"unknown execution '{execution}'", allowed=", ".join(EXECUTIONS))
    if not micros or min(micros) < 1:
        raise BadInput(f"micro-batches {list(micros)}", allowed="one or more numbers, each at least 1")
    for grid in request.grids:
        if not grid or min(grid) < 1:
            raise BadInput(f"spatial split {list(grid)}", allowed="numbers of parts, each at least 1")
        if spatial is None:
            raise BadInput(f"no shards can be executed here: {list(grid)}", allowed="whole samples")
    micros = tuple(sorted(set(micros)))
    captured = capture(workload, micro=micros)
    check_sizes(captured.layout, captured.layout.traced.graph.nodes)
    served = tuple(filter(captured.graph.serves, micros))
    if not served:
        raise BadInput(
            f"micro-batches {list(micros)} are not served",
            where=workload.where,
            allowed=serving(captured.graph),
        )
    said = check_training(captured, workload, samples=min(served))
    way = Way(
        precision=precision, device=device, compiled=execution == "compiled", split=split, spatial=spatial
    )
    return Bench(
        batch_of=workload.batch,
        captured=captured,
        micros=served,
        execution=execution,
        way=way,
        grids=request.grids,
        said=said,
    )


def device_name(device: str) -> str:
    """Returns the name of a device in the catalogue, or the one that it gives itself where it is not there.

    Args: `device` is cpu, cuda or cuda:NUMBER.
    Raises: BadInput where this machine has no such device.
    """
    kind = device.partition(":")[0]
    if kind == "cpu":
        return "cpu"
    if kind == "cuda" and torch.cuda.is_available():
        return name_of(torch.cuda.get_device_name(device))
    known = ["cpu", "roofline:NAME", *(["cuda"] if torch.cuda.is_available() else [])]
    raise BadInput(f"there is no device '{device}' here", allowed=", ".join(known))


def versions() -> dict[str, str]:
    """Returns the versions that a profile records, and the number of threads of torch."""
    return {
        "python": platform.python_version(),
        "shardwright": _version("shardwright"),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def sample_cost(workload: Workload) -> SampleCost | None:
    """Times reading and joining samples of a dataset in this process, by a DataLoader as a rank reads.

    Seeds and generators are counted, which a processor that has waited for a sample is far slower at. The first sample
    opens files, so that it and its batch are left out.

    Returns: None for synthetic samples, and for a dataset that is read by regions.
    Raises: BadInput where the dataset has no samples.
    """
    data: Any = workload.dataset()
    if data is None or getattr(data, "regions", False) is True:
        return None
    if not len(data):
        raise BadInput("dataset() has no samples", where=workload.where)
    samples = _TimedSamples(data, iter(data) if isinstance(data, IterableDataset) else None)
    every = list(range(0, len(data), max(1, len(data) // MOST_SAMPLES))[:MOST_SAMPLES])
    groups = [every[first : first + size] for first, size in _groups(len(every))]
    batches = iter(DataLoader(samples, batch_sampler=groups, collate_fn=workload.collate))
    warm, finish, around = list[float](), list[float](), {size: list[float]() for size in JOINED}
    clock, begun, nbytes = CpuClock(), time.monotonic(), 0
    for group in groups:
        spent_s = sum(samples.cold)
        whole_s = list[float]()
        batch = clock.time(partial(_drawn, batches), whole_s)
        around.setdefault(len(group), []).append(whole_s[0] - (sum(samples.cold) - spent_s))
        nbytes = sum(x.nbytes for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)) // len(group)
        for index in group if samples.every is None else ():
            clock.time(partial(data.__getitem__, index), warm)
            if has_raw(data):
                clock.time(partial(data.finish, data.raw(index)), finish)
        if time.monotonic() - begun > SAMPLES_S:
            break
    each_s, batch_s = _joining(around)
    return SampleCost(
        cold_s=statistics.fmean(samples.cold[1:] or samples.cold),
        warm_s=statistics.fmean(warm[1:] or warm or samples.cold),
        collate_s=each_s,
        sample_bytes=nbytes,
        finish_s=statistics.fmean(finish[1:] or finish) if finish else 0.0,
        batch_s=batch_s,
    )


def _groups(count: int) -> Iterator[tuple[int, int]]:
    """Yields first sample and size of batches: three of one sample, then a larger one, and so on."""
    first = 0
    for number in itertools.count():
        if first >= count:
            return
        size = min(JOINED[number % 4 == 3], count - first)
        yield first, size
        first += size


def _drawn(batches: Iterator[object]) -> object:
    with spared():
        return next(batches)


def _joining(around: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Returns what is done around reading, in seconds: for each sample, and for each batch whatever its size.

    Args: `around` has that time for batches of each size, of which the very first is left out.
    """
    one, many = JOINED
    single = statistics.median(around[one][1:] or around[one])
    if not around[many]:
        return single, 0.0
    each = min(single, max(1 / NS_PER_S, (statistics.median(around[many]) - single) / (many - one)))
    return each, single - each


class _TimedSamples(Dataset[object]):
    """The samples of a dataset, each drawn under a seed of its own, with the seconds that each took."""

    def __init__(self, data: Any, every: Iterator[object] | None) -> None:
        self._data, self.every = data, every
        self.cold: list[float] = []

    def __getitem__(self, index: int) -> object:
        return CpuClock().time(partial(self._read, index), self.cold)

    def _read(self, index: int) -> object:
        reseed(index)
        return next(self.every) if self.every is not None else self._data[index]
