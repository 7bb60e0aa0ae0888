"""A small model of transformers by name, in double precision and without dropout."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tests.planner.library_models import Case
from tests.runtime.layout.cut_models import MODELS, without_dropout

_made: dict[str, Case] = {}  # for batches and losses alone


def _case(model: str) -> Case:
    if model not in _made:
        _made[model] = MODELS[model][0]()
    return _made[model]


def build(model: str = "BERT") -> nn.Module:
    return without_dropout(MODELS[model][0]())[0].double()


def batch(n: int, model: str = "BERT") -> tuple[object, object]:
    made = tree_map(_wide, _case(model)[1](n))
    return made[0], made[1]


def _wide(x: object) -> object:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def loss(outputs: object, targets: object, model: str = "BERT") -> Tensor:
    found = _case(model)[2](outputs, targets)
    assert isinstance(found, Tensor)
    return found
