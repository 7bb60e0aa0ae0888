from collections.abc import Callable

from models import mlp


def test_an_mlp_has_as_many_linear_layers_as_asked_for(count: Callable[..., int]) -> None:
    assert count(mlp.build, layers=1, width=8, classes=3) == 8 * 3 + 3
    assert count(mlp.build, layers=3, width=8, classes=3) == 2 * (8 * 8 + 8) + 8 * 3 + 3
