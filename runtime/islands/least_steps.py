"""Says how many steps a round should have, by what a round costs beside its steps.

A round moves, for each shard, its checkpoint four times (begun from, loaded, written, read for the sum), and the weights
once more for the next version:

    overhead = (S * 4 * (W + O) + W) / rate + S / N * start         steps = S / N * H * step

for N islands, S shards, W bytes of weights and O of optimizer state. The least H with overhead <= 10 % of both follows.
Who adds up has all weights sent and received: N_w islands with W bytes each want at least 2 W N_w / (rate * H * step)
of them, so that adding up takes no longer than a round's steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from planner.files import absolute
from planner.plan import Plan
from planner.units import format_bytes, format_duration
from runtime import checkpoint as checkpoints

SHARE = 0.1  # of a round, that is not steps
START_S = 0.5  # until ranks are forked, have met and loaded, on a host
MOVES = 4  # of a shard's checkpoint
SAMPLE_BYTES = 32 * 2**20  # that the file system is measured by


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How many steps a round should have, and what that rests on."""

    islands: int
    shards: int
    weight_bytes: int
    state_bytes: int
    bytes_per_s: float  # of the file system, as measured
    step_s: float  # as predicted
    overhead_s: float  # of a round, on each island
    inner_steps: int  # the least
    reducers: int  # at so many steps

    def text(self) -> str:
        """Returns the advice for people."""
        return "\n".join(
            [
                f"weights {format_bytes(self.weight_bytes)}, optimizer state {format_bytes(self.state_bytes)}, "
                f"step {format_duration(self.step_s * 1e9)} by the plan",
                f"the file system takes {format_bytes(int(self.bytes_per_s))} a second (measured in this folder)",
                f"a round costs {format_duration(self.overhead_s * 1e9)} beside its steps",
                f"--inner-steps {self.inner_steps} is the least for {SHARE:.0%} of overhead; "
                f"{self.reducers} {'islands' if self.reducers > 1 else 'island'} would have to add up, 1 does",
            ]
        )


def advice(plan: Plan, folder: Path | str, islands: int, shards: int) -> Advice:
    """Measures the file system that islands will share, and says how many steps a round should have.

    Args: `folder` is where the islands will train; it need not exist.
    """
    where = absolute(Path(folder))
    there = next(path for path in (where, *where.parents) if path.is_dir())
    memory = plan.prediction.memory
    weights, state = sum(x.parameters for x in memory), sum(x.optimizer for x in memory)
    rate = SAMPLE_BYTES / checkpoints.write_s(there, SAMPLE_BYTES)
    return advised(
        islands=islands,
        shards=shards,
        weight_bytes=weights,
        state_bytes=state,
        bytes_per_s=rate,
        step_s=plan.prediction.step_ns * 1e-9,
    )


def advised(
    *,
    islands: int,
    shards: int,
    weight_bytes: int,
    state_bytes: int,
    bytes_per_s: float,
    step_s: float,
) -> Advice:
    """Returns how many steps a round should have, for a file system of a known rate."""
    turns = shards / min(islands, shards)  # of an island in a round
    moved = shards * MOVES * (weight_bytes + state_bytes) + weight_bytes
    overhead = moved / bytes_per_s + turns * START_S
    least = max(1, ceil(overhead * (1 - SHARE) / SHARE / (turns * step_s)))
    return Advice(
        islands=islands,
        shards=shards,
        weight_bytes=weight_bytes,
        state_bytes=state_bytes,
        bytes_per_s=bytes_per_s,
        step_s=step_s,
        overhead_s=overhead,
        inner_steps=least,
        reducers=max(1, ceil(2 * weight_bytes * islands / (bytes_per_s * least * step_s))),
    )
