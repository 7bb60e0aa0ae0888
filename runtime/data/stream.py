"""The order of samples: an endless stream, epoch after epoch, in which a position gives the index of a sample.

Each epoch is a permutation by (seed, epoch), or what the user's own sampler gives for them. So the order is the same
under every plan, and where a run stands is one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset

from planner.arrays import IntArray
from planner.capture import growing_dim
from planner.errors import BadInput
from planner.workload import Workload, has_raw, reseed, seeded

Sampler = Callable[[int, int], object]  # seed, epoch -> indices


@dataclass(kw_only=True)
class Stream:
    """The endless stream of samples: a position in it gives the index of a sample."""

    seed: int
    length: int | None  # of the dataset; None: synthetic, an index for every position
    sampler: Sampler | None = None
    dropped_by: int = 1  # an epoch ends with the last whole multiple of it
    in_order: bool = False  # every epoch is 0, 1, 2, ...
    _epochs: dict[int, IntArray] = field(default_factory=dict, repr=False)
    _asked: int = 0  # indices that the sampler gives an epoch

    @property
    def epoch_samples(self) -> int:
        """Returns the samples of an epoch, as many in each.

        Raises: BadInput where the sampler gives none, or drop_last leaves none.
        """
        assert self.length is not None, "a synthetic stream has no epochs"
        if self.sampler is not None and not self._asked:
            self._asked = len(self._sampled(0))
        asked = self._asked or self.length
        if not (found := asked - asked % self.dropped_by):
            raise BadInput(
                f"an epoch of {asked} samples has no whole step of {self.dropped_by}",
                where="drop_last",
                allowed="a smaller batch, or no drop_last",
            )
        return found

    def span(self, first: int, end: int) -> list[tuple[int, int]]:
        """Returns some positions, the last one excluded, each with the index of its sample."""
        positions = np.arange(first, end)
        return list(zip(positions.tolist(), self.indices(positions).tolist(), strict=True))

    def indices(self, positions: IntArray) -> IntArray:
        """Returns the index of the sample at each of some positions of the stream."""
        if self.length is None:
            return positions
        epochs, places = np.divmod(positions, self.epoch_samples)
        if self.in_order:
            return np.asarray(places)
        found = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = self._order(epoch)[places[here]]
        return found

    def _order(self, epoch: int) -> IntArray:
        """Returns the indices of an epoch in its order."""
        assert self.length is not None
        if self.sampler is None:
            return permutation(self.seed, epoch, self.length).numpy()
        return self._sampled(epoch)

    def _sampled(self, epoch: int) -> IntArray:
        """Returns the indices that the user's sampler gives for an epoch; the last two are kept."""
        if epoch not in self._epochs:
            assert self.sampler is not None and self.length is not None
            with seeded(mix(self.seed, epoch)):
                found = _indices(self.sampler(self.seed, epoch), self.length)
            if self._asked and len(found) != self._asked:
                raise BadInput(
                    f"gives {len(found)} indices for epoch {epoch} and {self._asked} for epoch 0",
                    where="sampler()",
                    allowed="as many indices in every epoch",
                )
            self._epochs = {epoch: found, **dict(list(self._epochs.items())[:1])}
        return self._epochs[epoch]


def _indices(made: object, length: int) -> IntArray:
    """Returns what a sampler gave as indices of the dataset."""
    listed = made.tolist() if isinstance(made, Tensor | np.ndarray) else made
    try:
        found = [int(x) for x in cast(Iterable[Any], listed)]
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"gives {type(made).__name__}: {error}", where="sampler()", allowed="the indices of one epoch"
        ) from error
    if not found:
        raise BadInput("gives no index", where="sampler()", allowed="the indices of one epoch")
    wrong = next((x for x in found if not 0 <= x < length), None)
    if wrong is not None:
        raise BadInput(f"gives index {wrong}", where="sampler()", allowed=f"0 to {length - 1}")
    return np.array(found)


def stream_of(workload: Workload, data: object | None, seed: int, dropped_by: int) -> Stream:
    """Returns the order in which a training reads its samples.

    Args: `data` is its dataset, None for synthetic samples; `dropped_by` is the step's samples where an epoch's last
        short step is left out, and else 1.
    Raises: BadInput where the dataset has no samples.
    """
    length = None if data is None else length_of(data, workload.where, "dataset()")
    sampler = workload.sampler(data) if data is not None else None
    flows = isinstance(data, torch.utils.data.IterableDataset)
    if flows and sampler is not None:
        raise BadInput("a stream has no indices", where=workload.where, allowed="dataset() or sampler()")
    return Stream(seed=seed, length=length, sampler=sampler, dropped_by=dropped_by, in_order=flows)


def length_of(data: object, where: str, role: str) -> int:
    """Returns the number of samples of a dataset.

    Raises: BadInput where it has none.
    """
    if not (length := len(data)):  # type: ignore[arg-type]
        raise BadInput(f"{role} has no samples", where=where)
    return length


def raw_of(data: Any, index: int) -> object:
    """Returns a sample as it is read, before anything random is done to it where the dataset says so.

    Args: `data` has indices, and may have `raw` and `finish`.
    """
    return data.raw(index) if has_raw(data) else data[index]


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, length: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(mix(seed, epoch)))


def mix(seed: int, index: int) -> int:
    """Returns a seed of its own for every index, of at most 63 bits; 64-bit odd multipliers, as in splitmix."""
    x = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    x ^= x >> 31
    return (x * 0x94D049BB133111EB & (2**64 - 1)) >> 1


class Read(NamedTuple):
    """A sample as it was read."""

    seed: int  # under which it was drawn
    number: int  # its index in the dataset, for messages about it
    sample: object


class ByPosition:
    """Samples that are asked for by their position in the stream."""

    def at(self, position: int, index: int) -> object:
        """Returns the sample at a position of the stream, whose index that is, drawn under the seed that is set."""
        raise NotImplementedError

    def reach(self, position: int) -> None:
        """Says that the step at a position of the stream begins."""

    def leave(self) -> None:
        """Says that no more steps come."""


class Flowing(Dataset[object], ByPosition):
    """An IterableDataset as ranks read it: each reads every sample from the start of an epoch, and keeps its own.

    A run that goes on in the middle of an epoch reads what lies before without training on it.
    """

    def __init__(self, data: torch.utils.data.IterableDataset[object], stream: Stream) -> None:
        self._data, self._stream = data, stream
        self._at = -1  # the position that comes next
        self._epoch = -1
        self._samples: Iterator[object] = iter(())

    def at(self, position: int, index: int) -> object:
        """Returns the sample at a position of the stream, read under its seed.

        Raises: BadInput where the dataset ends before the length that it states.
        """
        epoch, place = divmod(position, self._stream.epoch_samples)
        first = position - place
        if epoch != self._epoch or self._at > position:
            self._begin(epoch, first)
        while True:
            reseed(mix(self._stream.seed, self._at))
            sample = next(self._samples, self)
            if sample is self:
                raise BadInput(
                    f"dataset() ends after {self._at - first} samples, and its length is {self._stream.length}",
                    where="dataset()",
                    allowed="an IterableDataset whose __len__ is what it yields in an epoch",
                )
            self._at += 1
            if self._at > position:
                return sample

    def _begin(self, epoch: int, first: int) -> None:
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        reseed(mix(self._stream.seed, first))
        self._samples = iter(self._data)
        self._at, self._epoch = first, epoch


class Synthetic(Dataset[object]):
    """A dataset for workloads without one: each sample is the workload's batch of one, under the seed of who asks."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        with seeded(mix(seed, 0)):
            one, two = (pytree.tree_leaves(workload.batch(n)) for n in (1, 2))
        self._dims = [growing_dim(a, b) for a, b in zip(one, two, strict=True)]

    def __getitem__(self, index: int) -> object:
        return self._workload.batch(1)

    def join(self, samples: list[object]) -> tuple[object, object]:
        """Joins batches of one into a batch, leaf by leaf; what does not grow with the batch is the first sample's."""
        leaves = zip(*(pytree.tree_leaves(sample) for sample in samples), strict=True)
        joined = [
            parts[0] if dim is None else torch.cat(parts, dim)
            for parts, dim in zip(leaves, self._dims, strict=True)
        ]
        inputs, targets = pytree.tree_unflatten(joined, pytree.tree_structure(samples[0]))
        return inputs, targets


class Pass(NamedTuple):
    """One pass of an evaluation over all micro-batches of a plan."""

    first: int  # sample
    micro: int  # samples a micro-batch
    counted: int  # micro-batches, from the first on; the others repeat it and do not count

    def samples(self, slot: int) -> range:
        """Returns the samples of a micro-batch, numbered over all replicas."""
        first = self.first + (slot if slot < self.counted else 0) * self.micro
        return range(first, first + self.micro)


def passes(length: int, micro: int, slots: int) -> list[Pass]:
    """Returns passes in which every sample of a dataset counts once; the last may be of a smaller micro-batch.

    Args: a pass of the plan has `slots` micro-batches of `micro` samples.
    """
    whole, rest = divmod(length, micro)
    found = [Pass(i * micro, micro, min(slots, whole - i)) for i in range(0, whole, slots)]
    return [*found, Pass(whole * micro, rest, 1)] if rest else found
