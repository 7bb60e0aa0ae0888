"""The plan's time equals the best of an exhaustive search, and its certificate says so."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest

from planner.cluster import Cluster
from planner.errors import Infeasible
from planner.milp.solve import solve
from planner.plan import Plan
from planner.profile import Profile, Seconds
from planner.verify import violations
from tests.planner.milp import oracle
from tests.planner.milp.instances import chain, cluster, profile

FAMILIES = ("1f1b", "gpipe", "chimera", "zb-h1", "zb-v", "interleaved", "chimera-zb", "wave", "v-min")
SEEDS = 40


@dataclass(frozen=True)
class Case:
    profile: Profile
    cluster: Cluster
    batch: int
    families: tuple[str, ...]
    update: str


def case(seed: int) -> Case:
    """Chains, graphs with skips and with branches; tight and ample memory; fast and slow links; barrier and rolling
    updates, some so slow that sharing them pays."""
    rng = random.Random(seed)
    layers = rng.randint(3, 7)
    equal, skips, loose = rng.random() < 0.2, rng.choice([0, 0, 1, 2, 3]), rng.random() < 0.3
    blocks = chain(layers, seed, equal=equal, skips=skips, loose=loose)
    costs = profile(blocks, micros=rng.choice([(1,), (1, 2)]), scale=rng.choice([1, 10]))
    update_s = rng.choice([0.0, 1e-12, 1e-9, 3e-9])
    return Case(
        profile=replace(
            costs, optimizer=replace(costs.optimizer, seconds_per_parameter=Seconds(median=update_s))
        ),
        cluster=cluster(
            rng.randint(1, 4),
            latency_s=rng.choice([1e-9, 5e-7]),
            memory=rng.choice([1 << 40, 400_000, 200_000, 120_000, 80_000]),
            bandwidth=rng.choice([1e9, 1e11]),
        ),
        batch=rng.choice([1, 2, 3, 4, 6]),
        families=tuple(rng.sample(FAMILIES, 3)),
        update=rng.choice(["barrier", "barrier", "rolling"]),
    )


def partly_recomputes(plan: Plan) -> bool:
    """On workers that hold several stages: the oracle there knows none and all."""
    several = len(plan.schedule.place) > 1 or len(plan.stages) > plan.axes.pipeline
    return several and len({stage.recompute for stage in plan.stages}) > 1


@cache
def solved(seed: int) -> Plan | None:
    given = case(seed)
    try:
        return solve(
            given.profile,
            given.cluster,
            batch=given.batch,
            schedules=given.families,
            fix={"update": given.update},
        )
    except Infeasible:
        return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_cut_of_any_shape_is_faster_than_the_plan(seed: int) -> None:
    given = case(seed)
    best = oracle.best(given.profile, given.cluster, given.batch, given.families, update=given.update)
    plan = solved(seed)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        assert plan.prediction.step_ns == best.ns or (
            partly_recomputes(plan) and plan.prediction.step_ns < best.ns
        )
        assert plan.certificate is not None
        assert plan.certificate.objective_ns == plan.certificate.bound_ns == plan.prediction.step_ns
        assert violations(plan, profile=given.profile, cluster=given.cluster) == []


def test_the_cases_cover_what_fits_nowhere_and_every_kind_of_update() -> None:
    every = [case(seed) for seed in range(SEEDS)]
    assert {given.update for given in every} == {"barrier", "rolling"}
    assert sum(solved(seed) is None for seed in range(SEEDS)) >= 3
