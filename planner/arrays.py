"""Defines the types of number arrays that planner passes around, and the nanoseconds in a second.

The types are for annotations alone, so that data such as a cluster is read without loading numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    BoolArray = NDArray[np.bool_]
    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]
else:
    BoolArray = FloatArray = IntArray = object

NS_PER_S = 1_000_000_000
