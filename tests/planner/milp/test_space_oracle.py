"""With space as an axis, too, the plan's time equals the best of an exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest

from planner.cluster import Cluster
from planner.milp import Question, solve_or_none
from planner.plan import Plan, shared_from
from planner.profile import Profile
from planner.schedule import FAMILIES
from planner.verify import violations
from tests.draws import found, part
from tests.planner.milp import oracle
from tests.planner.milp.images import Grid, Images, effective, images, profile
from tests.planner.milp.instances import cluster

SEEDS = (*range(48), 105)  # few gather within a stage
DRAWN = 8
TELLING = (5, 20, 105)  # have what few have: nobody need look through the others first
SHARING = (8, 23, 37, 45, 47, 64, 70)  # of micro-batches that ranks may share


@dataclass(frozen=True)
class Case:
    model: Images
    profile: Profile
    grids: tuple[Grid, ...]
    cluster: Cluster
    batch: int
    families: tuple[str, ...]


def case(seed: int, micros: tuple[int, ...] = ()) -> Case:
    rng = random.Random(seed)
    model = images(seed)
    grids = tuple(sorted({*rng.sample([(2,), (4,), (2, 2), (2, 2)], rng.randint(1, 3))}))
    return Case(
        model=model,
        profile=profile(model, grids, seed, micros=micros or rng.choice([(1,), (1, 2)])),
        grids=grids,
        cluster=cluster(
            rng.choice([1, 2, 4, 4, 4]),
            latency_s=rng.choice([1e-9, 1e-7, 2e-6]),
            memory=rng.choice([1 << 40, 80_000, 60_000, 40_000]),
            bandwidth=rng.choice([1e9, 1e11]),
        ),
        batch=rng.choice([1, 2, 4]),
        families=tuple(rng.sample(["1f1b", "gpipe", "chimera", "zb-h1", "interleaved"], 2)),
    )


def best(given: Case) -> int | None:
    """Over whole samples, every grid, every change to another, and every layer to gather or share samples before."""
    found = [oracle.best(given.profile, given.cluster, given.batch, given.families)]
    for grid, then, then_from in ways(given):
        ranks = 4 if sum(grid) == 4 else 2
        if ranks > len(given.cluster.groups):
            continue
        behind = range(then_from + 1, given.model.count)
        for whole_from, shared in ((0, False), *product(behind, (False, True))):
            for family in given.families:
                costs = effective(
                    given.profile,
                    given.model,
                    given.cluster,
                    grid,
                    whole_from,
                    overlap=not FAMILIES[family].splits,
                    then=then,
                    then_from=then_from,
                    shared=shared,
                )
                until = whole_from if shared else None
                found.append(
                    oracle.best(costs, given.cluster, given.batch, (family,), ranks=ranks, until=until)
                )
    return min((each.ns for each in found if each is not None), default=None)


def ways(given: Case) -> Iterator[tuple[Grid, Grid, int]]:
    """Of cutting samples: a grid, and another from a layer on; that of no more parts."""
    for grid in given.grids:
        yield grid, (), 0
        for then in given.grids:
            if then != grid and sum(grid) == 4:
                yield from ((grid, then, layer) for layer in range(1, given.model.count))


@cache
def plan_of(seed: int) -> Plan | None:
    return solved(case(seed))


def solved(given: Case, **fix: object) -> Plan | None:
    asked = Question(
        profile=given.profile,
        cluster=given.cluster,
        batch=given.batch,
        schedules=given.families,
        fix=fix,
    )
    return solve_or_none(asked.instance())


@pytest.mark.parametrize("seed", part(SEEDS, DRAWN))
def test_no_cut_of_layers_or_samples_is_faster_than_the_plan(seed: int) -> None:
    given = case(seed)
    plan, right = plan_of(seed), best(given)
    assert (None if plan is None else plan.prediction.step_ns) == right
    if plan is not None:
        assert plan.certificate is not None
        assert plan.certificate.bound_ns == right
        assert violations(plan, profile=given.profile, cluster=given.cluster) == []


@pytest.mark.parametrize("seed", part(SHARING, 2))
def test_no_plan_is_faster_than_one_that_shares_samples(seed: int) -> None:
    given = replace(case(seed, (1, 2, 4)), batch=4)
    plan, right = solved(given), best(given)
    assert plan is not None and plan.certificate is not None
    assert plan.prediction.step_ns == plan.certificate.bound_ns == right
    assert shared_from(plan.stages[-1])
    assert violations(plan, profile=given.profile, cluster=given.cluster) == []


def test_the_cases_cover_every_grid_gathers_and_what_fits_on_no_device_alone() -> None:
    grids: set[Hashable] = {(), (2,), (4,), (2, 2)}
    turns: set[Hashable] = {("turn", (4,)), ("turn", (2, 2))}
    wanted = grids | turns | {"gathers", "stages on grids"}

    def kinds(seed: int) -> Iterator[Hashable]:
        plan = plan_of(seed)
        for stage in plan.stages if plan is not None else ():
            yield stage.spatial
            if stage.gather_before:
                yield "gathers"
            turned = [("turn", turn.spatial) for turn in stage.regrid if not turn.samples]
            assert turns.issuperset(turned)
            yield from turned
        if plan is not None and len(plan.stages) > 1 and plan.axes.spatial > 1:
            yield "stages on grids"

    solved_above = part(SEEDS, DRAWN)
    assert found((*TELLING, *solved_above, *SEEDS), kinds, wanted) == wanted
    given = case(30)
    nodes = tuple(group.model_copy(update={"memory_bytes": 24_000}) for group in given.cluster.nodes)
    narrow = replace(given, cluster=given.cluster.model_copy(update={"nodes": nodes}))
    plan = solved(narrow)
    assert plan is not None and solved(narrow, spatial=1) is None
    assert plan.prediction.step_ns == best(narrow)
