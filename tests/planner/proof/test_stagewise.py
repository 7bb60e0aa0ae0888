"""No cut takes less than the bound stage by stage, on devices that are alike or not, whether neighbours talk or not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from planner.cluster import Cluster, NodeGroup, Rates
from planner.cuts.problem import CutProblem
from planner.milp.instance import Instance
from planner.milp.search.candidates import ranked
from planner.milp.search.pick import thriftier
from planner.proof.stagewise import stagewise
from tests.planner.milp import random_cases
from tests.planner.milp.random_cases import Case

FAMILIES = ("1f1b", "zb-h1", "zb-h2", "gpipe")
DRAWN = 12  # configurations of a question


def unlike(seed: int) -> Case:
    """Two groups of devices of different speed, with links from fast to so slow that messages count most."""
    rng = random.Random(seed)
    given = random_cases.branched(seed) if seed % 2 else random_cases.case(seed)
    links = given.cluster.links
    rack = links.rack
    assert rack is not None
    slower = rack.model_copy(update={"bandwidth_bytes_per_s": rng.choice([1e8, 3e8, 1e9, 1e11])})

    def group() -> NodeGroup:
        rates = Rates(fp32_flop_per_s=rng.choice([0.5, 0.7, 1.0]) * 1e12)
        each = rng.choice([1, 1, 2])
        return NodeGroup(
            count=rng.randint(1, 2), device="any", devices_per_node=each, memory_bytes=1 << 40, rates=rates
        )

    return replace(
        given,
        cluster=Cluster(
            name="unlike", nodes=(group(), group()), links=links.model_copy(update={"rack": slower})
        ),
        batch=rng.choice([4, 6, 8]),
        families=FAMILIES,
        update="barrier",
    )


def problems(given: Case, seed: int) -> Iterator[CutProblem]:
    instance: Instance = random_cases.asked(given).instance()
    every = [each for shape in ranked(instance) for each in (shape, *thriftier(instance, shape))]
    for shape in random.Random(seed).sample(every, min(DRAWN, len(every))):
        problem = instance.problem(shape)
        if problem is not None and not problem.flagged:
            yield problem


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_no_cut_takes_less_than_its_bound(first: int) -> None:
    met = quiet = 0
    for seed in range(first, first + 10):
        for problem in problems(unlike(seed), seed):
            bound = stagewise(problem)
            between = combinations(range(1, problem.layers), problem.stages - 1)
            cuts = np.array([(0, *inner, problem.layers) for inner in between], np.int64)
            cuts = cuts[problem.allowed[cuts].all(1)] if len(cuts) else cuts
            if bound is None or not len(cuts):
                continue
            ns = problem.times(cuts)
            met, quiet = met + 1, quiet + int(not problem.talks(cuts).all())
            for limit in (int(ns.min()), int(ns.min()) + 1, int(ns.min() * 1.3), int(ns.max()) + 1):
                assert bound.least_ns(limit) <= ns.min()
    assert met > 20
    assert quiet > 2
