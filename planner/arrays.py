"""The types of number arrays that the planner passes around, and the nanoseconds of a second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
NS_PER_S = 1_000_000_000
