"""Says which node owns a sample, and which samples each node needs for a window of steps. Pure functions of the plan.

Nodes own contiguous parts of the indices. A node needs what its ranks read; what is its own it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import IntArray
from runtime.data import Region, Stream


@dataclass(frozen=True)
class Reader:
    """A rank as the others know it: where it is, and what it reads of a step."""

    rank: int
    node: int
    host: int  # a digest of the machine's name: nodes of a plan may share one
    first: int  # number over all replicas of its replica's micro-batch 0
    micros: tuple[int, ...]
    region: Region  # () where it reads whole samples

    def row(self, length: int) -> list[int]:
        """Returns the rank as `length` whole numbers, for the other ranks."""
        spans = [edge for rows in self.region for edge in rows]
        head = [self.rank, self.node, self.host, self.first, len(self.region), len(self.micros)]
        found = [*head, *spans, *self.micros]
        return found + [0] * (length - len(found))

    @classmethod
    def of_row(cls, row: Sequence[int]) -> Reader:
        """Returns the rank that a row stands for."""
        rank, node, host, first, dims, count, *rest = row
        spans, micros = rest[: 2 * dims], rest[2 * dims : 2 * dims + count]
        region = tuple(zip(spans[::2], spans[1::2], strict=True))
        return cls(rank, node, host, first, tuple(micros), region)


def row_length(micros: int) -> int:
    """Returns the whole numbers of a rank's row, in a plan of so many micro-batches a replica."""
    return 6 + 2 * 8 + micros


@dataclass(frozen=True)
class SampleRoutes:
    """The ranks that read one part of every sample, the nodes that keep these parts, and what each needs when."""

    readers: tuple[Reader, ...]
    samples: int  # of the dataset
    micro: int
    step_samples: int
    stream: Stream

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({reader.node for reader in self.readers}))

    @property
    def leaders(self) -> tuple[int, ...]:
        """Returns the rank of each node that reads its part and exchanges for it."""
        return tuple(self.leader(node) for node in self.nodes)

    def leader(self, node: int) -> int:
        """Returns the rank that reads and exchanges for a node."""
        return min(reader.rank for reader in self.on(node))

    def on(self, node: int) -> tuple[Reader, ...]:
        """Returns the ranks of a node."""
        return tuple(reader for reader in self.readers if reader.node == node)

    @property
    def bounds(self) -> IntArray:
        """Returns the first index of each node's part, and the number of all samples last."""
        count = len(self.nodes)
        return np.array([place * self.samples // count for place in range(count + 1)])

    def per_step(self, node: int) -> int:
        """Returns how many samples a node needs for a step, at most."""
        return len({reader.first + m for reader in self.on(node) for m in reader.micros}) * self.micro

    def needed(self, first_sample: int, steps: int) -> list[IntArray]:
        """Returns the samples that each node needs for some steps, its own among them.

        Args: `first_sample` is the position in the stream at which the first of `steps` stands.
        Returns: sorted indices, each once, a node an array.
        """
        begins = first_sample + self.step_samples * np.arange(steps)
        found = []
        for node in self.nodes:
            slots = sorted({reader.first + m for reader in self.on(node) for m in reader.micros})
            own = self.micro * np.array(slots)[:, None] + np.arange(self.micro)
            found.append(np.unique(self.stream.indices((begins[:, None] + own.ravel()).ravel())))
        return found
