"""Products with a weight that is turned before: the weight is held in parts, as that of a linear layer is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.layout import Wish
from tests.runtime.layout.test_models import Prepared
from tests.runtime.layout.training import EXACT, alone, captured_in_double, difference, together

WORDS, WIDTH, LENGTH = 32, 16, 6


class Pair(nn.Module):
    """Two products with weights of this module, one turned by `t` and one by `transpose`."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(n, m) / 8) for n, m in ((64, WIDTH), (WIDTH, 64)))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.matmul(F.gelu(x @ self.up.t()), self.down.transpose(0, 1))
        return found


class Head(nn.Module):
    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return x @ words.t()


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.pair, self.head = nn.Embedding(WORDS, WIDTH), Pair(), Head()

    def forward(self, words: Tensor) -> Tensor:
        x = self.token(words)
        found: Tensor = self.head(x + self.pair(x), self.token.weight)
        return found


@cache
def prepared() -> Prepared:
    torch.manual_seed(0)
    found = captured_in_double(
        (
            Turned(),
            lambda n: (torch.randint(WORDS, (n, LENGTH)), torch.randint(WORDS, (n, LENGTH))),
            lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten()),
        )
    )
    return (*found, alone(*found))


CUTS: Mapping[str, tuple[Mapping[str, str], tuple[int, ...], str]] = {
    "a pair": ({"pair": "hidden"}, (2,), "pair.up"),
    "a pair of four ranks": ({"pair": "hidden"}, (4,), "pair.down"),
    "words of a tied head": ({"token": "vocabulary", "head": "out"}, (2,), "token.weight"),
    "at rest": ({"*": "samples", "pair": "stored"}, (2,), "pair.up"),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_weight_that_is_turned_trains_in_parts_as_in_one_process(name: str) -> None:
    captured, tensors, batches, one = prepared()
    cuts, mesh, held = CUTS[name]
    lines = [Wish(pattern, 0, factor) for pattern, factor in cuts.items()]
    others, graph = together(captured, tensors, batches, mesh, lines)
    assert max(difference(one, others)) < EXACT
    assert graph.states[f"state:{held}"].cut_axes == (0,)


def test_a_pair_with_turned_weights_sends_what_one_of_linear_layers_does() -> None:
    captured, tensors, batches, _ = prepared()
    _, graph = together(captured, tensors, batches, (2,), [Wish("pair", 0, "hidden")])
    sending = [x for x in graph.conversions() if any(x.sent((2,)))]
    assert [(x.steps[0].forward, x.steps[0].backward) for x in sending] == [
        ("none", "reduce"),
        ("reduce", "none"),
    ]


def test_a_turned_weight_that_another_layer_has_whole_stays_whole() -> None:
    captured, tensors, batches, one = prepared()
    others, graph = together(captured, tensors, batches, (2,), [Wish("head", 0, "out")])
    assert max(difference(one, others)) < EXACT
    assert not graph.states["state:token.weight"].cut_axes
