"""A small model of transformers by name, in double precision and without dropout."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tests.runtime.layout.cut_models import MODELS, without_dropout

Batch = Callable[[int], tuple[object, object]]
Loss = Callable[..., object]
_made: dict[str, tuple[Batch, Loss]] = {}  # without the model, whose parameters would be a loss's own


def _case(model: str) -> tuple[Batch, Loss]:
    if model not in _made:
        _, *others = MODELS[model][0]()
        _made[model] = others[0], others[1]
    return _made[model]


def build(model: str = "BERT") -> nn.Module:
    return without_dropout(MODELS[model][0]())[0].double()


def batch(n: int, model: str = "BERT") -> tuple[object, object]:
    made = tree_map(_wide, _case(model)[0](n))
    return made[0], made[1]


def _wide(x: object) -> object:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def loss(outputs: object, targets: object, model: str = "BERT") -> Tensor:
    found = _case(model)[1](outputs, targets)
    assert isinstance(found, Tensor)
    return found
