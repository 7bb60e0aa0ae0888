"""Kernels by operation: the same keys as the rules of `planner.halo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtime.spatial import convolution, loss, norm, pooling, reduce, resample, shapes
from runtime.spatial.site import Kernel

KERNELS: Final[Mapping[str, Kernel]] = {
    **shapes.KERNELS,
    **convolution.KERNELS,
    **pooling.KERNELS,
    **norm.KERNELS,
    **resample.KERNELS,
    **reduce.KERNELS,
    **loss.KERNELS,
}
