"""What a checkpoint costs the steps behind which it is written: ours, and torch's asynchronous one, side by side.

One rank of a host trains 100 MB of weights. Ten steps without a checkpoint, ten with ours and ten with that of
torch.distributed.checkpoint follow each other again and again, so that whatever else the machine does hits all three.
Ten more have a thread beside them that computes for as long as ours does, within its cache: neither disk nor memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Cell, Result, Table, above, main
from runtime.checkpoint import CheckpointPart, CheckpointWriter, Facts, Keeping

LAYERS, WIDTH, BATCH = 5, 2240, 160  # 25 million numbers
STEPS = 10  # between two checkpoints
ROUNDS, QUICK_ROUNDS = 12, 3
AIM_PERCENT = 1.0


class Trained:
    """A model that trains, and tells what must be waited for before its weights change."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-9)
        self.inputs = torch.randn(BATCH, WIDTH)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in self.model.named_parameters()}

    def step(self, before_update: Callable[[], object]) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        before_update()
        self.optimizer.step()


class Ours:
    """The checkpoints of a run."""

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        self._writer = CheckpointWriter(folder, rank=0, ranks=[0], names=names, keep=Keeping(last=2))
        self._step = 0
        self.before_update = self._writer.until_on_file
        self.wait = self._writer.wait

    def save(self, weights: dict[str, torch.Tensor]) -> None:
        self._step += 1
        facts = Facts(step=self._step, sample=0, seed=0, fingerprint="x")
        self._writer.save(CheckpointPart(rank=0, tensors=weights), facts)


class Torchs:
    """The asynchronous checkpoints of torch, which copy the weights first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._step, self._running = folder, 0, None

    def before_update(self) -> None:
        """Nothing waits: the weights are copied."""

    def save(self, weights: dict[str, torch.Tensor]) -> None:
        import torch.distributed.checkpoint as dcp

        self._step += 1
        shutil.rmtree(self._folder / str(self._step - 2), ignore_errors=True)
        self._running = dcp.async_save(weights, checkpoint_id=str(self._folder / str(self._step)))

    def wait(self) -> None:
        if self._running is not None:
            self._running.result()


class Nothing:
    def before_update(self) -> None: ...
    def save(self, weights: dict[str, torch.Tensor]) -> None: ...
    def wait(self) -> None: ...


class Beside(Nothing):
    """A thread that sums up one block of its cache again and again, for some processor time."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._thread: threading.Thread | None = None

    def save(self, weights: dict[str, torch.Tensor]) -> None:
        self._thread = threading.Thread(target=self._compute)
        self._thread.start()

    def _compute(self) -> None:
        block, begin = bytes(2**16), time.thread_time()
        while time.thread_time() - begin < self.busy_s:
            zlib.crc32(block)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


Way = Ours | Torchs | Nothing
Round = tuple[float, float, float, float]


def one_round(trained: Trained, way: Way) -> Round:
    """Trains ten steps with one checkpoint at first.

    Returns: seconds of all, of the call that saves, and of updates that had to wait; and the processor time of other
        threads.
    """
    process, own = time.process_time(), time.thread_time()
    waited = 0.0

    def before_update() -> None:
        nonlocal waited
        at = time.perf_counter()
        way.before_update()
        waited += time.perf_counter() - at

    begin = time.perf_counter()
    way.save(trained.weights)
    called = time.perf_counter() - begin
    for _ in range(STEPS):
        trained.step(before_update)
    took = time.perf_counter() - begin
    way.wait()
    return took, called, waited, (time.process_time() - process) - (time.thread_time() - own)


def measured(rounds: int, folder: Path) -> tuple[Table, list[tuple[str, Cell]]]:
    """Returns the table, and by how many percent one checkpoint makes ten steps longer, by name."""
    trained, beside = Trained(), Beside()
    ways: dict[str, Way] = {
        "no checkpoint": Nothing(),
        "shardwright": Ours(folder / "ours", {name: name for name in trained.weights}),
        "torch.distributed.checkpoint, async_save": Torchs(folder / "torch"),
        "no checkpoint, a thread that computes": beside,
    }
    found: dict[str, list[Round]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in sorted(ways, reverse=bool(number % 2)):  # none always follows the same one
            row = one_round(trained, ways[name])
            if name == "shardwright":
                beside.busy_s = row[3]
            if number:  # the first one loads code
                found[name].append(row)
    plain = median(row[0] for row in found["no checkpoint"])
    rows: list[tuple[Cell, ...]] = []
    shares: list[tuple[str, Cell]] = []
    for name, own in found.items():
        took, called, waited, others = (median(row[i] for row in own) for i in range(4))
        stood = 100 * median(row[1] + row[2] for row in own) / plain
        share = 100 * (took / plain - 1)
        rows.append((name, 1e3 * took / STEPS, 1e3 * called, 1e3 * waited, stood, 1e3 * others, share))
        shares.append((name, share))
    size = sum(tensor.nbytes for tensor in trained.weights.values()) / 1e6
    columns = (
        "checkpoint",
        "a step, ms",
        "the call, ms",
        "updates wait, ms",
        f"both, % of {STEPS} steps",
        "processor of other threads, ms",
        f"{STEPS} steps longer by %",
    )
    title = f"{size:.0f} MB of weights, a checkpoint every {STEPS} steps"
    notes = (
        f"medians of {rounds} rounds, one thread; ours takes no copy, and the first update waits until the tensors are on "
        "file; torch's copies them in the call. The last row has no checkpoint: its thread takes the processor time of our "
        "writer within one core's cache, and the steps beside it grow for lack of a core and of its clock alone. What ours "
        "adds beyond that row is traffic of memory and disk",
    )
    return Table(title=title, columns=columns, rows=rows, notes=notes), shares


def run(quick: bool) -> Result:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            table, shares = measured(QUICK_ROUNDS if quick else ROUNDS, folder)
        finally:
            dist.destroy_process_group()
    own = [pair for pair in shares if pair[0] == "shardwright"]
    return Result(
        name="checkpoints",
        claim="A checkpoint of 100 MB a rank hides behind the steps: the steps between two are at most 1 % longer.",
        tables=[table],
        missed=above(
            "What a checkpoint adds to the ten steps behind which it is written", own, AIM_PERCENT, " %"
        ),
    )


if __name__ == "__main__":
    main(run)
