"""The captured graph equals the module, and its stages, cut anywhere, equal the captured graph."""

from __future__ import annotations

import pytest
import torch

from planner.capture import capture
from planner.workload import load
from tests.draws import part
from tests.planner.capture_cases import CASES
from tests.planner.capture_corners import CORNERS
from tests.planner.staged import check_case

SMALL = CASES | CORNERS
OURS = {
    "mlp": {},
    "gpt2": {"size": "tiny", "seq": "16", "dropout": "0.1"},
    "bert": {"size": "tiny", "seq": "16"},
    "lstm": {"size": "tiny"},
    "resnet50": {"width": "4", "side": "32", "classes": "10"},
    "mobilenetv3": {"size": "small", "side": "32", "classes": "10"},
    "unet3d": {"size": "tiny"},
    "cosmoflow": {"size": "tiny"},
}


@pytest.mark.parametrize("name", part(SMALL, 14))
def test_stages_of_a_small_model_equal_it(name: str) -> None:
    torch.manual_seed(0)
    check_case(SMALL[name](), seed=1)


@pytest.mark.parametrize("name", OURS)
def test_stages_of_a_model_of_ours_equal_it(name: str) -> None:
    workload = load(name, OURS[name])
    captured = capture(workload)
    torch.manual_seed(0)
    case = (workload.build(), workload.batch, workload.loss)
    check_case(case, seed=2, captured=captured)


@pytest.mark.parametrize("n", [1, 5])
def test_one_capture_serves_every_micro_batch(n: int) -> None:
    torch.manual_seed(0)
    case = CASES["attention"]()
    captured = capture(*case)
    assert captured.graph.symbolic_batch
    check_case(case, seed=3, n=n, captured=captured)
