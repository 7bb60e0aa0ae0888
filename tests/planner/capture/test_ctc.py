"""A CTC loss is one operation, and its stages compute what the module computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.planner.staged import check_case


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 9, 4), torch.randint(1, 5, (n, 3))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_stages_of_a_model_with_a_ctc_loss_give_its_loss_and_gradients(reduction: str) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        scores = outputs.log_softmax(-1).transpose(0, 1)
        frames, words = (torch.full((labels.shape[0],), size) for size in (scores.shape[0], labels.shape[1]))
        return F.ctc_loss(scores, labels, frames, words, reduction=reduction).mean()

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
    assert check_case((model, batch, loss)).graph.symbolic_batch
