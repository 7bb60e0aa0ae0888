"""What a probe measures of things that happen at once: groups that sum beside each other, products beside a sum.

How a probe takes its numbers: a median of repeats, and half the range between the quartiles beside it.
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
    value: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Number:
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
        return self.together_s.value / self.alone_s.value


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """How many times as long matrix products take on the first rank while all ranks sum."""

    bytes: int
    factor: Number


def by_host(hosts: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, hosts in the order of their first rank."""
    rows: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        rows.setdefault(host, []).append(rank)
    return list(rows.values())


def pairs(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Who talks to whom: on every host the first rank to the others, and between hosts first rank to first rank."""
    rows = by_host(hosts)
    firsts = [row[0] for row in rows]
    across = combinations(firsts, 2) if len(rows) <= EVERY_PAIR else pairwise(firsts)
    return sorted([(row[0], other) for row in rows for other in row[1:]] + list(across))


def beside(hosts: Sequence[str]) -> list[Groups]:
    """Sets of groups that share no rank and sum at once: each host by itself, and one rank of every host."""
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
    """Collective over all ranks; None on those outside the first group."""
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
    """Seconds of each sum; all ranks begin each at the same time."""
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
    """Collective over all ranks."""
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
    samples = []
    for _ in range(repeats + 2):  # the first ones open connections and touch memory
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return samples[2:]
