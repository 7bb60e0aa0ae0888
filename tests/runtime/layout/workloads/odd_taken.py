"""The small attention of `odd.py` with a module that is taken as it is."""

from __future__ import annotations

from tests.runtime.layout.workloads.odd import batch, build, loss

__all__ = ["batch", "build", "loss"]
opaque = ["taken"]
