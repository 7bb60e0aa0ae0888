"""Optimizers that mix the entries of a tensor are refused by name, and those that do not are let through."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from planner.errors import BadInput
from planner.model import ModelGraph
from runtime.kept.trial import refuse_mixing
from tests.captures import captured_of
from tests.runtime.test_equality import HERE

Named = Iterable[tuple[str, nn.Parameter]]
BY_ENTRY = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "AMSGrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
}
MIXING = {
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.01),
    "Muon": lambda p: torch.optim.Muon([x for x in p if x.ndim == 2], lr=0.01),
}


class ByShape(torch.optim.SGD):
    """Reads the shape of its parameters in its step."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-0.1 / p.shape[0])


def graph() -> ModelGraph:
    return captured_of(HERE + "mlp.py", {"layers": "5"}, 2)[1].graph


def kept() -> dict[str, int]:
    return {row.name: 7 for row in graph().trained if len(row.shape) > 1}


@pytest.mark.parametrize("name", BY_ENTRY)
def test_an_optimizer_that_updates_each_entry_by_itself_is_let_through(name: str) -> None:
    refuse_mixing(lambda named: BY_ENTRY[name]([p for _, p in named]), graph(), kept())


@pytest.mark.parametrize("name", MIXING)
def test_an_optimizer_that_mixes_entries_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        refuse_mixing(lambda named: MIXING[name]([p for _, p in named]), graph(), kept())


def test_an_optimizer_that_reads_the_shape_of_a_parameter_is_refused_by_its_name() -> None:
    with pytest.raises(BadInput, match="ByShape mixes the entries of a tensor"):
        refuse_mixing(lambda named: ByShape([p for _, p in named], lr=0.1), graph(), kept())


def test_groups_by_dims_and_by_name_are_those_of_the_whole_parameters() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def make(named: Named) -> torch.optim.Optimizer:
        rows = list(named)
        seen.extend((name, tuple(p.shape)) for name, p in rows)
        wide = [p for name, p in rows if p.ndim > 1 and name.endswith("weight")]
        assert wide
        return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}], lr=0.01)

    refuse_mixing(make, graph(), kept())
    assert {shape for _, shape in seen} == {(8, 8)}


def test_state_that_an_optimizer_has_from_the_start_is_compressed() -> None:
    from runtime.update import OwnPart, made

    whole, entries = nn.Parameter(torch.arange(6.0).view(2, 3)), torch.tensor([1, 4])
    leaf = nn.Parameter(whole.detach().reshape(-1)[entries].view(1, 2))
    optimizer = made(
        lambda named: torch.optim.Adagrad([p for _, p in named], initial_accumulator_value=0.5),
        [OwnPart("w", 0, 2, leaf, whole, entries)],
    )
    assert optimizer is not None and optimizer.param_groups[0]["params"] == [leaf]
    state: Tensor = optimizer.state[leaf]["sum"]
    assert state.shape == (1, 2) and list(optimizer.state) == [leaf]
