"""A layout that was chosen, and not written by anybody, trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.choose import cut_text
from planner.milp import solve
from planner.verify import check
from tests.planner.choose.test_one_price import listed, question, words
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run


@pytest.mark.parametrize("place", [0, -1], ids=["fastest", "smallest"])
def test_a_chosen_layout_trains_as_one_process_does(place: int, pool: Pool, tmp_path: Path) -> None:
    layout = [x for x in listed((2,), 2, 2) if x.lines][place]
    file = tmp_path / "cut.yaml"
    file.write_text(cut_text(layout.mesh, layout.lines))
    plan = solve(question(4, micro=2, cut=str(file), devices=2))
    check(plan, profile=words())
    assert plan.axes.spatial == 2
    have = run(pool, plan, tmp_path / "run", steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path / "run", steps=3), have)
    assert found.worst() < 1e-10, found


def test_a_plan_that_chose_its_own_layout_beside_a_pipeline_trains_as_one_process_does(
    pool: Pool, tmp_path: Path
) -> None:
    plan = solve(question(4, micro=1, group=2, pipeline=2, data=1))
    have = run(pool, plan, tmp_path / "run", steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path / "run", steps=3), have)
    assert found.worst() < 1e-10, found
