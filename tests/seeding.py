"""Spares `torch.manual_seed` what it does for devices that are not here.

For each it keeps the call and a formatted traceback of its caller until the device is first used: a millisecond a
sample below pytest's many frames, and a list that only grows.
"""

from __future__ import annotations

import torch


def spare_absent_devices() -> None:
    for device in (torch.cuda, torch.xpu):
        if not device.is_available():
            device.manual_seed_all = _nothing


def _nothing(seed: int) -> None: ...
