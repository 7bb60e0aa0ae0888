"""A group of ranks as threads of this process, so that hundreds of cases take seconds."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from runtime.spatial.group import Message, Operation

T = TypeVar("T")
PATIENCE_S = 60.0
GLOO = "tensors must be contiguous for processes"


class Hub:
    def __init__(self, size: int) -> None:
        self.size = size
        self.queues = {(a, b): queue.Queue[Tensor]() for a in range(size) for b in range(size)}
        self.failed = threading.Event()


class ThreadWire:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.sent_bytes = 0
        self.messages = 0

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        assert all(x.is_contiguous() for _, x in (*sends, *receives)), GLOO
        for peer, tensor in sends:
            assert peer != self.rank
            self.sent_bytes += tensor.numel() * tensor.element_size()
            self.messages += 1
            self.hub.queues[self.rank, peer].put(tensor.detach().clone())

        def wait() -> None:
            for peer, tensor in receives:
                got = self._next(peer)
                assert got.numel() == tensor.numel() and got.dtype == tensor.dtype, (got.shape, tensor.shape)
                tensor.view(-1).copy_(got.reshape(-1))

        return wait

    def _next(self, peer: int) -> Tensor:
        waited = 0.0
        while waited < PATIENCE_S and not self.hub.failed.is_set():
            try:
                return self.hub.queues[peer, self.rank].get(timeout=0.2)
            except queue.Empty:
                waited += 0.2
        raise RuntimeError(f"rank {self.rank} waits for rank {peer} in vain")

    def all_to_all(
        self, found: Tensor, sent: Tensor, found_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        assert found.is_contiguous() and sent.is_contiguous(), GLOO
        outgoing, incoming = sent.split(list(sent_sizes)), found.split(list(found_sizes))
        others = [rank for rank in range(self.size) if rank != self.rank]
        wait = self.exchange(
            [(rank, outgoing[rank]) for rank in others], [(rank, incoming[rank]) for rank in others]
        )
        incoming[self.rank].copy_(outgoing[self.rank])
        wait()

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        assert tensor.is_contiguous(), GLOO
        others = [rank for rank in range(self.size) if rank != self.rank]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        wait = self.exchange([(rank, tensor) for rank in others], [(rank, parts[rank]) for rank in others])
        wait()
        parts[self.rank] = tensor.clone()
        stack = torch.stack(parts)
        tensor.copy_({"sum": stack.sum, "max": stack.amax, "min": stack.amin}[operation](0))


def run(size: int, work: Callable[[ThreadWire], T]) -> list[T]:
    """`work` on every rank; the first failure is raised."""
    hub = Hub(size)
    wires = [ThreadWire(hub, rank) for rank in range(size)]

    def guarded(wire: ThreadWire) -> T:
        try:
            return work(wire)
        except BaseException:
            hub.failed.set()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, wire) for wire in wires]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    mine = [error for error in errors if "in vain" not in str(error)]
    if errors:
        raise (mine or errors)[0]
    return [future.result() for future in futures]
