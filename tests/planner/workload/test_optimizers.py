"""Which optimizers update each parameter by itself: stand-ins that are updated together and alone tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import nn

from planner.model import Parameter
from planner.workload import check_optimizer, load
from planner.workload.workload import Workload
from tests.planner import graphs

Named = Iterable[tuple[str, nn.Parameter]]


def parameters(named: Named) -> list[nn.Parameter]:
    return [parameter for _, parameter in named]


class OneStep(torch.optim.Optimizer):
    """One step size for all, from the gradients of all, as Prodigy and D-Adaptation have it."""

    def __init__(self, named: Named) -> None:
        super().__init__(parameters(named), {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        every = [p for group in self.param_groups for p in group["params"]]
        size = 0.01 / sum(float(p.grad.abs().sum()) for p in every)
        for p in every:
            p.data.sub_(size * p.grad)


class Clipping(torch.optim.AdamW):
    """Clips inside its step; after the first update Adam itself would hide a factor of all gradients."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        super().step()


class Whitening(torch.optim.Optimizer):
    """Needs each matrix whole, and no others, as Muon does."""

    def __init__(self, named: Named) -> None:
        super().__init__([p for p in parameters(named) if p.ndim == 2], {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            u, _, v = torch.linalg.svd(p.grad, full_matrices=False)
            p.data.sub_(0.1 * u @ v)


def by_depth(named: Named) -> torch.optim.Optimizer:
    groups = [{"params": [p], "lr": 0.1 * 0.9**depth} for depth, (_, p) in enumerate(named)]
    return torch.optim.SGD(groups)


def by_name(named: Named) -> torch.optim.Optimizer:
    groups = [{"params": [p], "lr": 0.1 if name.endswith("weight") else 0.2} for name, p in named]
    return torch.optim.SGD(groups)


def judged(make: Callable[[Named], torch.optim.Optimizer]) -> str:
    workload: Workload = load("mlp")
    rows = [
        Parameter(
            name=f"{k}.weight", users=(), shape=(5,) * (1 + k % 3), dtype="float32", bytes=0, trainable=k != 3
        )
        for k in range(30)
    ]
    graph = replace(graphs.chain(), parameters=tuple(rows))
    return check_optimizer(replace(workload, functions={**workload.functions, "optimizer": make}), graph)


@pytest.mark.parametrize("make", [OneStep, lambda named: Clipping(parameters(named)), by_depth])
def test_an_optimizer_that_looks_at_all_parameters_is_told_by_name(
    make: Callable[[Named], torch.optim.Optimizer],
) -> None:
    assert judged(make) in ("OneStep", "Clipping", "SGD")


@pytest.mark.parametrize(
    "make",
    [
        Whitening,
        by_name,
        *(
            lambda named, kind=kind: kind(parameters(named), lr=0.01)
            for kind in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adafactor, torch.optim.NAdam)
        ),
    ],
)
def test_an_optimizer_that_updates_each_parameter_by_itself_is_not(
    make: Callable[[Named], torch.optim.Optimizer],
) -> None:
    assert judged(make) == ""
