"""Optimizer state that was saved comes back to where the optimizer has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runtime.update.optimizer import SavedState, load_state


class Piece:
    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor = name, tensor


class OneBucket:
    """A bucket of one parameter."""

    bucket = "all"

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter

    def pieces(self) -> list[Piece]:
        return [Piece("weight", self.parameter)]


def test_state_lies_beside_its_parameter_and_the_count_of_steps_on_the_host() -> None:
    parameter = nn.Parameter(torch.zeros(3, device="meta"))  # which is on no host
    saved = {"step": torch.tensor(7.0), "exp_avg": torch.ones(3), "largest": torch.tensor(2.0)}
    for options, place in (({}, "cpu"), ({"capturable": True}, "meta")):
        optimizer = torch.optim.AdamW([parameter])
        settings = {"weight": {"group": options, "state": {}}}
        load_state({"all": optimizer}, [OneBucket(parameter)], SavedState({"weight": saved}, settings))  # type: ignore[dict-item, list-item]
        found = {key: x.device.type for key, x in optimizer.state[parameter].items()}
        assert found == {"step": place, "exp_avg": "meta", "largest": "meta"}
