"""A small network with the optimizer of one's choice, in groups by name, and a learning rate that moves."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models import mlp
from models.mlp import batch, loss

__all__ = ["batch", "build", "loss", "lr_schedule", "optimizer"]


class Lamb(torch.optim.Optimizer):
    """A step as long as the norm of its parameter, in the direction of Adam's."""

    def __init__(self, groups: list[dict[str, object]], lr: float = 0.01) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                first = state.setdefault("first", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                second = state.setdefault("second", torch.zeros_like(p)).lerp_(p.grad**2, 0.001)
                way = first / (second.sqrt() + 1e-6) + group["weight_decay"] * p
                p.sub_(way * (group["lr"] * p.norm().clamp(min=1e-3) / way.norm().clamp(min=1e-6)))


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal where a parameter is a matrix."""

    def __init__(self, groups: list[dict[str, object]], lr: float = 0.01) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                way = self.state[p].setdefault("momentum", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                if p.ndim == 2:
                    way = way / (way.norm() + 1e-7)
                    for _ in range(3):
                        way = 1.5 * way - 0.5 * way @ way.T @ way
                p.sub_(way, alpha=group["lr"])


KINDS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.002),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.002),
    "amsgrad": lambda groups: torch.optim.AdamW(groups, lr=0.002, amsgrad=True),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.002),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.002, momentum=0.5),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
    "lamb": Lamb,
    "muon": Muon,
}


class Normed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(torch.relu(self.linear(x)) + x)
        return y


def build(layers: int = 8, width: int = 64) -> nn.Module:
    return nn.Sequential(*(Normed(width) for _ in range(layers)), mlp.build(1, width))


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], kind: str = "adamw"
) -> torch.optim.Optimizer:
    named = list(named_parameters)
    decayed = [p for n, p in named if n.endswith("weight")]
    others = [p for n, p in named if not n.endswith("weight")]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return KINDS[kind]([group for group in groups if group["params"]])


def lr_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
