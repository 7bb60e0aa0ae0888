"""A captured model becomes data and is made again, without the user's code, as the same layers and numbers."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from planner.capture import capture
from planner.capture.captured import Captured
from planner.capture.travel import from_data, to_data
from planner.errors import BadInput
from tests import draws
from tests.planner.capture_cases import CASES, mse, vectors
from tests.planner.capture_corners import CORNERS
from tests.planner.staged import check_case

SMALL = CASES | CORNERS
CHOSEN = Random(draws.SEED).sample(sorted(SMALL), 12)
OWN_CODE = ("with its own backward", "opaque")


def sent(captured: Captured) -> Captured:
    return from_data(json.loads(json.dumps(to_data(captured))), captured.layout.traced.constants)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_model_that_travelled_equals_the_module(name: str) -> None:
    torch.manual_seed(0)
    case = SMALL[name]()
    captured = capture(*case)
    try:
        again = sent(captured)
    except BadInput as refused:
        assert any(words in str(refused) for words in OWN_CODE)
        return
    assert again.graph == captured.graph
    check_case(case, seed=1, captured=again)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 3 * gradient


class OwnBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = Doubled.apply(self.first(x))
        return doubled


def test_code_with_its_own_backward_is_refused_with_a_way_out() -> None:
    captured = capture(OwnBackward(), vectors(4), mse)
    with pytest.raises(BadInput, match=r"'Doubled', code of yours with its own backward.*module file"):
        to_data(captured)


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    captured = capture(nn.Linear(4, 3), vectors(4), mse)
    return json.loads(json.dumps(to_data(captured)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("aten.from_file.default", "no operation that a model may have"),
        ("aten.set_.source_Storage", "no operation that a model may have"),
        ("os.system", "no operation that a model may have"),
        ("builtins.eval", "no operation that a model may have"),
        ("aten.sub.Tensor", "does not run"),
    ],
)
def test_a_strangers_operation_is_refused(data: dict[str, Any], call: str, words: str) -> None:
    changed = copy.deepcopy(data)
    next(row for row in changed["nodes"] if "call" in row)["call"] = call
    with pytest.raises(BadInput, match=words):
        from_data(changed, {})


@pytest.mark.parametrize("key", ["graph", "nodes", "outputs", "layers", "version", "probes"])
def test_data_that_lacks_a_part_is_refused(data: dict[str, Any], key: str) -> None:
    with pytest.raises(BadInput):
        from_data({name: value for name, value in data.items() if name != key}, {})


def test_a_changed_number_is_found_by_its_layers_signature(data: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(data).replace('"shape": [[3, 0], [4, 0]]', '"shape": [[3, 0], [5, 0]]'))
    assert changed != data
    with pytest.raises(BadInput):
        from_data(changed, {})


def test_values_of_other_names_than_the_operations_give_are_refused(data: dict[str, Any]) -> None:
    other = json.loads(json.dumps(data["graph"]).replace(':0"', ':9"'))
    with pytest.raises(BadInput, match="does not belong to these layers") as wrong:
        from_data({**data, "graph": other}, {})
    other["fingerprint"] = wrong.value.allowed.partition(",")[0]
    with pytest.raises(BadInput, match=r"no Value is called '.*:0', which it computes"):
        from_data({**data, "graph": other}, {})
