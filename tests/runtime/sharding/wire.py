"""What pool workers run for the tests of sharing: a step whose bytes are counted, and checkpoints written and read."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.checkpoint import Checkpoint, Facts, latest
from runtime.checkpoint.tensor_file import TensorFile
from runtime.runfolder import Paths
from runtime.runfolder import job as jobs
from runtime.sharding import SharedFlat
from runtime.train import NoPulse
from runtime.train.training import Training
from runtime.world import world as groups
from tests.runtime.jobs import model_of


def _training(folder: str, rank: int, ranks: int, rendezvous: Path) -> Training:
    paths = Paths(Path(folder))
    start = latest(paths.checkpoints)
    assert start is not None
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    return Training(model_of(paths), start, world, jobs.read(paths), paths, NoPulse())


class Counter:
    """Counts the bytes that a rank sends to others, at the communicators that everything goes through.

    A ring's sum of n bytes over s ranks takes 2 (s - 1) / s n of each; a broadcast of n takes (s - 1) n of its source.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def exchange(self, group: Any, out: Tensor, given: Tensor, _: object, sizes: list[int]) -> None:
        self.bytes += (sum(sizes) - sizes[group.rank()]) * given.element_size()

    def gather(self, group: Any, parts: object, own: list[Tensor]) -> None:
        self.bytes += own[0].nbytes * (group.size() - 1)

    def hand(self, group: Any, given: list[Tensor], options: Any) -> None:
        self.bytes += given[0].nbytes * (group.size() - 1) if options.rootRank == group.rank() else 0

    def gather_flat(self, group: Any, out: object, own: Tensor) -> None:
        self.bytes += own.nbytes * (group.size() - 1)

    def scatter_flat(self, group: Any, own: Tensor, given: object) -> None:
        self.bytes += own.nbytes * (group.size() - 1)

    def add(self, group: Any, given: list[Tensor]) -> None:
        self.bytes += 2 * given[0].nbytes * (group.size() - 1) // group.size()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        counts = {
            "alltoall_base": self.exchange,
            "all_to_all_single": self.exchange,
            "allgather": self.gather,
            "all_gather_single": self.gather_flat,
            "_allgather_base": self.gather_flat,
            "reduce_scatter_single": self.scatter_flat,
            "_reduce_scatter_base": self.scatter_flat,
            "broadcast": self.hand,
            "allreduce": self.add,
        }
        with ExitStack() as patched:
            for name, count in counts.items():
                patched.enter_context(patch.object(dist.ProcessGroup, name, _counted(name, count)))
            for name in NEVER:
                patched.enter_context(patch.object(dist.ProcessGroup, name, _never(name)))
            yield


NEVER = (
    *("allgather_coalesced", "alltoall", "gather", "scatter", "reduce"),
    *("reduce_scatter", "allreduce_coalesced", "send"),
)


def _counted(name: str, count: Callable[..., None]) -> Callable[..., object]:
    real = getattr(dist.ProcessGroup, name)

    def call(group: Any, *given: Any) -> object:
        count(group, *given[: len(signature(count).parameters) - 1])
        return real(group, *given)

    return call


def _never(name: str) -> Callable[..., object]:
    def call(*given: Any) -> object:
        raise AssertionError(f"{name} is not counted")

    return call


def sent(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> int:
    """The bytes of one step that this rank sends, its first one, with the updates."""
    training, counter = _training(folder, rank, ranks, rendezvous), Counter()
    batch = next(training.batches())
    try:
        with counter():
            training.step(batch)
            training.rank.updater.settle()
        training.world.barrier()
    finally:
        training.world.close()
    return counter.bytes


def saved(rank: int, ranks: int, rendezvous: Path, *, folder: str, steps: int, every: bool = False) -> None:
    """Trains some steps and writes a checkpoint, or one after each of them."""
    training = _training(folder, rank, ranks, rendezvous)
    data = training.batches()
    for left in reversed(range(steps)):
        training.step(next(data))
        if every or not left:
            training.save()
    training.finish()
    training.world.barrier()
    training.world.close()


PAGE = 4096


class Reader:
    """Counts the bytes that are read of tensors, and those of whole ones."""

    def __init__(self) -> None:
        self.bytes = self.whole = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        part, whole = TensorFile.read, Checkpoint._read_whole

        def of_part(file: TensorFile, name: str, start: int, stop: int) -> Tensor:
            before = _read_by_process()
            found = part(file, name, start, stop)
            taken = _read_by_process() - before
            assert taken <= found.nbytes + PAGE + 256, (
                name,
                taken,
                found.nbytes,
            )  # the counter is a file, too
            self.bytes += found.nbytes
            return found

        def of_whole(checkpoint: Checkpoint, keys: Mapping[str, str]) -> dict[str, Tensor]:
            found = whole(checkpoint, keys)
            self.whole += sum(tensor.nbytes for tensor in found.values())
            return found

        with patch.object(TensorFile, "read", of_part), patch.object(Checkpoint, "_read_whole", of_whole):
            yield


def _read_by_process() -> int:
    rows = Path("/proc/self/io").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("rchar"))


def threads(rank: int, ranks: int, rendezvous: Path) -> int:
    """How many threads this process has, those of communicators among them."""
    gc.collect()
    return len(list(Path("/proc/self/task").iterdir()))


def copied(rank: int, ranks: int, rendezvous: Path, *, folder: str, step: int) -> None:
    """Reads the last checkpoint and writes what this plan holds of it as another one.

    Of what ranks share it reads the elements that are its own, and of their optimizer's state.
    """
    reader = Reader()
    with reader():
        training = _training(folder, rank, ranks, rendezvous)
    shared = [flat for flat in training.rank.flats if isinstance(flat, SharedFlat)]
    every = len(shared) == len(training.rank.flats) and training.rank.parts is None
    if every and all(flat.lets_go for flat in shared):
        own = [piece.tensor for flat in shared for piece in flat.pieces()]
        rows = [row for each in training.rank.updater.optimizers.values() for row in each.state.items()]
        state = [(p, x) for p, row in rows for x in row.values() if isinstance(x, Tensor)]
        alike = sum(x.nbytes for p, x in state if x.shape == p.shape)
        assert alike and reader.bytes == sum(x.nbytes for x in own) + alike
        assert reader.whole == sum(x.nbytes for _, x in state) - alike  # counts of steps
    facts = Facts(step=step, sample=0, seed=0, fingerprint=training.graph.fingerprint)
    training._writer.save(training.rank.part(), facts)
    training._writer.wait()
    training.world.barrier()
    training.world.close()
