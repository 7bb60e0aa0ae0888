"""Every operation is exact on shards, or refused by name before anything runs. A sample; the benchmark runs all."""

from __future__ import annotations

import random
from math import prod

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from planner.errors import BadInput
from planner.spatial.rules.table import RULES
from runtime.spatial.kernels.table import KERNELS
from tests.draws import part
from tests.pool import Pool
from tests.runtime.spatial import threads
from tests.runtime.spatial.cases import CASES, Apply
from tests.runtime.spatial.equality import analysed, differences, on_shards, reference
from tests.runtime.spatial.variants import Variant, variants

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel"
)  # torch's, of what is padded
EXACT = 1e-12
ALL = list(variants())
SAMPLE = part(random.Random(7).sample(ALL, 70), 24)
# Where other libraries were found to be silently wrong, to crash or to refuse.
HARD = (
    "conv2d ker=4 str=2 pad=1",
    "conv2d ker=3",
    "conv2d ker=3 dil=2 pad=2",
    "conv2d ker=5 pad=2 pad=circular str=2",
    "conv2d ker=5 pad=2 pad=reflect",
    "conv2d kernel 19",
    "transposed2d ker=3 str=2 pad=1 out=1",
    "transposed2d ker=3 str=1 pad=1",
    "transposed2d ker=4 str=2 pad=1",
    "maxpool2d ker=3 str=2 pad=1",
    "avgpool2d ker=3 str=2 pad=1",
    "avgpool2d without padding counted",
    "adaptive avg 1",
    "batchnorm2d",
    "groupnorm 2",
    "instancenorm2d running",
    "interpolate2d bilinear False x2",
    "interpolate2d bilinear True x2",
    "dice",
    "cross entropy weighted",
)

FOUND = (  # what was wrong or crashed once
    ("rare conv padded beyond its kernel", "uneven", (3,)),
    ("rare concat of what is cut less", "even", (2, 2)),
    ("rare stack of what is cut less", "odd", (2, 2)),
    ("rare transposed, pooled, and back", "even", (2, 2)),
    ("rare expanded as the sample", "odd", (2,)),
    ("rare mse against a row", "even", (2,)),
    ("rare cross entropy of probabilities, no sum", "even", (2, 2)),
    ("rare multiplied with itself turned", "even", (2, 2)),
    ("rare written into", "odd", (3,)),
    ("rare conv even, same, dilated", "uneven", (2, 2)),
    ("rare its own kernel", "uneven", (3,)),
    ("a chain in place", "odd", (3,)),
    ("relu in place after no dropout", "odd", (3,)),
    ("rare positions of the sample's type", "odd", (3,)),
    ("rare positions of the sample's type", "even", (2, 2)),
    ("norm of column means and of everything", "odd", (3,)),
    ("rare multiplied by a matrix a row", "odd", (3,)),
)


def test_rules_and_kernels_are_of_the_same_operations() -> None:
    assert set(RULES) == set(KERNELS)


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 450


def _check(variant: Variant) -> None:
    ref = variant.reference()
    if variant.case.refused:
        with pytest.raises(BadInput, match=variant.case.refused):
            variant.analysed(ref)
        return
    how = variant.analysed(ref)
    assert any(not layout.whole for layout in how.inputs.values())
    made = threads.run(prod(variant.grid), lambda wire: on_shards(ref, variant.grid, how, wire))
    found = differences(ref, how, made, variant.grid)
    assert max(found.values()) < EXACT, found


@pytest.mark.parametrize("variant", SAMPLE, ids=str)
def test_an_operation_on_shards_equals_one_process(variant: Variant) -> None:
    _check(variant)


@pytest.mark.parametrize("name", HARD)
def test_what_is_hard_is_exact_on_odd_sizes_over_three_ranks(name: str) -> None:
    _check(Variant(CASES[name], "odd", (3,)))


@pytest.mark.parametrize(("name", "parts", "grid"), FOUND)
def test_what_was_wrong_once_is_exact_or_refused(name: str, parts: str, grid: tuple[int, ...]) -> None:
    _check(Variant(CASES[name], parts, grid))


def test_a_batch_of_one_is_taken_apart_as_any_other() -> None:
    """Frames of a film as one batch of images, and back: the capture's example has two samples."""
    film = Apply(lambda conv, x: conv(x.flatten(0, 1)).unflatten(0, (x.shape[0], 3)), nn.Conv2d(2, 4, 3))
    ref, grid = reference(film, (1, 3, 2, 8, 6)), (1, 2)
    how = analysed(ref, grid)
    made = threads.run(2, lambda wire: on_shards(ref, grid, how, wire))
    assert not any(layout.whole for layout in how.inputs.values())
    assert max(differences(ref, how, made, grid).values()) < EXACT


def _filtered(x: Tensor) -> Tensor:
    """Every sample by a kernel of its own."""
    kernels = x.mean((2, 3)).view(-1, 1, 1, 1).expand(-1, 1, 3, 3)
    images = x.reshape(1, -1, *x.shape[2:])
    return F.conv2d(images, kernels, padding=1, groups=x.shape[0] * x.shape[1]).reshape(x.shape)


def test_as_many_groups_as_samples_follow_a_batch_of_any_size() -> None:
    ref, grid = reference(Apply(_filtered), (3, 4, 8, 6)), (2,)
    how = analysed(ref, grid)
    made = threads.run(2, lambda wire: on_shards(ref, grid, how, wire))
    assert not any(layout.whole for layout in how.outputs.values())
    assert max(differences(ref, how, made, grid).values()) < EXACT


def _resized_over_samples(x: Tensor) -> Tensor:
    stack = x.transpose(0, 1).unsqueeze(0)
    made = F.interpolate(stack, size=(x.shape[0], 11, 6), mode="trilinear", align_corners=True)
    return made.squeeze(0).transpose(0, 1)


def test_a_stack_of_samples_is_resized_as_many_as_there_are() -> None:
    ref, grid = reference(Apply(_resized_over_samples), (3, 4, 8, 6)), (2,)
    how = analysed(ref, grid)
    made = threads.run(2, lambda wire: on_shards(ref, grid, how, wire))
    assert max(differences(ref, how, made, grid).values()) < EXACT


@pytest.mark.parametrize("name", ["conv3d ker=3 pad=1", "avgpool3d ker=3 str=2 pad=1", "groupnorm 2", "dice"])
def test_a_sample_is_cut_in_three_dimensions_too(name: str) -> None:
    _check(Variant(CASES[name], "even", (2, 2, 2)))


@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.refused])
def test_a_write_into_parts_is_refused_by_name(name: str) -> None:
    _check(Variant(CASES[name], "even", (2,)))


@pytest.mark.parametrize("name", part([case.name for case in CASES.values() if case.around], 6))
def test_samples_are_gathered_around_what_has_no_rule_and_cut_again_behind(name: str) -> None:
    variant = Variant(CASES[name], "even", (2,))
    ref = variant.reference()
    how = variant.analysed(ref)
    gathered = [x.operation.operation for x in how.segment.placed if x.around]
    assert gathered and all(x.startswith(variant.case.around) for x in gathered)
    assert any(not layout.whole for layout in how.outputs.values()), "cut again"
    made = threads.run(2, lambda wire: on_shards(ref, (2,), how, wire))
    assert max(differences(ref, how, made, (2,)).values()) < EXACT


@pytest.mark.parametrize("grid", part([(2,), (3,), (2, 2)], 1), ids=str)
def test_real_processes_are_as_exact_as_threads(pool: Pool, grid: tuple[int, ...]) -> None:
    rng = random.Random(prod(grid))
    possible = [v for v in ALL if v.grid == grid and not v.case.refused]
    chosen = [(v.case.name, v.parts, v.grid) for v in rng.sample(possible, 12)]
    chosen += [(name, "uneven", grid) for name in HARD[:6]]
    for worst in pool.run("tests.runtime.spatial.jobs:operations", prod(grid), chosen=chosen):
        assert isinstance(worst, dict)
        assert all(difference < EXACT for difference in worst.values()), worst
