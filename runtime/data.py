"""Which samples a step is made of, and the tensors of those that this rank consumes.

The run is one endless stream of samples: epoch after epoch, each in the permutation that (seed, epoch) gives, or
the synthetic samples 0, 1, 2, ..., each a function of (seed, index). Micro-batch g of a step (numbered over all
replicas) takes the g-th `micro` samples of the step's share of the stream. So every sample comes exactly once an
epoch whatever the plan, and where a run stands is one number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from planner.errors import BadInput
from planner.model import ModelGraph
from planner.workload import Workload

Sample = object
Pair = tuple[object, object]
Rows = tuple[tuple[int, int, int], ...]  # dimension, first row, end
Region = tuple[tuple[int, int], ...]  # first row and end along every spatial dimension of a sample


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Positions in the endless stream to indices of samples."""

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
    """A seed of its own for every index; 64-bit odd multipliers, as in splitmix."""
    x = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    x ^= x >> 31
    return (x * 0x94D049BB133111EB & (2**64 - 1)) >> 1


class Synthetic(Dataset[Sample]):
    """Sample i is the workload's batch of one, drawn under a seed of its own."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload, self._seed = workload, seed
        one, two = (pytree.tree_leaves(self._draw(n, 0)) for n in (1, 2))
        self._dims = [_growing_dim(a, b) for a, b in zip(one, two, strict=True)]

    def __getitem__(self, index: int) -> Sample:
        return self._draw(1, index)

    def _draw(self, n: int, index: int) -> Sample:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(self._seed, index))
            return self._workload.batch(n)

    def join(self, samples: list[Sample]) -> Pair:
        """Batches of one into a batch, leaf by leaf."""
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
    """Samples by (position in the stream, index), each drawn under a seed of its position: augmented alike by all who
    share it, whatever the plan and wherever it is resumed. A dataset that says `regions = True` is asked for a part
    of a sample: `dataset[index, region]`."""

    def __init__(self, data: object, seed: int, region: Region) -> None:
        self._data, self._seed = data, seed
        asks = bool(region) and getattr(data, "regions", False) is True
        self._region = tuple(slice(*rows) for rows in region) if asks else None

    def __getitem__(self, drawn: tuple[int, int]) -> Sample:
        position, index = drawn
        with seeded(mix(self._seed, position)):
            return self._data[index if self._region is None else (index, self._region)]  # type: ignore[index]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The generators of torch, numpy and Python start from this seed, and go on afterwards as if nothing had been."""
    before, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(arrays)


class Batches:
    """Iterates over steps; each is {micro-batch: {Value: tensor}} for what this rank reads."""

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
        """From the sample at which the run stands; for ever."""
        if not self._wanted.micros:
            while True:
                yield {}
        loader: DataLoader[Sample] = DataLoader(
            self._data,
            batch_sampler=_Sampler(self._indices(first_sample)),  # type: ignore[arg-type]
            collate_fn=self._collate,
            num_workers=self._workers,
            pin_memory=self._pinned,
            prefetch_factor=4 if self._workers else None,
            generator=torch.Generator(),  # leaves the global one alone
        )
        pairs = iter(loader)
        while True:
            yield {micro: self._read(*next(pairs)) for micro in self._wanted.micros}

    def _read(self, inputs: object, targets: object) -> dict[str, Tensor]:
        """On the host; a stage takes what it reads to its device when it reads it."""
        values = {n: t for n, t in self._values_of(inputs, targets).items() if n in self._wanted.values}
        if self._graph is not None:
            check_shapes(values, self._graph, self._wanted.micro, self._wanted.parts)
        return {name: part_of(tensor, self._wanted.parts.get(name, ())) for name, tensor in values.items()}

    def _indices(self, sample: int) -> Iterator[list[tuple[int, int]]]:
        wanted = self._wanted
        while True:
            for number in wanted.micros:
                start = sample + (wanted.first + number) * wanted.micro
                yield [(at, self.stream.index(at)) for at in range(start, start + wanted.micro)]
            sample += wanted.step_samples


def part_of(tensor: Tensor, rows: Rows) -> Tensor:
    """A part of what was read whole; what was read as a part stays."""
    if is_part(tensor, rows):
        return tensor
    for dim, first, end in rows:
        tensor = tensor.narrow(dim, first, end - first)
    return tensor.contiguous()


def is_part(tensor: Tensor, rows: Rows) -> bool:
    return all(dim < tensor.ndim and tensor.shape[dim] == end - first for dim, first, end in rows)


def check_shapes(
    values: Mapping[str, Tensor], graph: ModelGraph, micro: int, parts: Mapping[str, Rows] | None = None
) -> None:
    """A graph was captured for one shape of sample; another would be an error deep inside, or silently wrong."""
    for name, tensor in values.items():
        row, rows = graph.value[name], (parts or {}).get(name, ())
        kind = str(tensor.dtype).removeprefix("torch.")
        shape = list(tensor.shape)
        for dim, _, _ in rows if is_part(tensor, rows) else ():
            shape[dim] = row.shape[dim]
        differing = sum(a != b for a, b in zip(shape, row.shape, strict=False))
        size = prod(shape) * tensor.element_size()
        same = len(shape) == len(row.shape) and differing <= 1 and size == row.bytes(micro)
        if kind != row.dtype or not same:
            raise BadInput(
                f"'{name}' of a micro-batch of {micro} is {kind}{list(tensor.shape)}",
                where="the data",
                allowed=f"{row.dtype}{list(row.shape)} a sample, as the model was captured with",
            )


class _Sampler:
    def __init__(self, indices: Iterable[Sequence[tuple[int, int]]]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Sequence[tuple[int, int]]]:
        return iter(self._indices)
