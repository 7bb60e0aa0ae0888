"""Kernels by operation, under the same keys as the rules of `planner.spatial`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtime.spatial.kernels import convolution, loss, norm, pooling, reduce, resample, reshapes
from runtime.spatial.operation import Kernel

KERNELS: Final[Mapping[str, Kernel]] = {
    **reshapes.KERNELS,
    **convolution.KERNELS,
    **pooling.KERNELS,
    **norm.KERNELS,
    **resample.KERNELS,
    **reduce.KERNELS,
    **loss.KERNELS,
}
