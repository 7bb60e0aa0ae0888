"""torch's DistributedDataParallel on an emulated link, with layers that sleep: the peer of `out_of_order`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from runtime.rank.sleeping import Sleeper
from runtime.world import World

MIB = 2**20
FIRST_MIB, OTHERS_MIB = 1, 25  # DDP's own
SMALLER = 25  # bytes of the model a byte that is really held


class Link:
    """One sum after the other: it starts when every replica has launched it, and takes its time."""

    def __init__(self, latency_s: float, byte_ns: float) -> None:
        self._latency_s, self._byte_s = latency_s, byte_ns * 1e-9
        self._group = dist.new_group()
        self._queue: queue.SimpleQueue[tuple[Tensor, Future[Tensor]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, buffer: Tensor) -> Future[Tensor]:
        done: Future[Tensor] = Future()
        self._queue.put((buffer, done))
        return done

    def _serve(self) -> None:
        free_s = 0.0
        while True:
            buffer, done = self._queue.get()
            dist.all_reduce(torch.zeros(1), group=self._group)
            size = buffer.numel() * buffer.element_size() * SMALLER
            free_s = max(free_s, time.perf_counter()) + self._latency_s + size * self._byte_s
            time.sleep(max(0.0, free_s - time.perf_counter()))
            done.set_result(buffer)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer  # type: ignore[attr-defined]
        layer.sleeper.sleep(layer.forward_s)
        return x + 1.0

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        layer: Layer = ctx.layer  # type: ignore[attr-defined]
        layer.sleeper.sleep(2 * layer.forward_s)
        return dy, layer.zeros, None


class Layer(nn.Module):
    def __init__(self, forward_s: float, elements: int, sleeper: Sleeper) -> None:
        super().__init__()
        self.forward_s, self.sleeper = forward_s, sleeper
        self.weight = nn.Parameter(torch.zeros(elements))
        self.zeros = torch.zeros(elements)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Sleep.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return y


class Replica:
    """One rank: forward, backward with sums of buckets beside it, update."""

    def __init__(
        self, world: World, layer_s: float, sizes: Sequence[int], latency_s: float, byte_ns: float
    ) -> None:
        sleeper = Sleeper()
        layers = [Layer(layer_s, max(1, size // SMALLER // 4), sleeper) for size in sizes]
        with patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", FIRST_MIB * MIB // SMALLER):
            self._model = DistributedDataParallel(
                nn.Sequential(*layers), process_group=world.group, bucket_cap_mb=OTHERS_MIB / SMALLER
            )
        link = Link(latency_s, byte_ns)
        self._model.register_comm_hook(None, lambda state, bucket: link.send(bucket.buffer()))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)

    def step(self, step: int) -> None:
        self._optimizer.zero_grad()
        self._model(torch.ones(1, requires_grad=True)).sum().backward()
        self._optimizer.step()


def bucketed_ns(layer_ns: float, sizes: Sequence[int], latency_ns: float, byte_ns: float) -> float:
    """What a step takes where gradients travel in DDP's buckets, filled from the last layer on."""
    clock = len(sizes) * layer_ns
    free, bucket, cap = 0.0, 0, FIRST_MIB * MIB
    for number, size in enumerate(reversed(sizes), 1):
        clock += 2 * layer_ns
        bucket += size
        if bucket >= cap or number == len(sizes):
            free = max(free, clock) + latency_ns + bucket * byte_ns
            bucket, cap = 0, OTHERS_MIB * MIB
    return max(clock, free)
