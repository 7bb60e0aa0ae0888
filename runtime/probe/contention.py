"""Measures things that happen at once: groups that sum beside each other, and matrix products beside a sum.

Every number is a median of repeats. Its spread is half the distance between the quartiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median, quantiles

import torch
import torch.distributed as dist

from runtime.world import World

EVERY_PAIR = 12  # hosts; of more only neighbours talk to each other
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Number:
    """A measured number: the median of repeats, and half the distance between their quartiles."""

    value: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Number:
        """Returns the median and the spread of samples.

        Args: `samples` are two or more.
        """
        low, _, high = quantiles(samples, n=4)
        return cls(median(samples), (high - low) / 2)


@dataclass(frozen=True, kw_only=True)
class Together:
    """An all-reduce of the first group, alone and while the other groups do the same."""

    groups: Groups
    bytes: int
    alone_s: Number
    together_s: Number

    @property
    def factor(self) -> float:
        """Returns how many times as long the sum takes beside the other groups' sums."""
        return self.together_s.value / self.alone_s.value


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """The factor by which matrix products on the first rank slow down while all ranks sum."""

    bytes: int
    factor: Number


def by_host(hosts: Sequence[str]) -> list[list[int]]:
    """Returns the ranks of each host, with hosts in the order of their first rank.

    Args: `hosts` has the host of each rank.
    """
    rows: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        rows.setdefault(host, []).append(rank)
    return list(rows.values())


def pairs(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the pairs of ranks to measure links between.

    On each host these are the first rank and every other. Between hosts they are the first ranks, of
    neighbours only where there are many hosts.
    Args: `hosts` has the host of each rank.
    """
    rows = by_host(hosts)
    firsts = [row[0] for row in rows]
    across = combinations(firsts, 2) if len(rows) <= EVERY_PAIR else pairwise(firsts)
    return sorted([(row[0], other) for row in rows for other in row[1:]] + list(across))


def beside(hosts: Sequence[str]) -> list[Groups]:
    """Returns sets of groups that share no rank and can sum at once.

    Args: `hosts` has the host of each rank.
    Returns: each host by itself, and groups of one rank of every host; on a single host its two halves.
    """
    rows = by_host(hosts)
    least = min(map(len, rows))
    found: list[Groups] = []
    if len(rows) == 1 and least >= 4:
        half = least // 2
        found.append((tuple(rows[0][:half]), tuple(rows[0][half : 2 * half])))
    if len(rows) > 1 and least > 1:
        found.append(tuple(tuple(row) for row in rows))
        found.append(tuple(tuple(row[slot] for row in rows) for slot in range(least)))
    return found


REPEATS = 15


def together_of(world: World, groups: Groups, repeats: int = REPEATS) -> Together | None:
    """Measures a sum of the first group, alone and while the other groups sum too. All ranks call it.

    Args: `groups` share no rank.
    Returns: None on ranks outside of the first group.
    """
    made = [world.new_group(ranks) for ranks in groups]
    mine = next((group for group in made if group is not None), None)
    tensor = torch.zeros(LARGE_BYTES // 4, device=world.device)
    alone = _in_step(world, tensor, mine if world.rank in groups[0] else None, repeats)
    together = _in_step(world, tensor, mine, repeats)
    if world.rank not in groups[0]:
        return None
    return Together(
        groups=groups, bytes=LARGE_BYTES, alone_s=Number.of(alone), together_s=Number.of(together)
    )


def _in_step(
    world: World, tensor: torch.Tensor, group: dist.ProcessGroup | None, repeats: int
) -> list[float]:
    """Returns the seconds of each sum. All ranks begin each sum at the same time."""
    samples = []
    for _ in range(repeats + 2):
        world.barrier()
        start = time.perf_counter()
        if group is not None:
            dist.all_reduce(tensor, group=group)
            _settle(world)
        samples.append(time.perf_counter() - start)
    return samples[2:]


def _settle(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def slowed_of(world: World, repeats: int = REPEATS) -> Slowed:
    """Measures how much a sum over all ranks slows down matrix products. All ranks call it.

    Returns: the factor on this rank.
    """
    device, tensor = world.device, torch.zeros(LARGE_BYTES // 4, device=world.device)
    a, b = torch.randn(MATMUL, MATMUL, device=device), torch.randn(MATMUL, MATMUL, device=device)
    product = Number.of(timed(lambda: torch.mm(a, b), device, repeats)).value
    world.barrier()
    summing = Number.of(timed(lambda: dist.all_reduce(tensor, group=world.group), device, repeats)).value
    count = max(1, round(summing / product))
    factors = []
    for _ in range(repeats):
        world.barrier()
        start = time.perf_counter()
        work = dist.all_reduce(tensor, group=world.group, async_op=True)
        for _ in range(count):
            torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        factors.append((time.perf_counter() - start) / (count * product))
        work.wait()
        _settle(world)
    return Slowed(bytes=LARGE_BYTES, factor=Number.of(factors))


SMALL_BYTES, LARGE_BYTES = 64, 16 * 2**20
MATMUL = 1024


def timed(run: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> list[float]:
    """Times a function.

    Args: `run` is called some times more than `repeats`, as the first calls open connections and touch
      memory.
    Returns: seconds of each of the `repeats` calls.
    """
    samples = []
    for _ in range(repeats + 2):  # the first ones open connections and touch memory
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return samples[2:]
