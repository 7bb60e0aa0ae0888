"""Optimizers that mix the entries of a tensor are refused by name, and those that do not are let through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from planner.errors import BadInput
from planner.model import ModelGraph
from runtime.kept.trial import refuse_mixing
from tests.captures import captured_of
from tests.runtime.test_equality import HERE

Rows = Iterable[tuple[str, nn.Parameter]]
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
    "Wide": lambda p: Wide(p, lr=0.01),
    "Named": lambda p: Named(p, lr=0.01),
    "Late": lambda p: Late(p, lr=0.01),
    "Held": lambda p: Held(p, lr=0.01),
}


class ByShape(torch.optim.SGD):
    """Reads the shape of its parameters in its step."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-0.1 / p.shape[0])


def mixed(p: Tensor) -> None:
    p.data.sub_(p.grad.mean(), alpha=0.1)  # type: ignore[union-attr]


class Wide(torch.optim.SGD):
    """Mixes the entries of large tensors alone."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if min(p.shape) >= 128:
                    mixed(p)


class Late(torch.optim.SGD):
    """Mixes entries from its fifth step on."""

    steps = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.steps += 1
        for p in self.param_groups[0]["params"] if self.steps > 4 else ():
            mixed(p)


class Named(torch.optim.SGD):
    """Mixes the entries of one tensor of many."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        mixed(self.param_groups[0]["params"][14])


class Held(torch.optim.SGD):
    """Has parameters of its own besides those in its groups, as what clips them does."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, lr)
        self.held = list(params)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        torch.nn.utils.clip_grad_value_(self.held, 10.0)
        super().step()


def graph() -> ModelGraph:
    """A model of many weights, one of them large."""
    found = captured_of(HERE + "mlp.py", {"layers": "5"}, 2)[1].graph
    weight = next(row for row in found.trained if len(row.shape) > 1)
    more = [replace(weight, name=f"more{i}", shape=(300, 500) if i == 9 else (7, 5)) for i in range(20)]
    return replace(found, parameters=(*found.parameters, *more))


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


def test_fused_updates_are_refused_since_they_round_an_entry_by_its_place() -> None:
    with pytest.raises(BadInput, match="AdamW with fused=True rounds an entry by its place"):
        refuse_mixing(lambda named: torch.optim.AdamW([p for _, p in named], fused=True), graph(), kept())


def test_groups_by_dims_and_by_name_are_those_of_the_whole_parameters() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def make(named: Rows) -> torch.optim.Optimizer:
        rows = list(named)
        seen.extend((name, tuple(p.shape)) for name, p in rows)
        wide = [p for name, p in rows if p.ndim > 1 and name.endswith("weight")]
        assert wide
        return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}], lr=0.01)

    refuse_mixing(make, graph(), kept())
    dims = {name: len(row.shape) for name, row in graph().parameter.items()}
    assert {name for name, _ in seen} == kept().keys() and all(len(s) == dims[name] for name, s in seen)


def test_state_that_an_optimizer_has_from_the_start_is_compressed() -> None:
    from runtime.update import OwnPart, made

    whole, entries = nn.Parameter(torch.arange(6.0).view(2, 3)), torch.tensor([1, 4])
    leaf = nn.Parameter(whole.detach().reshape(-1)[entries].view(1, 2))
    optimizer = made(
        lambda named: torch.optim.Adagrad([p for _, p in named], initial_accumulator_value=0.5),
        [OwnPart("w", 0, 2, leaf, whole, lambda every: every.reshape(-1)[entries].view(1, 2))],
    )
    assert optimizer is not None and optimizer.param_groups[0]["params"] == [leaf]
    state: Tensor = optimizer.state[leaf]["sum"]
    assert state.shape == (1, 2) and list(optimizer.state) == [leaf]
