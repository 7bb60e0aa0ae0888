"""Every rule of `planner.layout`, drawn by seed: on parts an operation gives what it gives whole, or is refused.

The whole table is `python -m tests.runtime.layout.operation_cases`.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from planner.layout import FAMILIES, MOVES
from planner.spatial import NoRule
from tests.draws import seed_of
from tests.runtime.layout.one_operation import Case, differences
from tests.runtime.layout.operation_cases import ATEN, SIZES, Trial, cases, outcome, trials
