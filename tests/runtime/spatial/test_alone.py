from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.measure import measure
from planner.profile import Profile
from planner.profile import yaml as profile_yaml
from planner.workload import load
from runtime.spatial import AloneShard

UNET = {"size": "tiny"}
WRITTEN = """
import torch
from torch import nn

class Written(nn.Conv2d):
    def forward(self, x):
        x = x.clone()
        x[:, :, 0] = 0.0
        return super().forward(x)

def build():
    return Written(3, 4, 1)

def batch(n):
    return torch.randn(n, 3, 8, 8), torch.randn(n, 4, 8, 8)

def loss(outputs, targets):
    return (outputs - targets).square().mean()
"""


def rows(found: Profile, grid: tuple[int, ...]) -> dict[str, float]:
    """Forward bytes of every layer that has a shard, relative to those of whole samples."""
    (setting,) = found.settings
    key = setting._replace(split=grid)
    shares = {}
    for layer in found.graph.layers:
        shard = found.costs.get(key._replace(signature=layer.signature))
        if shard is not None and layer.name != "loss":
            shares[layer.name] = sum(shard.output_bytes) / sum(found.cost(layer.name, setting).output_bytes)
    return shares


def test_a_shard_makes_its_part_and_asks_for_less() -> None:
    found = measure.profile(
        load("unet3d", {"size": "mlperf"}),
        "roofline:V100-32GB",
        micros=(1,),
        spatial=AloneShard(),
        grids=((2,), (2, 2)),
    )
    assert set(rows(found, (2,)).values()) == {0.5}
    assert set(rows(found, (2, 2)).values()) == {0.25}
    (setting,) = found.settings
    convolution = found.graph.layers[0]
    whole, half = (found.cost(convolution.name, setting._replace(split=grid)) for grid in ((), (2,)))
    assert half.forward.median < whole.forward.median
    assert half.backward.median < whole.backward.median


def test_every_layer_of_a_network_for_volumes_has_a_row(tmp_path: Path) -> None:
    found = measure.profile(
        load("unet3d", UNET), "cpu", micros=(1,), spatial=AloneShard(), grids=((2,),), seconds_per_row=0.001
    )
    assert [setting.split for setting in found.shards] == [(2,)]
    assert set(rows(found, (2,))) == {layer.name for layer in found.graph.layers} - {"loss"}
    path = tmp_path / "profile.yaml"
    profile_yaml.save(found, path)
    assert profile_yaml.load(path) == found


def test_a_model_without_space_is_refused_with_what_its_first_layer_reads() -> None:
    why = (
        r"no layer can be computed on shards \[2\]: layer '\S+' \(aten\.embedding\) reads 'input' of shape \["
    )
    with pytest.raises(BadInput, match=why):
        measure.profile(
            load("gpt2", UNET), "roofline:V100-32GB", micros=(1,), spatial=AloneShard(), grids=((2,),)
        )


def test_a_model_without_a_rule_for_its_layers_is_refused_with_the_first_operation(tmp_path: Path) -> None:
    path = tmp_path / "written.py"
    path.write_text(WRITTEN)
    why = r"on shards \[2\]: \S+.*: aten\.fill_ on parts of a sample: it writes into a part of a tensor"
    with pytest.raises(BadInput, match=why):
        measure.profile(
            load(str(path)), "roofline:V100-32GB", micros=(1,), spatial=AloneShard(), grids=((2,),)
        )


def test_without_shards_to_execute_a_split_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"no shards can be executed here: \[2, 1\]"):
        measure.profile(load("unet3d", UNET), "roofline:V100-32GB", micros=(1,), grids=((2, 1),))


@pytest.mark.parametrize("grid", [(), (0,), (2, -1)])
def test_a_grid_that_is_none_is_refused(grid: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="spatial split"):
        measure.profile(
            load("unet3d", UNET), "roofline:V100-32GB", micros=(1,), spatial=AloneShard(), grids=(grid,)
        )
