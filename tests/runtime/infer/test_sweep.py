"""Sweeps over a box: the numbers of the whole volume to the bit, with no row made twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from planner.spatial import Box
from runtime.infer import prepared
from runtime.infer.box_work import Work
from runtime.infer.chunk import TaskShape, best
from runtime.infer.sweep import SweepPlan, SweepRunner, sweep
from tests.runtime.infer.conftest import Place
from tests.runtime.infer.test_infer import request
from tests.runtime.spatial.test_box import NETWORKS, SIZES, at, captured, integral


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_sweep_gives_the_numbers_of_the_whole_volume(name: str, d: int) -> None:
    module, draw = integral(NETWORKS[name](d)), random.Random(f"{name} {d}")
    x = torch.randint(-3, 4, (1, 2, *SIZES[d])).double()
    whole = module(x)
    forward, reach, _ = captured(module, x.shape)
    tensors = {**module.state_dict(), **forward.captured.layout.traced.constants}
    runner = SweepRunner(forward, tensors)
    space = reach.output_space
    for along in range(d):
        ends = [sorted(draw.sample(range(n + 1), 2)) for n in space]
        part = tuple((low, high) for low, high in ends)
        for box in (tuple((0, n) for n in space), part):
            plan = sweep(reach, box, along, draw.choice([1, 2, 3, 5, 8]))
            assert all(made == later for made, later in _borders(plan)), "no row is made twice"
            dim = reach.output_dims[along]
            rows, parts = zip(*runner.run(reach, plan, lambda rows: x[at(rows)]), strict=True)
            assert rows[0][0] == box[along][0] and rows[-1][1] == box[along][1]
            assert all(a[1] == b[0] for a, b in pairwise(rows))
            assert torch.equal(torch.cat(parts, dim), whole[at(box)])


def _borders(plan: SweepPlan) -> Iterator[tuple[int, int]]:
    """The end of what a pass makes of a tensor, and the start of what the next one makes."""
    for name in plan.rows:
        made = [one.made[name] for one in plan.passes if name in one.made]
        yield from ((a[1], b[0]) for a, b in pairwise(made))


def test_a_convolution_keeps_the_rows_that_its_next_pass_reads_again() -> None:
    module = integral(NETWORKS["same"](1))
    forward, reach, _ = captured(module, (1, 2, 61))
    plan = sweep(reach, ((0, 61),), 0, 4)
    assert plan.kept(forward.source) == 2
    assert len(plan.passes) == 16 + 1, "the first one makes the margin"


def test_a_task_that_goes_along_an_axis_writes_what_the_whole_volume_gives(place: Place) -> None:
    folder, expected = place
    plan = prepared(request(folder, folder / "swept.npy", chunk="10,29"))
    plan.applied.job.sweep[:] = [1, 2]
    asked: list[Box] = []
    read = plan.applied.read

    def counted(box: Box) -> tuple[Tensor, int]:
        asked.append(box)
        return read(box)

    plan.applied.read = counted  # type: ignore[method-assign]
    values, odd = plan.applied.compute(((10, 20), (0, 29)))
    assert odd == 0 and np.allclose(values, expected[:, 10:20], rtol=0, atol=1e-5)
    assert all(a[1][1] == b[1][0] for a, b in pairwise(asked)), "each row is read once"


def test_memory_for_a_part_of_the_volume_is_met_by_passes(place: Place) -> None:
    folder, _ = place
    plan = prepared(request(folder, folder / "none.npy", chunk="37,29"))
    work = Work(plan.applied)
    whole = work.of(work.space)[1]
    found = best(work, (2, 2), whole / 2, 1e-3)
    assert found.sweep and work.of(*found)[1] <= whole / 2
    assert found.chunk[found.sweep[0]] == work.space[found.sweep[0]]
    assert work.total(*found)[0] < 1.2 * work.total(work.space)[0]
    assert best(work, (2, 2), whole, 1e-3) == TaskShape(work.space)
