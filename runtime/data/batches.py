"""The samples that a step is made of, and the tensors of those that this rank consumes.

The run is one endless stream of samples: epoch after epoch, each in the permutation that (seed, epoch) gives,
or the synthetic samples 0, 1, 2, ..., each a function of (seed, index). Micro-batch g of a step (numbered
over all replicas) takes the g-th `micro` samples of the step's share of the stream. So every sample comes
exactly once an epoch whatever the plan, and where a run stands is one number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from planner.errors import BadInput, ShardwrightError
from planner.model import ModelGraph
from planner.workload import Workload, where_raised
from runtime.data.regions import Needed, Region, Rows, check_shapes, part_of, settled

Sample = object
Pair = tuple[object, object]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The endless stream of samples: a position in it gives the index of a sample."""

    seed: int
    length: int | None  # of the dataset; None: synthetic, an index for every position

    def index(self, position: int) -> int:
        if self.length is None:
            return position
        epoch, place = divmod(position, self.length)
        return int(permutation(self.seed, epoch, self.length)[place])


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, length: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(mix(seed, epoch)))


def mix(seed: int, index: int) -> int:
    """Returns a seed of its own for every index, of at most 63 bits; 64-bit odd multipliers, as in splitmix."""
    x = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    x ^= x >> 31
    return (x * 0x94D049BB133111EB & (2**64 - 1)) >> 1


class Synthetic(Dataset[Sample]):
    """A dataset for workloads without one: each sample is the workload's batch of one, under the seed of who asks."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        with seeded(mix(seed, 0)):
            one, two = (pytree.tree_leaves(workload.batch(n)) for n in (1, 2))
        self._dims = [_growing_dim(a, b) for a, b in zip(one, two, strict=True)]

    def __getitem__(self, index: int) -> Sample:
        return self._workload.batch(1)

    def join(self, samples: list[Sample]) -> Pair:
        """Joins batches of one into a batch, leaf by leaf; what does not grow with the batch is the first sample's."""
        leaves = zip(*(pytree.tree_leaves(sample) for sample in samples), strict=True)
        joined = [
            parts[0] if dim is None else torch.cat(parts, dim)
            for parts, dim in zip(leaves, self._dims, strict=True)
        ]
        inputs, targets = pytree.tree_unflatten(joined, pytree.tree_structure(samples[0]))
        return inputs, targets


def _growing_dim(one: object, two: object) -> int | None:
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return None
    return next((d for d in range(one.ndim) if one.shape[d] != two.shape[d]), None)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The micro-batches of a step that a rank reads, as numbers within its replica."""

    micros: tuple[int, ...]
    first: int  # number over all replicas of the replica's micro-batch 0
    micro: int  # samples of each
    step_samples: int  # of all replicas
    values: frozenset[str]  # of the batch
    parts: Mapping[str, Rows] = field(default_factory=dict)  # of Values that this rank takes a part of
    region: Region = ()  # of each sample, that this rank reads where it may


class Drawn(Dataset[Sample]):
    """Samples by (position in the stream, index), each drawn under a seed of its position, whatever the plan.

    A dataset that says `regions = True` is asked for a part of a sample: `dataset[index, region]`.
    """

    def __init__(self, data: object, seed: int, region: Region) -> None:
        self._data, self._seed = data, seed
        self.region = region if getattr(data, "regions", False) is True else ()

    def __getitem__(self, drawn: tuple[int, int]) -> tuple[int, Sample]:
        """Returns the index of a sample, for messages about it, and the sample."""
        position, index = drawn
        asked = (index, tuple(slice(*rows) for rows in self.region)) if self.region else index
        with seeded(mix(self._seed, position)):
            try:
                return index, self._data[asked]  # type: ignore[index]
            except ShardwrightError:
                raise
            except Exception as error:
                raise BadInput(
                    f"sample {index} raised {type(error).__name__}: {error}",
                    where=_place(error, "dataset()"),
                ) from error

    def whole(self) -> Drawn:
        """Returns the same samples read whole, without a region."""
        return Drawn(self._data, self._seed, ())


@dataclass(frozen=True)
class Joined:
    """The collation of numbered samples to a batch, with their numbers."""

    collate: Callable[[list[Sample]], Pair]

    def __call__(self, numbered: list[tuple[int, Sample]]) -> tuple[list[int], Pair]:
        numbers, samples = [number for number, _ in numbered], [sample for _, sample in numbered]
        try:
            return numbers, self.collate(samples)
        except Exception as error:  # the user's own, or that of torch
            what = error.what if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
            place = error.where if isinstance(error, BadInput) else _place(error, "collate()")
            raise BadInput(
                f"samples {listed(numbers)} do not make a batch: {what}{_odd(numbered)}", where=place
            ) from error


def _odd(numbered: Sequence[tuple[int, Sample]]) -> str:
    """Returns words for the first sample that is not like the one before; empty where all are alike."""
    kinds = [[_kind(leaf) for leaf in pytree.tree_leaves(sample)] for _, sample in numbered]
    for (number, _), kind, last in zip(numbered[1:], kinds[1:], kinds, strict=False):
        if kind != last:
            return f"; sample {number} is {', '.join(kind)}, the one before {', '.join(last)}"
    return ""


def _place(error: BaseException, function: str) -> str:
    """Returns the user's own line where an error was raised, or else the function that was called."""
    found = where_raised(error, function)
    return function if found.startswith(__file__) else found


def _kind(leaf: object) -> str:
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch, numpy and Python, and puts their generators back afterwards as if nothing had been.

    Without an accelerator torch.manual_seed would keep each call, with a traceback, for devices that never come.
    """
    before, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(arrays)


class Batches:
    """The batches of a run, step by step: {micro-batch: {Value: tensor}} for what this rank reads."""

    def __init__(
        self,
        workload: Workload,
        wanted: Wanted,
        values_of: Callable[[object, object], dict[str, Tensor]],
        *,
        seed: int,
        graph: ModelGraph | None = None,
        pinned: bool = False,
        workers: int = 0,
    ) -> None:
        """Opens the workload's dataset, or draws synthetic samples where it has none.

        Args: `values_of` takes inputs and targets to tensors by Value; `graph` is to check shapes by.
        """
        data = workload.dataset()
        self._graph = graph
        self._wanted, self._values_of, self._pinned, self._workers = wanted, values_of, pinned, workers
        self._collate: Callable[[list[Sample]], Pair]
        length: int | None
        if data is None:
            made = Synthetic(workload, seed)
            self._data, self._collate, length = Drawn(made, seed, ()), made.join, None
        else:
            self._data, self._collate = Drawn(data, seed, wanted.region), workload.collate
            length = len(data)  # type: ignore[arg-type]
        if length == 0:
            raise BadInput("dataset() has no samples", where=workload.where)
        self.stream = Stream(seed=seed, length=length)

    def steps(self, first_sample: int) -> Iterator[dict[int, Mapping[str, Tensor]]]:
        """Yields the tensors of one step after the other, for ever.

        Args: `first_sample` is the position in the stream at which the run stands.
        Yields: {micro-batch: {Value: tensor on the host}}; empty for a rank that reads nothing.
        """
        if not self._wanted.micros:
            while True:
                yield {}
        if self._data.region and self._graph is not None:
            self._data = self._settled(next(self._indices(first_sample)), self._graph)
        pairs = iter(self._loader(self._data, self._indices(first_sample), self._workers))
        while True:
            yield {micro: self._named(*next(pairs)) for micro in self._wanted.micros}

    def _loader(
        self, data: Drawn, indices: Iterable[list[tuple[int, int]]], workers: int
    ) -> DataLoader[Sample]:
        return DataLoader(
            data,
            batch_sampler=_Sampler(indices),  # type: ignore[arg-type]
            collate_fn=Joined(self._collate),
            num_workers=workers,
            pin_memory=self._pinned,
            prefetch_factor=4 if workers else None,
            generator=torch.Generator(),  # leaves the global one alone
        )

    def _settled(self, indices: list[tuple[int, int]], graph: ModelGraph) -> Drawn:
        """Returns the samples as they are read here: by the region where all that comes so can be used,
        otherwise whole."""

        def read(data: Drawn) -> dict[str, Tensor]:
            # in a process of its own where others will read: what a dataset opens is not to be shared with them
            _, pair = next(iter(self._loader(data, [indices], min(self._workers, 1))))
            return self._chosen(*pair)

        wanted, region = self._wanted, self._data.region
        needed = Needed(graph=graph, micro=wanted.micro, parts=wanted.parts, region=region)
        by_region = settled(needed, lambda: read(self._data), lambda: read(self._data.whole()))
        return self._data if by_region else self._data.whole()

    def _chosen(self, inputs: object, targets: object) -> dict[str, Tensor]:
        return {n: t for n, t in self._values_of(inputs, targets).items() if n in self._wanted.values}

    def _named(self, numbers: Sequence[int], pair: Pair) -> dict[str, Tensor]:
        try:
            return self._read(*pair)
        except BadInput as error:
            samples = f"samples {listed(numbers)}"
            where = f"{error.where}, of {samples}" if error.where else samples
            raise BadInput(error.what, where=where, allowed=error.allowed) from error

    def _read(self, inputs: object, targets: object) -> dict[str, Tensor]:
        """Returns a batch's tensors on the host; a stage takes what it reads to its device when it reads it."""
        values, wanted, region = self._chosen(inputs, targets), self._wanted, self._data.region
        if self._graph is not None:
            needed = Needed(graph=self._graph, micro=wanted.micro, parts=wanted.parts, region=region)
            check_shapes(values, needed)
        return {name: part_of(x, wanted.parts.get(name, ()), region) for name, x in values.items()}

    def _indices(self, sample: int) -> Iterator[list[tuple[int, int]]]:
        wanted = self._wanted
        while True:
            for number in wanted.micros:
                start = sample + (wanted.first + number) * wanted.micro
                yield [(at, self.stream.index(at)) for at in range(start, start + wanted.micro)]
            sample += wanted.step_samples


class _Sampler:
    def __init__(self, indices: Iterable[Sequence[tuple[int, int]]]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Sequence[tuple[int, int]]]:
        return iter(self._indices)
