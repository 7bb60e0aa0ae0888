"""Measures devices and links one by one, and things that happen at once: several sums, or products beside a
sum.

Every number is a median of repeats. Its spread is half the distance between the quartiles.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median, quantiles

import torch
import torch.distributed as dist

from planner.cluster import name_of
from runtime.world import World

EVERY_PAIR = 12  # hosts; of more only neighbours talk to each other
REPEATS = 15
SMALL_BYTES, LARGE_BYTES = 64, 16 * 2**20
COPY_BYTES, MATMUL = 64 * 2**20, 1024
GPU_COPY_BYTES, GPU_MATMUL = 2**30, 8192  # where as much as that takes milliseconds

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
class ProbedDevice:
    """The memory and the rates of one rank's device."""

    kind: str  # of the catalogue, or what the device calls itself
    memory_bytes: int
    flop_per_s: Number  # of a matrix product in fp32
    copy_bytes_per_s: Number  # read and written together
    taken_bytes: int = 0  # of a GPU, without any tensor: its driver and the libraries of one process


@dataclass(frozen=True, kw_only=True)
class ProbedLink:
    """The latency and bandwidth between two ranks."""

    a: int  # rank
    b: int
    within_node: bool
    latency_s: Number
    bytes_per_s: Number


@dataclass(frozen=True, kw_only=True)
class ProbedSum:
    """An all-reduce of `bytes` over some ranks."""

    ranks: tuple[int, ...]
    bytes: int
    seconds: Number


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


def device_of(device: torch.device, repeats: int = REPEATS) -> ProbedDevice:
    """Measures one device.

    Args: `repeats` is the number of times that each product and each copy is timed.
    Returns: bytes of memory, operations a second, and bytes a second.
    """
    cuda = device.type == "cuda"
    side, size = (GPU_MATMUL, GPU_COPY_BYTES) if cuda else (MATMUL, COPY_BYTES)
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    products = timed(lambda: torch.mm(a, b), device, repeats)
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    copies = timed(lambda: target.copy_(source), device, repeats)
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free, total = torch.cuda.mem_get_info(device) if cuda else (0, host_bytes)
    return ProbedDevice(
        kind=name_of(torch.cuda.get_device_name(device)) if cuda else "cpu",
        memory_bytes=total,
        flop_per_s=Number.of([2 * side**3 / seconds for seconds in products]),
        copy_bytes_per_s=Number.of([2 * size / seconds for seconds in copies]),
        taken_bytes=max(0, total - free - torch.cuda.memory_reserved(device)) if cuda else 0,
    )


def wire_of(world: World, a: int, b: int, *, within_node: bool, repeats: int = REPEATS) -> ProbedLink | None:
    """Measures the link between two ranks by messages there and back. Only these two ranks take part.

    Args: `a` and `b` are the ranks.
    Returns: None on all other ranks.
    """
    if world.rank not in (a, b):
        return None
    small, large = (_there_and_back(world, a, b, size, repeats) for size in (SMALL_BYTES, LARGE_BYTES))
    latency = Number.of(small)
    rates = [LARGE_BYTES / max(seconds - latency.value, 1e-9) for seconds in large]
    return ProbedLink(a=a, b=b, within_node=within_node, latency_s=latency, bytes_per_s=Number.of(rates))


def _there_and_back(world: World, a: int, b: int, size: int, repeats: int) -> list[float]:
    buffer = torch.zeros(size, dtype=torch.uint8, device=world.device)
    other = b if world.rank == a else a

    def turn() -> None:
        if world.rank == a:
            dist.send(buffer, other)
            dist.recv(buffer, other)
        else:
            dist.recv(buffer, other)
            dist.send(buffer, other)

    return [seconds / 2 for seconds in timed(turn, world.device, repeats)]


def sum_of(world: World, ranks: Sequence[int], size: int, repeats: int = REPEATS) -> ProbedSum | None:
    """Measures an all-reduce over some ranks. All ranks call it.

    Args: `size` is in bytes.
    Returns: None on ranks that are not among `ranks`.
    """
    group = world.new_group(ranks)
    if world.rank not in ranks:
        return None
    tensor = torch.zeros(size // 4, device=world.device)
    samples = timed(lambda: dist.all_reduce(tensor, group=group), world.device, repeats)
    return ProbedSum(ranks=tuple(ranks), bytes=size, seconds=Number.of(samples))


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
    side = GPU_MATMUL if device.type == "cuda" else MATMUL
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
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
