"""Why this plan: parts that add up, rivals that lose, errors that leave ties, memory that buys something or nothing."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

import shardwright as sw
from planner.errors import BadInput, Infeasible
from planner.explore import Explanation, Lemma, explain, over_kept
from planner.explore.explanation import _near, _others, _over_bound
from planner.kept import WHOLE, KeptEntries
from planner.milp import Question, solve, solve_with_search
from planner.plan import dump
from planner.profile import Profile, Seconds
from planner.show import data, text
from planner.show.rivals import configuration_text
from tests.planner.milp.instances import chain, cluster, profile

COSTS = profile(chain(8, 3, skips=1), micros=(1, 2), scale=100)
TIGHT = Question(
    profile=COSTS,
    cluster=cluster(4, memory=150_000),
    batch=8,
    schedules=("1f1b", "zb-h1", "interleaved"),
)


@pytest.fixture(scope="module")
def tight() -> Explanation:
    return explain(TIGHT, more_bytes=100_000)


def exact(costs: Profile) -> Profile:
    """The same costs, known without error."""

    def known(time: Seconds) -> Seconds:
        return Seconds(median=time.median)

    rows = {
        key: replace(
            cost,
            forward=known(cost.forward),
            backward=known(cost.backward),
            input_grad=known(cost.input_grad),
            weight_grad=known(cost.weight_grad),
        )
        for key, cost in costs.costs.items()
    }
    return replace(costs, costs=rows)


def wide(costs: Profile) -> Profile:
    """The same model, whose weights have two dims."""
    halves = [(row, -(-prod(row.shape) // 2)) for row in costs.graph.parameters]
    rows = tuple(replace(row, shape=(2, half), bytes=8 * half) for row, half in halves)
    return replace(costs, graph=replace(costs.graph, parameters=rows))


def small(share: float) -> Question:
    costs = wide(profile(chain(4, 3)))
    costs = replace(costs, kept=KeptEntries.of_share(costs.graph, share))
    return Question(profile=costs, cluster=cluster(2), batch=4, schedules=["1f1b"])


def test_of_a_pruned_model_it_is_said_what_its_state_takes_beside_the_unpruned_one() -> None:
    found = explain(small(0.1), more_bytes=100_000)
    assert found.pruned is not None and found.pruned.dense == solve(small(1.0))
    rate = COSTS.optimizer.state_bytes_per_parameter
    assert found.pruned.dense_bytes_each == pytest.approx(8 + rate, rel=0.02)
    assert found.pruned.bytes_each == pytest.approx(4 + 0.1 * (12 + rate), rel=0.02)
    said = f"{found.pruned.bytes_each:.1f} instead of {found.pruned.dense_bytes_each:.1f} bytes a parameter"
    assert said in text(found)
    assert explain(small(1.0), more_bytes=100_000).pruned is None


def test_a_share_of_one_gives_the_plan_of_an_unpruned_model_to_the_byte() -> None:
    unpruned = small(0.1)
    unpruned = replace(unpruned, profile=replace(unpruned.profile, kept=WHOLE))
    assert dump(solve(small(1.0))) == dump(solve(unpruned))


def test_every_share_gets_the_plan_that_it_makes_possible() -> None:
    sweep = over_kept(small(1.0), (0.1, 1.0, 0.1))
    assert [row.asked for row in sweep.rows] == [1.0, 0.1]
    assert all(row.plan == solve(small(row.asked)) for row in sweep.rows)


def test_in_python_a_plan_is_made_for_a_share_as_the_command_makes_it() -> None:
    asked = small(0.1)
    given = replace(asked.profile, kept=WHOLE), asked.cluster
    found = sw.plan(*given, batch=4, schedule=["1f1b"], kept=0.1)
    assert dump(found) == dump(solve(asked))
    with pytest.raises(BadInput, match=r"several shares: 0\.1,0\.2"):
        sw.plan(*given, batch=4, kept="0.1,0.2")


def test_a_comparison_of_shares_says_what_the_fastest_ones_keep() -> None:
    sweep = over_kept(small(1.0), (0.1, 1.0))
    assert "Knee: 0.1 of the entries of pruned weights" in text(replace(sweep, knee=0.1))
    said = text(replace(sweep, knee=1.0))
    assert "Knee: nothing is pruned." in said and "1 of the" not in said


def test_what_is_explained_is_the_plan_that_is_found(tight: Explanation) -> None:
    plan = solve(TIGHT)
    assert tight.plan == plan
    assert tight.chosen.step_ns == plan.prediction.step_ns


def test_the_parts_of_a_step_add_up_to_it(tight: Explanation) -> None:
    for part in (tight.chosen, *tight.runners_up):
        assert sum(part.parts_ns.values()) == pytest.approx(part.step_ns)


def test_runners_up_are_of_other_families_and_no_faster(tight: Explanation) -> None:
    assert tight.runners_up
    family = tight.plan.schedule.family
    names = [part.configuration.family for part in tight.runners_up]
    assert family not in names
    assert len(set(names)) == len(names)
    assert all(part.step_ns >= tight.chosen.step_ns for part in tight.runners_up)


def test_plans_within_the_error_of_the_costs_are_ties(tight: Explanation) -> None:
    assert tight.error == pytest.approx(0.05, rel=0.01)
    assert tight.within == pytest.approx(2 * tight.error / (1 - tight.error))
    for part in tight.within_error:
        assert tight.chosen.step_ns <= part.step_ns <= tight.chosen.step_ns * (1 + tight.within)


def test_what_is_not_proved_counts_among_what_could_be_faster(tight: Explanation) -> None:
    proof = tight.plan.certificate
    assert proof is not None and _over_bound(tight.plan) == 1
    half = proof.model_copy(update={"bound_ns": proof.objective_ns // 2})
    open_ = tight.plan.model_copy(update={"certificate": half})
    assert _over_bound(open_) == pytest.approx(2, rel=0.01)
    assert _over_bound(tight.plan.model_copy(update={"certificate": None})) == float("inf")


def test_a_way_to_train_is_a_tie_once_in_the_best_of_its_orders() -> None:
    fix = {"data": 1, "pipeline": 4, "micro": 1}
    question = TIGHT.replace(schedule=("1f1b", "zb-h1", "listed"), fix=fix)
    _, found = solve_with_search(question.instance())
    assert found.best is not None and found.best.shape.family == "zb-h1" and found.best.shape.listed
    others = [str(tried.shape) for tried in _others(found)]
    assert len(set(others)) < len(others)
    assert [configuration_text(part.configuration) for part in _near(found, 2 * found.limit)] == [
        "listed, 4 workers, micro-batches of 1, rescheduled",
        "1f1b, 4 workers, micro-batches of 1",
    ]


def test_exact_costs_leave_no_ties_but_equals() -> None:
    found = explain(replace(TIGHT, profile=exact(COSTS), cluster=cluster(2)))
    assert found.error == found.within == 0
    assert all(part.step_ns == found.chosen.step_ns for part in found.within_error)
    assert "carry no spread" in text(found)


def test_what_more_memory_gives_is_what_solving_with_it_gives(tight: Explanation) -> None:
    roomy = solve(TIGHT.replace(cluster=cluster(4, memory=250_000)))
    assert tight.room.step_ns == roomy.prediction.step_ns < tight.chosen.step_ns
    assert "more on each device would save" in text(tight)


def test_where_memory_is_not_in_the_way_more_of_it_changes_nothing() -> None:
    machines = cluster(4, memory=1 << 30)
    found = explain(TIGHT.replace(cluster=machines))
    assert found.room.step_ns == found.chosen.step_ns
    memory = found.plan.prediction.memory
    assert found.room.free_bytes == (1 << 30) - max(part.total for part in memory)
    assert "would change nothing" in text(found)


def test_an_explanation_is_told_as_data_too(tight: Explanation) -> None:
    told = data(tight)
    assert told["error"] == tight.error
    assert told["more_memory"] == {
        "more_bytes": 100_000,
        "step_ns": tight.room.step_ns,
        "plan": configuration_text(tight.room.configuration),
        "free_bytes": tight.room.free_bytes,
    }


def test_what_does_not_fit_is_not_explained_but_refused() -> None:
    with pytest.raises(Infeasible, match="bytes short"):
        explain(TIGHT.replace(cluster=cluster(1, memory=1000)))


def test_what_out_of_order_backprop_saves_is_told_against_one_sum() -> None:
    fix = {"pipeline": 1, "data": 4, "update": "rolling"}
    question = Question(profile=profile(chain(24, 0)), cluster=cluster(4), batch=8, fix=fix)
    found = explain(question)
    plain = solve(question.replace(fix={"out_of_order": "off"}))
    assert found.in_one is not None and found.in_one.step_ns == plain.prediction.step_ns
    assert found.in_one.step_ns > found.plan.prediction.step_ns
    said = text(found)
    assert "Out-of-order backprop saves" in said and "updates when the next step needs them" in said
    assert data(found)["in_one_sum_ns"] == plain.prediction.step_ns


def test_where_nothing_is_out_of_order_nothing_is_said_of_it(tight: Explanation) -> None:
    assert tight.in_one is None and "Out-of-order" not in text(tight)


def test_the_overhead_is_told_as_a_share_of_all_computing_on_one_device(tight: Explanation) -> None:
    told = text(replace(tight, overhead=Lemma(ratio=0.25, devices=64)))
    assert "if what is not computing stays as it is (25.0 % of all computing on one device)" in told
    assert "no number of them is more than 5 times as fast as one" in told
