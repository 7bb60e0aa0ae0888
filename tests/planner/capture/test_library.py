"""Models of transformers and monai: the graph equals the module, and stages cut anywhere equal the graph.

Three of them, chosen by SHARDWRIGHT_SEED; all of them with SHARDWRIGHT_ALL_MODELS=1, or in the benchmark
capture_matrix.
"""

from __future__ import annotations

import os
import random
import warnings

import pytest
import torch

from tests.planner.library_models import LIBRARY
from tests.planner.staged import check_case

SLOW = {"SwinUNETR"}
SEED = int(os.environ.get("SHARDWRIGHT_SEED", "5"))
SOME = random.Random(SEED).sample(sorted(LIBRARY.keys() - SLOW), 3)
CHOSEN = list(LIBRARY) if os.environ.get("SHARDWRIGHT_ALL_MODELS") else SOME


@pytest.mark.parametrize("name", CHOSEN)
def test_stages_of_a_library_model_equal_it(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, on import
        torch.manual_seed(SEED)
        case = LIBRARY[name]()
    check_case(case, seed=SEED)
