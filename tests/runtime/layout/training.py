"""Whole models trained by ranks that are threads, beside one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from planner.capture import Captured, capture, cut, materialise
from planner.layout import LocalGraph, Wish, everywhere, path
from runtime.layout import Convert, CutGroup
from runtime.layout.stage import STATE, cut_stage, local_graph
from tests.planner.library_models import Case
from tests.runtime.spatial.threads import ThreadWire, run

STEPS, RATE, EXACT = 5, 0.05, 1e-12


@dataclass(frozen=True)
class Trained:
    """What a training gives: losses, and all gradients after every step."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]
    sent: int = 0  # bytes by the rank that sends most


def captured_in_double(case: Case, n: int = 2) -> tuple[Captured, dict[str, Tensor], list[dict[str, Tensor]]]:
    """Returns a model captured in float64, its tensors, and a batch for each step."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        module, batch, loss = case
        module = module.double()
        captured = capture(module, lambda n: _double(batch(n)), loss, micro=n)
        tensors = {name: x.detach().clone() for name, x in captured.initial(module).items()}
        torch.manual_seed(1)
        batches = [captured.batch_values(*_double(batch(n))) for _ in range(STEPS)]
    finally:
        torch.set_default_dtype(before)
    return captured, tensors, batches


def _double(value: object) -> tuple[object, object]:
    return torch.utils._pytree.tree_map(  # type: ignore[no-any-return]
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, value
    )


def alone(
    captured: Captured, tensors: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
) -> Trained:
    (stage,) = cut(captured, ())
    materialise(stage, tensors)
    losses, gradients = [], []
    for batch in batches:
        (loss,) = _losses(stage, batch)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({name: _grad(x).clone() for name, x in stage.named_parameters()})
        _step(stage)
    return Trained(losses, gradients)


def together(
    captured: Captured,
    tensors: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    mesh: tuple[int, ...],
    wishes: Sequence[Wish],
) -> tuple[list[Trained], LocalGraph]:
    """The same training by all ranks of a group; gradients are put together after every step."""
    graph = local_graph(captured, mesh, wishes)

    def work(wire: ThreadWire) -> Trained:
        group = CutGroup(mesh, wire)
        (stage,) = cut(captured, ())
        materialise(stage, tensors)
        cut_stage(stage, graph, group)
        losses, gradients, sent = [], [], 0
        for batch in batches:
            before = wire.sent_bytes
            (loss,) = _losses(stage, batch)
            loss.backward()
            sent = wire.sent_bytes - before
            losses.append(float(loss.detach()))
            whole = {}
            for name, x in stage.named_parameters():
                held = graph.states[STATE + name].dual()
                summed = held
                for axis in sorted(held.partial):
                    x.grad = group.reduced(_grad(x), axis)
                    summed = type(held)(held.shape, held.cuts, summed.partial - {axis})
                steps = path(summed, everywhere(held.shape), mesh, trained=False)
                whole[name] = Convert(steps, group)(_grad(x)).clone()
            gradients.append(whole)
            _step(stage)
        return Trained(losses, gradients, sent)

    return run(prod(mesh), work), graph


def _losses(stage: torch.nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor]:
    found = list(stage(batch).values())
    return (found[-1],)


def _grad(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _step(stage: torch.nn.Module) -> None:
    with torch.no_grad():
        for _, x in stage.named_parameters():
            if x.grad is not None:
                x -= RATE * x.grad
                x.grad = None


def difference(one: Trained, others: Sequence[Trained]) -> tuple[float, float]:
    """The largest differences of losses and of gradients of any rank and step."""
    losses = max(abs(a - b) for other in others for a, b in zip(one.losses, other.losses, strict=True))
    gradients = max(
        float((mine[name] - theirs[name]).abs().max())
        for other in others
        for mine, theirs in zip(one.gradients, other.gradients, strict=True)
        for name in mine
    )
    return losses, gradients
