"""Which optimizers update each parameter by itself: stand-ins that are updated together and alone tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import nn

from planner.errors import BadInput
from planner.model import ModelGraph, Parameter
from planner.workload import check_optimizer, load, whole_optimizer
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
    return check_optimizer(with_optimizer(make), model_of(5))


def with_optimizer(make: Callable[[Named], torch.optim.Optimizer]) -> Workload:
    workload: Workload = load("mlp")
    return replace(workload, functions={**workload.functions, "optimizer": make})


def model_of(width: int, dtype: str = "float32") -> ModelGraph:
    rows = [
        Parameter(
            name=f"{k}.weight",
            users=(),
            shape=(width,) * (1 + k % (3 if width < 9 else 2)),
            dtype=dtype,
            bytes=0,
            trainable=k != 3,
        )
        for k in range(30)
    ]
    return replace(graphs.chain(), parameters=tuple(rows))


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


class ClippingLate(torch.optim.SGD):
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1000.0)
        super().step()


def test_a_clip_that_very_large_gradients_alone_reach_is_met() -> None:
    assert judged(lambda named: ClippingLate(parameters(named), lr=0.1)) == "ClippingLate"


class Counting(torch.optim.SGD):
    """Its steps become smaller, by a count that no checkpoint keeps."""

    count = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.count += 1
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.1 / self.count)


class Averaging(torch.optim.SGD):
    """Keeps weights of two steps ago as an attribute, as a lookahead does."""

    def __init__(self, named: Named) -> None:
        super().__init__(parameters(named), lr=0.1)
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.state["count"] = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        self.state["count"] += 1
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            if self.state["count"] % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))


@pytest.mark.parametrize("make", [lambda named: Counting(parameters(named), lr=0.1), Averaging])
def test_an_optimizer_that_keeps_more_than_checkpoints_hold_is_refused(
    make: Callable[[Named], torch.optim.Optimizer],
) -> None:
    with pytest.raises(BadInput, match="a resumed run would train otherwise"):
        judged(make)


class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for p in self.param_groups[0]["params"]:
            p.add_(0.01 * torch.randn_like(p))


class Factoring(torch.optim.Optimizer):
    """Divides by means over rows and columns from 128 of them on, as some Adafactors do."""

    def __init__(self, named: Named) -> None:
        super().__init__(parameters(named), {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            square = p.grad**2 + 1e-12
            if min(p.shape) >= 128 and p.ndim == 2:
                square = square.mean(0, keepdim=True) * square.mean(1, keepdim=True) / square.mean()
            p.sub_(0.01 * p.grad / square.sqrt())


class Remembering(torch.optim.SGD):
    """Is drawn to where its parameters stood when it was made."""

    def __init__(self, named: Named) -> None:
        super().__init__(parameters(named), lr=0.1)
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"start": p.detach().clone()}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.lerp_(self.state[p]["start"], 0.1).sub_(0.1 * p.grad)


def by_size(named: Named) -> torch.optim.Optimizer:
    groups = [{"params": [p], "lr": 0.1 if p.numel() > 6 else 0.2 / p.shape[0]} for _, p in named]
    return torch.optim.Adagrad(groups, initial_accumulator_value=0.1)


@pytest.mark.parametrize("make", [Whitening, Factoring, Remembering])
def test_an_optimizer_that_needs_whole_parameters_is_told_by_name(
    make: Callable[[Named], torch.optim.Optimizer],
) -> None:
    assert whole_optimizer(with_optimizer(make), model_of(300)) == make.__name__


def test_large_matrices_tell_what_small_ones_do_not() -> None:
    assert whole_optimizer(with_optimizer(Factoring), model_of(100)) == ""


@pytest.mark.parametrize("width", [5, 300])
def test_an_optimizer_that_groups_by_size_updates_parts_as_it_does_the_whole(width: int) -> None:
    assert whole_optimizer(with_optimizer(by_size), model_of(width)) == ""


def test_roundings_of_half_precision_are_not_taken_for_a_need_of_whole_parameters() -> None:
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        make = with_optimizer(lambda named, kind=kind: kind(parameters(named), lr=0.01))  # type: ignore[misc]
        assert whole_optimizer(make, model_of(5, "bfloat16")) == ""
    assert whole_optimizer(with_optimizer(Factoring), model_of(300, "bfloat16")) == "Factoring"


@pytest.mark.parametrize("make", [Remembering, OneStep, lambda named: Noisy(parameters(named), lr=0.1)])
def test_what_is_kept_for_each_parameter_or_drawn_is_not_refused(
    make: Callable[[Named], torch.optim.Optimizer],
) -> None:
    judged(make)
