"""Times every named sum over a group of hosts: what `probe` makes the rates of a cluster file of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from planner.sums import names_for
from runtime.sums.named import named_sum
from runtime.sums.queues import NamedSum
from runtime.world import Rail, World

SUM_BYTES = (2**16, 2**20, 2**23)
BUDGET_S = 1.5  # of one sum of one size, once it is warm
FEWEST = 3  # of its repeats


@dataclass(frozen=True, kw_only=True)
class TimedSum:
    """A named sum over some ranks, and what each repeat took from its start on all of them to its end on the last."""

    name: str
    ranks: tuple[int, ...]
    cards: int
    bytes: int
    samples_s: tuple[float, ...]


def time_sums(
    world: World,
    ranks: Sequence[int],
    repeats: int,
    cards: Sequence[str] = (),
    sizes: Sequence[int] = SUM_BYTES,
    fewest: int = FEWEST,
) -> list[TimedSum]:
    """Times every sum that some ranks may use. All ranks call this.

    Args: `repeats` are the most of each size, and `fewest` the least, however long one takes; `cards` are the interfaces
        of network cards that parts go over.
    Returns: one row a name and size; none on ranks that are not among `ranks`.
    """
    group = world.new_group(ranks)
    if group is None:
        return []
    found = []
    for name in names_for(len(ranks), max(1, len(cards))):

        def rail(order: Sequence[int], part: int, named: str = f"{list(ranks)} {name}") -> Rail:
            card = cards[part % len(cards)] if cards else ""
            return world.rail([ranks[place] for place in order], f"probe {named} {part}", card)

        own = named_sum(name, len(ranks), group, rail)
        for size in sizes:
            samples = _timed(group, own, size, repeats, fewest)
            row = TimedSum(
                name=str(name),
                ranks=tuple(ranks),
                cards=max(1, len(cards)),
                bytes=size,
                samples_s=tuple(samples),
            )
            found.append(row)
    return found


def _timed(group: dist.ProcessGroup, own: NamedSum, size: int, repeats: int, fewest: int) -> list[float]:
    """Returns the longest time over all ranks of each repeat; as many as the budget has room for."""
    samples, buffer = list[float](), torch.zeros(size // 4)
    left = repeats + 1
    while left > 0:
        dist.barrier(group)
        start = time.perf_counter()
        own.launch(buffer)()
        took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
        samples.append(float(took))
        left -= 1
        if len(samples) == 2:  # the first opened connections
            left = min(left, max(fewest - 1, int(BUDGET_S / samples[1])))
    return samples[1:]
