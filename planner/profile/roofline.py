"""Predicts times from FLOPs, bytes moved and a device's peaks: planning without the hardware, and without torch.

An operation takes the longer of its arithmetic and its memory traffic, and never less than a launch. That is a
lower bound on what a real kernel takes, and a profile made of it says so (`source: roofline`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.cluster import Device
from planner.profile.profile import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationWork:
    """The work of one operation: arithmetic and memory traffic."""

    flops: int
    traffic_bytes: int
    precision: str  # of its arithmetic


def seconds(work: Iterable[OperationWork], device: Device) -> Seconds:
    """Returns what operations take one after the other.

    Args: `work` has one row an operation; `device` has the peak rates.
    """
    return Seconds(
        median=sum(
            max(
                x.flops / device.flop_per_s(x.precision),
                x.traffic_bytes / device.memory_bytes_per_s,
                device.launch_s,
            )
            for x in work
        )
    )
