"""Models of many kinds with an optimizer of one's choice, which may mask gradients: a dense training to compare with."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models import gpt2, lstm, resnet50, unet3d
from tests.runtime.workloads import branches

__all__ = ["batch", "build", "loss", "optimizer"]

KINDS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.002, weight_decay=0.1),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.001, momentum=0.5),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "radam": lambda groups: torch.optim.RAdam(groups, lr=0.002),
}
SMALL = {
    "gpt2": (gpt2, {"size": "tiny"}, {"size": "tiny", "seq": 16}),
    "unet3d": (unet3d, {"size": "tiny"}, {"size": "tiny"}),
    "lstm": (lstm, {"size": "tiny"}, {"size": "tiny"}),
    "resnet50": (resnet50, {"width": 8, "classes": 10}, {"side": 32, "classes": 10}),
    "tied": (branches, {}, {}),
}


def build(model: str = "gpt2") -> nn.Module:
    made, settings, _ = SMALL[model]
    return made.build(**settings)


def batch(n: int, model: str = "gpt2") -> tuple[Tensor, Tensor]:
    made, _, settings = SMALL[model]
    return made.batch(n, **settings)


def loss(outputs: Tensor, targets: Tensor, model: str = "gpt2") -> Tensor:
    return SMALL[model][0].loss(outputs, targets)


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], kind: str = "adamw", masks: str = ""
) -> torch.optim.Optimizer:
    named = list(named_parameters)
    made = KINDS[kind]([p for _, p in named])
    if masks:
        from safetensors.torch import load_file

        indices = load_file(masks)
        pruned = [(p, _pruned(p, indices[name])) for name, p in named if name in indices]

        def mask(*_: object) -> None:
            for parameter, where in pruned:
                if parameter.grad is not None:
                    parameter.grad.view(-1)[where] = 0.0

        made.register_step_pre_hook(mask)
    return made


def _pruned(parameter: Tensor, index: Tensor) -> Tensor:
    found = torch.ones(math.prod(parameter.shape), dtype=torch.bool)
    found[index.long()] = False
    return found
