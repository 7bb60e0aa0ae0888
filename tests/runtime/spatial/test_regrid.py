"""Samples that lie on other grids from some layer on: re-split there and back, training as in one process."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models import cosmoflow, unet3d
from planner.capture import cut
from planner.capture.stage_modules import whole
from planner.errors import BadPlan
from planner.plan import Plan, Regrid
from planner.spatial import Cut, Grid, Grids, Layout, NoRule, Resplit, coordinates, entry
from planner.spatial import whole as whole_layout
from planner.spatial.regrid import mesh_of
from planner.spatial.traffic import traffic
from runtime.spatial import SampleGroup
from runtime.spatial.analyse import analyse
from runtime.spatial.operation import Moved
from runtime.spatial.ranks import Silence, analyse_stages
from runtime.spatial.shard import shard
from tests.captures import captured_of
from tests.draws import covering
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.spatial import threads
from tests.runtime.spatial.equality import part
from tests.runtime.spatial.test_plans import VOLUME, plan_of
from tests.runtime.spatial.training import Job, Trained, alone, job, on_grids
from tests.runtime.spatial.variants import uneven

MOVES: tuple[tuple[Grid, Grid, int], ...] = (
    ((4,), (2, 2), 4),
    ((2, 2), (4,), 4),
    ((4,), (2,), 4),
    ((2,), (4,), 4),
    ((2, 2), (2,), 4),
    ((1, 2), (3, 2), 6),
    ((3,), (1, 3), 3),
    ((2,), (), 2),
)


def _layout(shape: tuple[int, ...], grid: Grid, *, odd: bool) -> Layout:
    return uneven(shape, grid) if odd and 1 not in grid else entry(shape, grid)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("before", "after", "ranks"), MOVES, ids=str)
def test_every_rank_gets_its_new_part_and_the_gradient_of_its_old_one(
    before: Grid, after: Grid, ranks: int, channels_last: bool, odd: bool
) -> None:
    """To the bit, for a batch that is not the example's; and what is sent is what is priced."""
    shape = (2, 3, 13, 11)
    plan = Resplit(
        _layout(shape, before, odd=odd), mesh_of(before, ranks), entry(shape, after), mesh_of(after, ranks)
    )
    torch.manual_seed(0)
    form = torch.channels_last if channels_last else torch.contiguous_format
    full = torch.randn(5, *shape[1:], dtype=torch.bfloat16).contiguous(memory_format=form)
    steep = torch.randn_like(full)

    def work(wire: threads.ThreadWire) -> tuple[int, int]:
        old, new = coordinates(wire.rank, plan.before), coordinates(wire.rank, plan.after)
        x = part(full, plan.source, old).clone(memory_format=form).requires_grad_()
        made = Moved(plan, wire)(x)
        there = wire.sent_bytes
        assert torch.equal(made, part(full, plan.target, new))
        assert made.is_contiguous(memory_format=form)
        made.backward(part(steep, plan.target, new))
        assert x.grad is not None and torch.equal(x.grad, part(steep, plan.source, old))
        return there, wire.sent_bytes - there

    sent = threads.run(ranks, work)
    for way, priced in enumerate((plan.sent_elements(), plan.back.sent_elements())):
        assert max(each[way] for each in sent) == priced * 2 * 5 // 2


def test_a_rank_sends_what_its_old_part_and_the_new_ones_of_others_share() -> None:
    """Of 8 x 8 on 4 strips to 2 x 2 blocks: half of two rows goes to the neighbour in the pair; to halves of 2 ranks
    each: all two rows; from halves to whole samples nothing is sent twice."""
    strips, blocks, halves = (entry((1, 1, 8, 8), grid) for grid in ((4,), (2, 2), (2,)))
    none = entry((1, 1, 8, 8), ())
    assert Resplit(strips, (4,), blocks, (2, 2)).sent_elements() == 8
    assert Resplit(strips, (4,), halves, (2, 2)).sent_elements() == 16
    assert Resplit(halves, (2, 2), none, (4,)).sent_elements() == 32
    assert Resplit(none, (4,), strips, (4,)).sent_elements() == 0
    assert Resplit(halves, (2, 2), strips, (4,)).sent_elements() == 0


def test_nobody_is_sent_what_it_has() -> None:
    """Halves by columns, which ranks 0 and 2, and 1 and 3, hold alike, to strips of two rows."""
    halves = whole_layout((1, 1, 8, 8)).with_cut(3, Cut(1, (0, 4, 8)))
    plan = Resplit(halves, (2, 2), entry((1, 1, 8, 8), (4,)), (4,))
    for receiver in range(4):
        senders = [piece.sender for piece in plan.pieces(receiver)]
        assert receiver in senders and len(senders) == 2


MODELS = {
    "cosmoflow": (cosmoflow, lambda: cosmoflow.build("tiny", 0.0)),
    "unet3d": (unet3d, lambda: unet3d.build("tiny")),
}


@cache
def _job(name: str) -> tuple[Job, Trained]:
    torch.manual_seed(0)
    module, build = MODELS[name]
    given = job(build(), lambda n: module.batch(n, "tiny"), module.loss)
    return given, alone(given)


WAYS: dict[
    str, tuple[int, Grid, tuple[Grid, ...], bool]
] = {  # ranks, grids one after the other, gathered at last
    "strips to blocks": (4, (4,), ((2, 2),), False),
    "blocks to strips": (4, (2, 2), ((4,),), True),
    "to fewer parts": (4, (4,), ((2,),), False),
    "to more parts": (4, (2,), ((2, 2),), False),
    "thrice": (4, (4,), ((2, 2), (2,)), True),
    "of three": (3, (3,), ((1, 3),), False),
}


@pytest.mark.parametrize(("name", "way"), covering(product(MODELS, WAYS), kinds=lambda case: case))
def test_five_steps_over_changing_grids_equal_those_of_one_process(name: str, way: str) -> None:
    given, right = _job(name)
    ranks, first, later, gathered = WAYS[way]
    layers = [layer.name for layer in given.captured.graph.layers]
    parts = len(later) + 2
    turns = {layers[len(layers) * (i + 1) // (2 * parts)]: grid for i, grid in enumerate(later)}
    gather = [layers[len(layers) * (parts - 1) // (2 * parts)]] if gathered else []
    for mine in on_grids(given, Grids(ranks, first, turns), gather):
        assert mine.losses == pytest.approx(right.losses, rel=1e-12)
        for key, x in mine.tensors.items():
            assert float((x - right.tensors[key]).abs().max()) < 1e-11, key


class _Skip(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(1, 1, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z: Tensor = self.second(y) + y
        return z


def test_what_several_layers_read_is_re_split_and_priced_once() -> None:
    """A skip, which two layers read."""
    given = job(
        _Skip(), lambda n: (torch.randn(n, 1, 8, 8), torch.randn(n, 1, 8, 8)), torch.nn.functional.mse_loss
    )
    captured = given.captured
    straight = analyse(whole(captured), (4,))
    turning = analyse(whole(captured), (4,), None, (), Grids(4, (4,), {"second": (2,)}))
    read = [pair for done in turning.segment.placed for pair in done.resplits.items()]
    assert len(read) > len(set(read)) > 0
    stage = whole(captured)
    shard(stage, turning, SampleGroup((4,), Silence(0, 4)))
    assert sum(isinstance(part, Moved) for part in vars(stage._run).values()) == len(set(read))
    priced = sum(cost.resplit_bytes for cost in traffic(turning.segment, 8).values())
    assert priced == sum(move.sent_elements() * 8 for _, move in set(read))
    assert all(cost.resplit_bytes == 0 for cost in traffic(straight.segment, 8).values())


def turned(plan: Plan, *stages: dict[str, Grid]) -> Plan:
    """The same plan with grids from other layers on, a stage at a time."""
    made = [
        stage.model_copy(
            update={"regrid": tuple(Regrid(before=layer, spatial=grid) for layer, grid in turns.items())}
        )
        for stage, turns in zip(plan.stages, stages, strict=True)
    ]
    return plan.model_copy(update={"stages": tuple(made)})


STAGES: dict[str, tuple[dict[int, Grid], dict[str, object]]] = {
    "strips, then blocks": ({0: (4,), 1: (2, 2)}, {}),
    "blocks, then halves": ({0: (2, 2), 1: (2,)}, {}),
    "halves, then whole samples": ({0: (2,), 1: ()}, {}),
    "in Chimera": ({0: (4,), 1: (2, 2)}, {"family": "chimera"}),
    "split backward": ({0: (4,), 1: (2,)}, {"family": "zb-h1"}),
    "recomputed": ({0: (4,), 1: (2, 2)}, {"recompute": (0, 1)}),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_on_different_grids_train_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    grids, shape = STAGES[name]
    plan = plan_of(VOLUME, grids, 4, **{"workers": 2, "micros": 2, **shape})
    if name == "strips, then blocks":
        plan = turned(plan, {}, {plan.stages[1].layers[2]: (2,)})
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() < 1e-10, found


def test_grids_that_ranks_cannot_share_and_layers_elsewhere_are_refused() -> None:
    _, captured = captured_of(VOLUME, {}, 2)
    stages = cut(captured, [2])
    with pytest.raises(BadPlan, match="stage 1: 4 ranks cannot share 3 parts"):
        analyse_stages(stages, [(4,), (3,)], 4)
    with pytest.raises(BadPlan, match=r"stage 0: .* before 'nowhere', which is not in it"):
        analyse_stages(stages, [(4,), (2, 2)], 4, ["", ""], [{"nowhere": (2, 2)}, {}])


class _Last(torch.nn.Module):
    """Rows of a picture whose channels come last are dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Linear(4, 2)
        self.turn = _Turn()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.turn(self.first(x)).relu())
        return y


class _Turn(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1) * 2


@pytest.mark.parametrize("stages", [1, 2])
def test_where_what_lies_in_no_known_order_is_not_re_split_the_operation_that_turned_it_is_named(
    stages: int,
) -> None:
    """Not the layer that reads it, nor what passes it on; from another stage, too."""
    given = job(
        _Last(), lambda n: (torch.randn(n, 1, 8, 8), torch.randn(n, 8, 8, 2)), torch.nn.functional.mse_loss
    )
    what = r"aten\.permute moves what is cut to dimensions \[1\], .* a grid of 2 x 2 before layer 'second'"
    with pytest.raises(NoRule, match=rf"^turn \(counted to layer 'first'\): {what}") as refused:
        if stages == 1:
            turns = {"second": (2, 2)}
            analyse_stages([whole(given.captured)], [(4,)], 4, [""], [turns])
        else:
            analyse_stages(cut(given.captured, [1]), [(4,), (2, 2)], 4)
    assert refused.value.layer == "second"  # before which shards can be gathered
