"""The samples that a step is made of, and the tensors of those that this rank consumes.

The run is one endless stream of samples (`stream.py`), or the synthetic samples 0, 1, 2, ..., each a function of
(seed, index). Micro-batch g of a step (numbered over all replicas) takes the g-th `micro` samples of the step's share
of the stream. So every sample comes exactly once an epoch whatever the plan, and where a run stands is one number.
An evaluation goes over its dataset once, in order (`once`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count, repeat

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset

from planner.errors import BadInput, ShardwrightError
from planner.model import ModelGraph
from planner.workload import Workload, reseed, spared, where_raised
from runtime.data.regions import (
    ByValue,
    Needed,
    Region,
    Rows,
    check_shapes,
    listed,
    odd_one,
    part_of,
    received,
    settled,
)
from runtime.data.stream import (
    ByPosition,
    Flowing,
    Pass,
    Read,
    Stream,
    Synthetic,
    length_of,
    mix,
    passes,
    stream_of,
)

Sample = object
Keeper = Callable[[object, Region, "Wanted", Stream, int], ByPosition | None]
Pair = tuple[object, object]


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
        self.data, self._seed = data, seed
        self.region = region if getattr(data, "regions", False) is True else ()

    def _at(self, position: int, index: int) -> Sample:
        if isinstance(self.data, ByPosition):
            return self.data.at(position, index)
        asked = (index, tuple(slice(*rows) for rows in self.region)) if self.region else index
        return self.data[asked]  # type: ignore[index]

    def __getitem__(self, drawn: tuple[int, int]) -> Read:
        """Returns a sample, drawn under the seed of its position; whoever asks puts the generators back."""
        position, index = drawn
        reseed(seed := mix(self._seed, position))
        try:
            return Read(seed, index, self._at(position, index))
        except ShardwrightError:
            raise
        except Exception as error:
            raise BadInput(
                f"sample {index} raised {type(error).__name__}: {error}",
                where=_place(error, "dataset()"),
            ) from error

    def whole(self) -> Drawn:
        """Returns the same samples read whole, without a region."""
        return Drawn(self.data, self._seed, ())


@dataclass(frozen=True)
class Joined:
    """The collation of samples to a batch, with their numbers; it may draw, too, under the first sample's seed."""

    collate: Callable[[list[Sample]], Pair]
    by_value: bool = False  # small tensors, to another process

    def __call__(self, read: list[Read]) -> tuple[list[int], Pair]:
        numbers, samples = [each.number for each in read], [each.sample for each in read]
        reseed(read[0].seed)
        try:
            pair = self.collate(samples)
        except Exception as error:  # the user's own, or that of torch
            what = error.what if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
            place = error.where if isinstance(error, BadInput) else _place(error, "collate()")
            raise BadInput(
                f"samples {listed(numbers)} do not make a batch: {what}{odd_one(numbers, samples)}",
                where=place,
            ) from error
        return numbers, pytree.tree_map_only(Tensor, ByValue.of, pair) if self.by_value else pair


def _place(error: BaseException, function: str) -> str:
    """Returns the user's own line where an error was raised, or else the function that was called."""
    found = where_raised(error, function)
    return function if found.startswith(__file__) else found


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
        drop_last: bool = False,
        evaluated: object | None = None,
    ) -> None:
        """Opens the workload's dataset, or draws synthetic samples where it has none.

        Args: `values_of` takes inputs and targets to tensors by Value; `graph` is to check shapes by. `drop_last` ends
            an epoch with its last whole step. `evaluated` is a dataset to go over once instead of the workload's.
        """
        self._graph, self._collate = graph, workload.collate
        self._keeper: Keeper | None = None
        self._wanted, self._values_of, self._pinned, self._workers = wanted, values_of, pinned, workers
        if evaluated is not None:
            length = length_of(evaluated, workload.where, "the dataset that is evaluated")
            self.stream = Stream(seed=seed, length=length, in_order=True)
            self._data = Drawn(evaluated, seed, wanted.region)
            return
        data = workload.dataset()
        self.stream = stream_of(workload, data, seed, wanted.step_samples if drop_last else 1)
        if data is None:
            made = Synthetic(workload, seed)
            self._data, self._collate = Drawn(made, seed, ()), made.join
        elif isinstance(data, IterableDataset):
            self._data = Drawn(Flowing(data, self.stream), seed, ())
            self._workers = min(workers, 1)  # each would read the whole stream
        else:
            self._data = Drawn(data, seed, wanted.region)

    @property
    def by_region(self) -> bool:
        """Returns whether the dataset is asked for parts of its samples."""
        return getattr(self._data.data, "regions", False) is True

    def steps(self, first_sample: int) -> Iterator[dict[int, Mapping[str, Tensor]]]:
        """Yields the tensors of one step after the other, for ever.

        Args: `first_sample` is the position in the stream at which the run stands.
        Yields: {micro-batch: {Value: tensor on the host}}; empty for a rank that reads nothing.
        """
        if self._wanted.micros and self._data.region and self._graph is not None:
            self._data = self._settled(next(self._indices(first_sample)), self._graph, self._wanted.micro)
        kept = self._opened(first_sample)
        while not self._wanted.micros:
            yield {}
        pairs = iter(self._loader(self._data, self._indices(first_sample), self._workers))
        micro = self._wanted.micro
        try:
            for number in count():
                kept.reach(first_sample + number * self._wanted.step_samples)
                with nullcontext() if self._workers else spared():  # readers draw in processes of their own
                    step: dict[int, Mapping[str, Tensor]] = {
                        number: self._named(*next(pairs), micro=micro) for number in self._wanted.micros
                    }
                yield step
        finally:
            kept.leave()

    def keep(self, keeper: Keeper) -> None:
        """Has the samples of a training kept in memory.

        Args: `keeper` takes the dataset, the region that it is asked for, what this rank wants, the stream and the
            position at which the run stands. It returns what is read in the dataset's place.
        """
        self._keeper = keeper

    def _opened(self, first_sample: int) -> ByPosition:
        """Opens what is read in the place of the dataset; ranks that read nothing take part."""
        if self._keeper is None:
            return ByPosition()
        data = self._data
        kept = self._keeper(data.data, data.region, self._wanted, self.stream, first_sample)
        if kept is not None:
            self._data = Drawn(kept, self.stream.seed, data.region)
        return kept or ByPosition()

    def once(self) -> Iterator[tuple[Pass, dict[int, Mapping[str, Tensor]]]]:
        """Yields the passes of one evaluation, in which every sample counts once.

        Yields: the pass, and {micro-batch: {Value: tensor on the host}}; empty for a rank that reads nothing.
        """
        wanted, length = self._wanted, self.stream.length
        assert length is not None, "what is evaluated is a dataset"
        every = passes(length, wanted.micro, wanted.step_samples // wanted.micro)
        if not wanted.micros:
            yield from zip(every, repeat({}))
            return
        slots = [(each, wanted.first + number) for each in every for number in wanted.micros]
        indices = [[(at, at) for at in each.samples(slot)] for each, slot in slots]
        if self._data.region and self._graph is not None:
            self._data = self._settled(indices[0], self._graph, every[0].micro)
        pairs = iter(self._loader(self._data, indices, self._workers))
        for each in every:
            with spared():
                read: dict[int, Mapping[str, Tensor]] = {
                    number: self._named(*next(pairs), micro=each.micro) for number in wanted.micros
                }
            yield each, read

    def _loader(
        self, data: Drawn, indices: Iterable[list[tuple[int, int]]], workers: int
    ) -> Iterator[tuple[list[int], Pair]]:
        loader: DataLoader[Sample] = DataLoader(
            data,
            batch_sampler=indices,
            collate_fn=Joined(self._collate, by_value=workers > 0 and not self._pinned),
            num_workers=workers,
            pin_memory=self._pinned,
            prefetch_factor=4 if workers else None,
            generator=torch.Generator(),  # leaves the global one alone
        )
        return map(received, loader)

    def _settled(self, indices: list[tuple[int, int]], graph: ModelGraph, micro: int) -> Drawn:
        """Returns the samples as they are read here: by the region where all that comes so can be used,
        otherwise whole."""

        def read(data: Drawn) -> dict[str, Tensor]:
            # in a process of its own where others will read: what a dataset opens is not to be shared with them
            with spared():
                _, pair = next(iter(self._loader(data, [indices], min(self._workers, 1))))
                return self._chosen(*pair)

        wanted, region = self._wanted, self._data.region
        needed = Needed(graph=graph, micro=micro, parts=wanted.parts, region=region)
        by_region = settled(needed, lambda: read(self._data), lambda: read(self._data.whole()))
        return self._data if by_region else self._data.whole()

    def _chosen(self, inputs: object, targets: object) -> dict[str, Tensor]:
        return {n: t for n, t in self._values_of(inputs, targets).items() if n in self._wanted.values}

    def _named(self, numbers: Sequence[int], pair: Pair, *, micro: int) -> dict[str, Tensor]:
        try:
            return self._read(*pair, micro)
        except BadInput as error:
            samples = f"samples {listed(numbers)}"
            where = f"{error.where}, of {samples}" if error.where else samples
            raise BadInput(error.what, where=where, allowed=error.allowed) from error

    def _read(self, inputs: object, targets: object, micro: int) -> dict[str, Tensor]:
        """Returns a batch's tensors on the host; a stage takes what it reads to its device when it reads it."""
        values, wanted, region = self._chosen(inputs, targets), self._wanted, self._data.region
        if self._graph is not None:
            needed = Needed(graph=self._graph, micro=micro, parts=wanted.parts, region=region)
            check_shapes(values, needed)
        return {name: part_of(x, wanted.parts.get(name, ()), region) for name, x in values.items()}

    def _indices(self, sample: int) -> Iterator[list[tuple[int, int]]]:
        wanted = self._wanted
        while True:
            for number in wanted.micros:
                start = sample + (wanted.first + number) * wanted.micro
                yield self.stream.span(start, start + wanted.micro)
            sample += wanted.step_samples
