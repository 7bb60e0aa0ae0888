"""Configurations are listed as far as anything in them may win, in the order that a list of all would have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.cluster import Cluster, NodeGroup
from planner.configurations.configurations import Configuration
from planner.configurations.spatial_choices import choice_of
from planner.limits import Effort
from planner.milp import Question, SearchState
from planner.milp.instance import Instance
from planner.milp.search.candidates import PLAINEST, Candidates, guess_ns, ranked
from planner.milp.search.pick import even_ns
from planner.milp.search.totals import TotalsBound
from tests.draws import part
from tests.planner.milp.instances import chain, cluster, profile
from tests.planner.milp.test_space_oracle import case


def cut(seed: int) -> Instance:
    given = case(seed, micros=(1, 2))
    return Question(profile=given.profile, cluster=given.cluster, batch=given.batch).instance()


def whole() -> Instance:
    own = profile(chain(9, 3, skips=1), micros=(1, 2, 4))
    return Question(profile=own, cluster=cluster(2, 2), batch=8).instance()


ASKED = [whole(), *map(cut, part(range(40), 5))]


def order(instance: Instance, shape: Configuration) -> tuple[float, int, Configuration]:
    return guess_ns(TotalsBound(instance), shape), PLAINEST.index(shape.family), shape


@pytest.mark.parametrize("instance", ASKED)
def test_the_first_of_them_are_those_of_a_list_of_all(instance: Instance) -> None:
    every = sorted(Candidates(instance), key=lambda shape: order(instance, shape))
    assert ranked(instance) == every and len(Candidates(instance)) == len(every)
    for count in (1, 3, 17):
        assert Candidates(instance).first(count) == every[:count]


@pytest.mark.parametrize("instance", ASKED)
def test_what_is_not_listed_cannot_take_less_and_neither_can_its_variants(instance: Instance) -> None:
    state = SearchState(instance=instance, effort=Effort())
    promised = sorted((state.promise_ns(shape), shape) for shape in Candidates(instance))
    for ns, _ in promised[:: max(1, len(promised) // 7)]:
        found = Candidates(instance)
        listed = found.below(ns)
        missing = {shape for _, shape in promised}.difference(listed)
        assert len(missing) == found.unlisted and all(state.promise_ns(shape) >= ns for shape in missing)
        keys = [order(instance, shape) for shape in listed]
        assert all(one < other for one, other in pairwise(keys))


@pytest.mark.parametrize("instance", ASKED)
def test_a_group_is_bounded_by_what_each_of_its_configurations_takes(instance: Instance) -> None:
    bounds = {group: ns for ns, group in Candidates(instance)._groups}
    floors = TotalsBound(instance)
    for shape in Candidates(instance):
        assert bounds[shape.micro, shape.data, choice_of(shape)] <= floors.computed_ns(shape)
    assert any(bounds.values())


def test_every_configuration_is_among_them_and_no_other() -> None:
    instance = whole()
    found, every = Candidates(instance), ranked(instance)
    assert all(shape in found for shape in every[:20])
    assert not Candidates(instance)._done[0], "to ask for one lists none"
    assert replace(every[0], micro=3) not in found and replace(every[0], recompute=True) not in found


def test_where_devices_differ_no_group_has_a_bound_and_all_are_listed() -> None:
    slow = NodeGroup(count=2, device="P100-16GB", devices_per_node=1, memory_bytes=1 << 40)
    costs = replace(profile(chain(6, 3), micros=(1,)), device="V100-32GB")
    other = Cluster(name="slow", nodes=(slow,), links=cluster(2).links)
    found = Candidates(Question(profile=costs, cluster=other, batch=6).instance())
    assert {ns for ns, _ in found._groups} == {0.0}
    assert found.below(1) == ranked(found.instance) and found.unlisted == 0


def test_groups_that_cannot_win_are_never_listed() -> None:
    unlisted = []
    for instance in ASKED[1:]:
        found = Candidates(instance)
        best = found.first(1)[0]
        found.below(guess_ns(TotalsBound(instance), best))
        unlisted.append(found.unlisted)
    assert any(unlisted)


@pytest.mark.parametrize("batch", [16, 20, 24, 36])
def test_a_guess_at_chimera_knows_what_further_units_cost_and_one_that_is_not_full(batch: int) -> None:
    """Twelve workers: a unit is twelve micro-batches, and one of four takes as long."""
    own = profile(chain(24, 0, equal=True))
    fix = {"data": 1, "pipeline": 12, "recompute": False}
    asked = Question(profile=own, cluster=cluster(12), batch=batch, fix=fix, schedules=("chimera",))
    state = SearchState(instance=asked.instance(), effort=Effort())
    for shape in ranked(state.instance):
        tried = state.look(shape)
        assert tried is not None
        assert guess_ns(state.floors, shape) == pytest.approx(even_ns(state, tried), rel=0.15), shape
