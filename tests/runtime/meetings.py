"""What pool workers run to meet each other in every way, and what they find listening then."""

from __future__ import annotations

import _thread
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from planner.capture.traced_graph import call
from planner.errors import BadInput
from planner.workload import Workload
from runtime.loop.callbacks import Callbacks, Happened
from runtime.world import world as groups


def meet(rank: int, ranks: int, rendezvous: Path, *, how: str) -> tuple[bool, list[str]]:
    """Whether all ranks came together, and the addresses at which the socket of the store listens."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"), how)
    try:
        agreed = world.agree("the same")
        found = json.loads(Path(rendezvous).read_text()) if how.startswith("tcp") else {}
        return agreed, listening(found["port"]) if found else []
    finally:
        world.close()


def listening(port: int) -> list[str]:
    """Addresses, as the kernel writes them."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


def clocks(rank: int, ranks: int, rendezvous: Path, *, apart_ns: int) -> tuple[int, int]:
    """Offset and error where every two ranks are on a host of their own, with clocks apart."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"), "file")
    assert world.group is not None
    host = rank // 2
    try:
        found = groups.clock(
            rank, ranks, world.group, f"host {host}", lambda: time.monotonic_ns() + host * apart_ns
        )
        return found.offset_ns, found.error_ns
    finally:
        world.close()


Told = tuple[bool, int, int]  # whether torch.distributed is initialised, and rank and size


def _told() -> Told:
    known = dist.is_initialized()
    return known, dist.get_rank() if known else -1, dist.get_world_size() if known else -1


class Asks(nn.Module):
    """Notes what forward learns; `starts` has it start torch.distributed as well."""

    def __init__(self, starts: bool = False) -> None:
        super().__init__()
        self.told, self.starts = list[Told](), starts

    def forward(self, x: Tensor) -> Tensor:
        self.told.append(_told())
        if self.starts:
            dist.init_process_group("gloo", init_method="file:///nowhere", rank=0, world_size=1)
        return x


def ask(rank: int, ranks: int, rendezvous: Path) -> dict[str, Told | str]:
    """What code in each place learns of the ranks that have met."""
    told: dict[str, Told | str] = {}
    workload = Workload(
        name="asks",
        where="asks",
        arguments={},
        functions={
            "on_step": lambda _: told.update({"a callback": _told()}),
            "optimizer": lambda rows: told.update({"an optimizer": _told()}) or SGD([x for _, x in rows]),  # type: ignore[func-returns-value]
        },
    )
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    try:
        told["a script"] = _told()
        first = replace(world, rank=0)  # whose callbacks are called
        assert Callbacks(workload, first).call("on_step", Happened(step=1, folder=rendezvous)) is None
        workload.optimizer([("a", nn.Parameter(torch.zeros(1)))])
        asks = Asks()
        call(asks, torch.zeros(1))
        (told["a model"],) = asks.told
        told["a thread of autograd"] = _of_thread(_thread.start_new_thread)
        told["a thread of a program"] = _of_thread(lambda run, _: Thread(target=run).start())
        try:
            call(Asks(starts=True), torch.zeros(1))
        except BadInput as error:
            told["a model that starts torch.distributed"] = error.what
        world.barrier()
    finally:
        world.close()
    return told


def _of_thread(start: Callable[[Callable[[], None], tuple[()]], object]) -> Told:
    found: Queue[Told] = Queue()
    start(lambda: found.put(_told()), ())
    return found.get(timeout=30)
