"""Layouts, plans and simulations say the same time and memory of the same cut, and plans choose among layouts."""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path

import pytest

from planner.choose import ChosenLayout, cut_text, layouts, rows_of, work_of
from planner.cluster import load
from planner.errors import BadInput
from planner.measure import profile as measured
from planner.milp import Question, price_group, solve
from planner.plan import dump, wishes_of
from planner.profile import CostKey, Profile
from planner.simulate import period_of_plan
from planner.verify import violations
from planner.workload import load as loaded

NODE, WORDS = "plans/clusters/one-node.yaml", "tests/runtime/layout/workloads/words.py"
ALONE = {"data": 1, "pipeline": 1, "recompute": False, "schedule": "1f1b"}


@cache
def words() -> Profile:
    return measured(loaded(WORDS, {}), device="roofline:A100-80GB", micros=(1, 2, 4), precision="fp32")


def question(batch: int, **fix: object) -> Question:
    return Question(profile=words(), cluster=load(NODE), batch=batch, fix=fix)


def listed(mesh: tuple[int, ...], micro: int, micros: int, most: int = 3) -> list[ChosenLayout]:
    space = question(micro * micros).instance()
    work = work_of(words(), CostKey("", micro, (), "fp32", "eager"), micros)
    return layouts(
        work,
        load(NODE),
        prod(mesh),
        mesh=mesh,
        priced=lambda mesh, cut: price_group(space, micro, mesh, cut),
        most=most,
    )


@pytest.mark.parametrize(
    ("mesh", "micro", "micros"), [((2,), 2, 2), ((2,), 4, 1), ((4,), 4, 1), ((2, 2), 2, 1)]
)
def test_a_list_of_layouts_says_what_plans_and_simulations_say(
    mesh: tuple[int, ...], micro: int, micros: int, tmp_path: Path
) -> None:
    found = [layout for layout in listed(mesh, micro, micros) if layout.lines]
    assert found
    for layout in found:
        file = tmp_path / "cut.yaml"
        file.write_text(cut_text(layout.mesh, layout.lines))
        plan = solve(question(micro * micros, micro=micro, cut=str(file), **ALONE))
        (held,) = plan.prediction.memory
        assert wishes_of(plan) == layout.lines and plan.axes.spatial == prod(mesh)
        assert plan.prediction.step_ns == period_of_plan(plan) == layout.price.ns
        assert held.total - held.margin == layout.price.bytes
        assert violations(plan, profile=words(), cluster=load(NODE)) == []


def test_a_plan_that_looks_for_layouts_is_as_fast_as_the_best_of_them_pinned() -> None:
    free = {"devices": 4, "micro": 2, "group": 2}
    plan = solve(question(4, **free))
    assert plan.certificate.space is not None
    assert plan.certificate.space.layouts == ((2,),) * len(plan.certificate.space.layouts) != ()
    work = work_of(words(), CostKey("", 2, (), "fp32", "eager"), 2)
    pinned = [
        solve(question(4, **free, cut=[dict(row) for row in rows_of(layout.lines)]))
        for layout in layouts(work, load(NODE), 2, mesh=(2,), most=4)
        if layout.lines
    ]
    assert plan.prediction.step_ns == min(other.prediction.step_ns for other in pinned)
    assert plan.certificate.bound_ns <= plan.prediction.step_ns
    assert violations(plan, profile=words(), cluster=load(NODE)) == []
    assert dump(plan) == dump(solve(question(4, **free)))


def test_any_cut_is_never_slower_than_no_cut() -> None:
    fixed = {"devices": 2, "micro": 2}
    assert (
        solve(question(4, **fixed, cut="any")).prediction.step_ns
        <= solve(question(4, **fixed)).prediction.step_ns
    )


def test_a_file_for_another_group_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.yaml"
    file.write_text("version: 1\ngroup: [2]\ncut:\n- {layers: blocks.*.attention, x: heads}\n")
    with pytest.raises(BadInput, match="the file of the cut and group name 2 and 4 ranks"):
        question(4, cut=str(file), group=4).instance()
