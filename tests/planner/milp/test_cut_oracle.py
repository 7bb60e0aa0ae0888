"""With two layouts a block to choose from, no plan whose every decision is fixed is faster than the plan of the search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from planner import limits
from planner.choose import layouts, rows_of, work_of
from planner.cluster import Cluster, load
from planner.milp import Question, solve, solve_or_none
from planner.plan import Plan
from planner.profile import CostKey
from planner.simulate import period_of_plan
from planner.verify import violations
from tests.draws import part
from tests.planner.choose.test_one_price import NODE, words

FAMILIES = ("1f1b", "zb-h1")
SHAPES = ((1, 1), (2, 1), (1, 2))  # of replicas and workers, beside a group of 2
LAYOUTS = 3  # of which the fastest cuts nothing
SHARED = ("none", "state", "gradients", "parameters")
CASES = tuple(
    product((2, 4), (80.0, 0.00016))
)  # batch, and GiB of a device: ample, and too few for most plans
DRAWN = 1


def machines(memory_gib: float) -> Cluster:
    every = load(NODE)
    (node,) = every.nodes
    small = node.model_copy(update={"memory_bytes": int(memory_gib * 2**30), "margin_bytes": 0})
    return every.model_copy(update={"nodes": (small,)})


def asked(batch: int, cluster: Cluster, **fix: object) -> Question:
    fixed = {"devices": 4, **fix}
    return Question(profile=words(), cluster=cluster, batch=batch, schedules=FAMILIES, fix=fixed)


def cuts(cluster: Cluster, batch: int, micro: int) -> Iterator[list[dict[str, str]]]:
    """Yields the layouts of a list, which the search of plans has, too."""
    work = work_of(words(), CostKey("", micro, (), "fp32", "eager"), batch // micro)
    for layout in layouts(work, cluster, 2, mesh=(2,), most=LAYOUTS):
        if layout.lines:
            yield [dict(row) for row in rows_of(layout.lines)]


def pinned(batch: int, cluster: Cluster, micro: int) -> Iterator[Plan]:
    """Yields every plan with all of its keys fixed but where stages begin."""
    for cut, (data, workers), family in product(cuts(cluster, batch, micro), SHAPES, FAMILIES):
        if batch % (data * micro):
            continue
        for again, shard in product((False, True), SHARED if data > 1 else ("none",)):
            fix = {"data": data, "pipeline": workers, "schedule": family, "recompute": again, "shard": shard}
            question = asked(batch, cluster, group=2, micro=micro, cut=cut, **fix)
            if (plan := solve_or_none(question.instance())) is not None:
                yield plan


@pytest.mark.parametrize(("batch", "memory_gib"), part(CASES, DRAWN))
def test_no_plan_with_all_decisions_fixed_beats_one_that_chose_among_two_layouts(
    batch: int, memory_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LAYOUTS", LAYOUTS)
    micro, cluster = 2, machines(memory_gib)
    free = solve_or_none(asked(batch, cluster, group=2, micro=micro).instance())
    every = list(pinned(batch, cluster, micro))
    assert len(list(cuts(cluster, batch, micro))) == 2
    assert (free is None) == (not every)
    for plan in every:
        assert violations(plan, profile=words(), cluster=cluster) == []
        assert period_of_plan(plan) == plan.prediction.step_ns
    if free is not None:
        best = min(plan.prediction.step_ns for plan in every)
        assert free.certificate is not None
        assert free.certificate.bound_ns <= free.prediction.step_ns <= best
        assert (
            free.prediction.step_ns == best or memory_gib < 1
        )  # short of memory, stages may recompute in part


def test_a_plan_with_all_decisions_fixed_to_those_of_another_has_its_price() -> None:
    cluster = machines(80.0)
    free = solve(asked(4, cluster, group=2, micro=2))
    names = [stage.layers[0] for stage in free.stages[1:]]
    every = dict.fromkeys(line for stage in free.stages for line in stage.cut)
    lines = [line.model_dump(exclude_none=True, exclude_defaults=True) for line in every]
    fix = {
        "data": free.axes.data,
        "pipeline": free.axes.pipeline,
        "schedule": free.schedule.family,
        "recompute": any(stage.recompute for stage in free.stages),
        "cuts": names,
        "cut": lines,
        "group": 2,
        "micro": 2,
    }
    again = solve(asked(4, cluster, **fix))
    assert again.prediction.step_ns == free.prediction.step_ns
    assert [stage.layers for stage in again.stages] == [stage.layers for stage in free.stages]
