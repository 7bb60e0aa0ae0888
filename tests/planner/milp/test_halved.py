"""Plans that hold weights in bf16: what they count, what verify counts, and what they are refused with."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import pytest

from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import BadInput
from planner.kept import KeptEntries
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import Plan, dump, halved_weights
from planner.plan.yaml import parse
from planner.profile import Profile
from planner.verify import violations
from tests.captures import captured_of

SHAPE = {"data": 1, "pipeline": 1, "schedule": "1f1b", "recompute": False}


@lru_cache
def costs(precision: str = "bf16") -> Profile:
    loaded, _ = captured_of("gpt2", {"size": "tiny"}, 1)
    return measure.profile(loaded, device="roofline:cpu", micros=(1,), precision=precision)


def machines(ranks: int = 1) -> Cluster:
    group = NodeGroup(count=1, device="cpu", devices_per_node=ranks, memory_bytes=2**34)
    link = Link(latency_s=2e-4, bandwidth_bytes_per_s=2e9)
    return Cluster(name="here", nodes=(group,), links=Links(node=link))


def solved(share: float = 1.0, **fix: object) -> Plan:
    profile = replace(costs(), kept=KeptEntries.of_share(costs().graph, share) if share < 1 else costs().kept)
    return solve(Question(profile=profile, cluster=machines(), batch=4, fix={**SHAPE, **fix}))


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_plan_counts_two_bytes_of_a_weight_and_the_fp32_numbers_beside_it(share: float) -> None:
    plain, plan = solved(share), solved(share, weights="bf16")
    graph = costs().graph
    halved = [row for row in graph.trained if row.name in halved_weights(graph)]
    whole = sum(prod(row.shape) for row in halved)
    beside = 4 * whole if share == 1.0 else 0  # of pruned ones they are there already
    (less,), (more,) = plan.prediction.memory, plain.prediction.memory
    assert less.parameters - more.parameters == beside - 2 * whole
    assert (less.gradients, less.optimizer) == (more.gradients, more.optimizer)
    assert more.activations - less.activations >= 2 * whole  # no copy in bf16 for the backward
    assert violations(plan, profile=costs(), cluster=machines()) == []
    text = dump(plan)
    assert "\nweights: bf16" in text and parse(text) == plan and "\nweights" not in dump(plain)


def test_a_plan_that_claims_weights_in_bf16_is_held_to_their_memory() -> None:
    plan = solved(weights="bf16")
    (held,) = plan.prediction.memory
    less = held.model_copy(update={"parameters": held.parameters // 2})
    prediction = plan.prediction.model_copy(update={"memory": (less,)})
    claimed = plan.model_copy(update={"prediction": prediction})
    assert "memory" in {found.rule for found in violations(claimed, profile=costs(), cluster=machines())}


@pytest.mark.parametrize(
    ("precision", "fix", "said"),
    [
        ("fp32", {}, "weights are bf16 where products are in fp32"),
        ("bf16", {"shard": "gradients"}, "shared by element"),
        ("bf16", {"weights": "fp8"}, "weights is 'fp8'"),
    ],
)
def test_what_weights_in_bf16_do_not_go_with_is_refused_in_one_message(
    precision: str, fix: dict[str, object], said: str
) -> None:
    question = Question(
        profile=costs(precision), cluster=machines(2), batch=4, fix={"weights": "bf16", **fix}
    )
    with pytest.raises(BadInput, match=said):
        question.instance()


def test_a_profile_without_operations_is_asked_for_again() -> None:
    bare = replace(costs(), graph=replace(costs().graph, operations=()))
    with pytest.raises(BadInput, match="profile again"):
        Question(profile=bare, cluster=machines(), batch=4, fix={"weights": "bf16"}).instance()
