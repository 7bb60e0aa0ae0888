"""How a probe takes its numbers: a median of repeats, and half the range between the quartiles beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch

SMALL_BYTES, LARGE_BYTES = 64, 16 * 2**20
MATMUL = 1024
REPEATS = 15


@dataclass(frozen=True)
class Number:
    value: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Number:
        low, _, high = quantiles(samples, n=4)
        return cls(median(samples), (high - low) / 2)


def timed(run: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> list[float]:
    samples = []
    for _ in range(repeats + 2):  # the first ones open connections and touch memory
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return samples[2:]
