"""A stage whose compute is a sleep of the planned length, with messages of their real size.

Ranks that sleep share cores without slowing each other down, so a laptop can run the plan of a cluster and compare
its simulated with its real order of events.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from planner.plan import StageTimes
from runtime.stage import Tensors

NS = 1e-9


class Sleeper:
    """Sleeps a given time; what the last sleeps took too long is subtracted, a sleep never spins."""

    def __init__(self) -> None:
        self._late_s = 1e-4

    def sleep(self, seconds: float) -> None:
        if seconds <= self._late_s:
            return
        end = time.perf_counter() + seconds
        time.sleep(seconds - self._late_s)
        late = self._late_s + time.perf_counter() - end
        self._late_s += 0.1 * (min(late, 1e-3) - self._late_s)


class SleepStage:
    def __init__(
        self,
        times: StageTimes,
        *,
        sends: Mapping[str, int],
        passes: Mapping[str, int],
        sleeper: Sleeper,
    ) -> None:
        self._times, self._sleeper = times, sleeper
        self._sends = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sends.items()}
        self._passes = {name: torch.zeros(size, dtype=torch.uint8) for name, size in passes.items()}

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        self._sleeper.sleep(self._times.forward_ns * NS)
        return self._sends

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        self._sleeper.sleep(self._times.backward_ns * NS)
        return self._passes

    def input_half(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        self._sleeper.sleep(self._times.input_grad_ns * NS)
        return self._passes

    def weight_half(self, micro: int) -> None:
        self._sleeper.sleep(self._times.weight_grad_ns * NS)

    def recompute(self, micro: int) -> None:
        self._sleeper.sleep(self._times.recompute_ns * NS)


class SleepUpdates:
    """SYNC is free and STEP takes its planned time after the sum's."""

    def __init__(self, times: Collection[StageTimes], sleeper: Sleeper) -> None:
        self._times, self._sleeper = tuple(times), sleeper
        self._ready_s: dict[int, float] = {}

    def launch(self, pipe: int, stage: int) -> None:
        self._ready_s[stage] = time.perf_counter() + self._times[stage].sync_ns * NS

    def step(self, pipe: int, stage: int) -> None:
        self._sleeper.sleep(self._ready_s[stage] - time.perf_counter() + self._times[stage].step_ns * NS)
