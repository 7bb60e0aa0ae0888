"""The three lines, the table and the list that are made from a certificate."""

from __future__ import annotations

from pathlib import Path

from planner.plan import (
    MOST_NEAR,
    Certificate,
    Plan,
    PlannedConfiguration,
    Rival,
    RivalKind,
    SearchCounts,
    SearchSpace,
    load,
    with_bounds,
)
from planner.show import plan_lines, proof_data, proof_text, rival_rows, text, verdict
from planner.show.proof import how
from planner.show.rivals import configuration_text
from tests.planner import plan_examples as examples

MS = 1_000_000
OWN = PlannedConfiguration(family="1f1b", data=2, pipeline=2, micro=2, micros=4)
SPACE = SearchSpace(
    families=("1f1b", "gpipe", "chimera", "wave"),
    most_workers=64,
    most_actions=131072,
    free_chunks=2,
    parts="one_worker",
    most_forwards=1024,
    cuts="all",
    recompute="first_layers",
    shard=(False, True),
)


def rival(kind: RivalKind, ms: float | None, **changes: object) -> Rival:
    return Rival(
        kind=kind,
        configuration=OWN.model_copy(update=changes),
        step_ns=None if ms is None else round(ms * MS),
        sums=0.031,
        peak_bytes=8 << 20,
    )


def proved(
    *rivals: Rival,
    bound: float = 33.45,
    error: float = 0.12,
    fixed: dict[str, str] | None = None,
    count: int = 120,
) -> Plan:
    """A plan of 33.45 ms with a certificate, whose costs are known to a share of `error`."""
    plan, step = examples.plan(), round(33.45 * MS)
    left = 12 if bound < 33.45 else 0
    proof = Certificate(
        objective_ns=step,
        bound_ns=round(bound * MS),
        order_free_bound_ns=round(31.2 * MS),
        searched=SearchCounts(
            configurations=count, solved=1, ruled_out=count - 1 - left, open=left, rescheduled=2
        ),
        space=SPACE.model_copy(update={"fixed": fixed or {}}),
        chosen=rival("chosen", 33.45),
        rivals=rivals,
    )
    prediction = plan.prediction.model_copy(
        update={"step_ns": step, "low_ns": round(step * (1 - error)), "high_ns": round(step * (1 + error))}
    )
    return plan.model_copy(update={"prediction": prediction, "certificate": proof})


def test_three_lines_of_a_plan_that_others_equal_within_the_error_of_the_costs() -> None:
    plan = proved(
        rival("data_parallel", 33.7, pipeline=1),
        rival("family", 34, family="wave"),
        rival("one_device", 63.5),
    )
    assert plan_lines(plan) == [
        "tiny.py: 33.45 ms a step (29.44 to 37.46), 478.3 samples/s on 4 devices",
        "  2 replicas, pipeline of 2 workers (1f1b), 4 micro-batches of 2",
        "  proved fastest of 120 configurations for these costs; 2 others lie within the error of the costs (12.0 %)",
    ]


def test_costs_that_are_known_to_some_share_are_named_though_no_other_plan_is_near() -> None:
    assert verdict(proved()) == "proved fastest of 120 configurations for these costs, known to 12.0 %"


def test_exact_costs_leave_a_proof_as_it_is() -> None:
    plan = proved(rival("one_device", 63.5), error=0)
    assert verdict(plan) == "proved fastest of 120 configurations for these costs"
    assert "no error bar: its costs carry no spread" in plan_lines(plan)[0]
    equal = proved(rival("family", 33.45, family="wave"), error=0)
    assert verdict(equal).endswith("for these costs; 1 other takes as long")


def test_a_gap_is_told_as_what_a_better_plan_may_gain() -> None:
    plan = proved(bound=32.41, error=0)
    assert verdict(plan) == "at most 3.2 % slower than the best of 120 configurations (12 not finished)"


def test_a_search_that_ended_before_its_proof_says_what_was_not_looked_into() -> None:
    plan = proved(bound=32.41, error=0)
    assert plan.certificate is not None
    stopped = plan.certificate.model_copy(update={"stage": "settled"})
    told = verdict(plan.model_copy(update={"certificate": stopped}))
    assert told == "at most 3.2 % slower than the best of 120 configurations (12 not looked into)"


def test_a_plan_that_is_pinned_to_the_last_decision_is_the_only_one() -> None:
    pinned = {"data": "2", "pipeline": "2", "stages": "2 given"}
    assert verdict(proved(fixed=pinned, count=1)) == "the only plan the pins allow"
    assert "1 configuration " in verdict(proved(fixed={"data": "2"}, count=1)), "its cut was free"


def test_a_plan_without_a_certificate_was_written_by_hand() -> None:
    plan = examples.plan()
    assert verdict(plan) == proof_text(plan) == "not proved: this plan was written by hand"
    assert rival_rows(plan) == [] and proof_data(plan) is None


def test_a_certificate_of_version_1_says_what_it_does_not_know() -> None:
    plan = proved(error=0)
    old = plan.model_copy(update={"certificate": Certificate(objective_ns=10, bound_ns=10)})
    assert (
        verdict(old)
        == "proved fastest for these costs (a file of version 1: what was searched is not recorded)"
    )
    assert "Searched: not recorded: the plan file is of version 1" in proof_text(old)


def test_as_many_near_plans_as_a_certificate_names_may_be_more() -> None:
    near = [rival("near", 33.5, micro=2 + k) for k in range(MOST_NEAR)]
    assert f"; at least {MOST_NEAR} others lie within" in verdict(proved(*near))


def test_a_configuration_has_one_row_and_that_of_the_plan_its_plain_name() -> None:
    rows = rival_rows(
        proved(
            rival("data_parallel", 33.45),
            rival("equal_stages", 41.9),
            rival("family", 34, family="wave"),
            rival("near", 34, family="wave"),
            rival("one_device", None, data=1, pipeline=1),
        )
    )
    assert [row.name for row in rows] == [
        "this plan (data parallel)",
        "wave",
        "equal stages (1f1b)",
        "one device",
    ]
    assert [row.mark for row in rows] == [
        "",
        "within the error",
        "",
        "none for this batch, these devices and the micro-batches profiled",
    ]
    assert [row.slower for row in rows] == ["", "+1.6 %", "+25.3 %", ""]


def test_the_table_of_rivals() -> None:
    short = Rival(kind="one_device", configuration=OWN, missing_bytes=5 << 20)
    plan = proved(
        rival("data_parallel", 33.7, pipeline=1, micro=4), rival("family", 30, family="wave", chunks=2), short
    )
    assert text(plan).rpartition("\n\n")[2].splitlines() == [
        "plan           configuration                                 step   slower  idle   sums  messages  peak memory",
        "this plan      1f1b, 2 replicas, 2 workers               33.45 ms            0 %  3.1 %       0 %        8 MiB",
        "data parallel  1f1b, 2 replicas, micro-batches of 4       33.7 ms   +0.7 %   0 %  3.1 %       0 %        8 MiB  within the error",
        "wave           2 replicas, 2 workers, 2 stages a worker     30 ms  -10.3 %   0 %  3.1 %       0 %        8 MiB  faster, but not what was asked for",
        "one device     2 replicas, 2 workers                                                                            does not fit: 5 MiB short on a device",
    ]


def test_the_bound_of_families_in_their_own_order_stands_below_that_of_all() -> None:
    plan = proved(bound=32.0)
    assert plan.certificate is not None
    proof = with_bounds(plan.certificate, plan.certificate.bound_ns, round(33 * MS))
    lines = proof_text(plan.model_copy(update={"certificate": proof})).splitlines()
    assert lines[1:3] == [
        "lower bound     32 ms      no plan of the search space below is faster: gap 4.33 %",
        "own orders      33 ms      no plan of it whose family keeps its own order is faster: gap 1.35 %",
    ]
    raised = with_bounds(proof, round(33 * MS), round(33 * MS))
    assert raised.own_order_bound_ns is None and raised.gap < proof.gap


def test_the_list_of_a_proof() -> None:
    assert proof_text(proved(bound=33.0, fixed={"batch": "8"})).splitlines() == [
        "step            33.45 ms   simulated, with the costs of A100-40GB, roofline",
        "lower bound     33 ms      no plan of the search space below is faster: gap 1.35 %",
        "any order       31.2 ms    no order of the same actions on the same workers is faster than this",
        "",
        "Searched: 120 configurations; 1 solved, 107 ruled out by a bound, 12 left open",
        "  pinned         batch=8",
        "  machines       every number of replicas and pipeline workers on whole nodes, up to 64 workers",
        "  schedules      4 families, each in its own order, and 2 orders rescheduled for these costs; at most 131,072 "
        "actions",
        "  stages         one per worker, or as many as a family asks for; the two smallest numbers where a family allows "
        "any; several on a worker without a pipeline, if it has at most 1,024 forwards",
        "  cuts           every boundary, in the model's order of layers",
        "  recomputation  only where memory requires it: as few first layers of a stage as possible, whole stages where a "
        "worker has several",
        "  optimizer      state sharded over replicas where memory or time asks for it, in all stages alike",
        "Not searched: tensor parallelism, uneven shares of the batch (docs/scope.md)",
        "Assumed: replicas run at the speed of the slowest",
    ]


def test_a_plan_without_a_pipeline_says_how_many_stages_a_device_has_in_turn() -> None:
    plan = examples.plan()
    alone = plan.axes.model_copy(update={"pipeline": 1, "data": 2})
    for chunks, told in (
        (1, "2 replicas, no pipeline, "),
        (2, "2 replicas, no pipeline (2 stages in turn), "),
    ):
        shape = plan.schedule.model_copy(update={"chunks": chunks})
        assert how(plan.model_copy(update={"axes": alone, "schedule": shape})).startswith(told)


def test_a_strangers_proof_that_names_no_way_of_sharding_is_told() -> None:
    plan = proved()
    assert plan.certificate is not None
    proof = plan.certificate.model_copy(update={"space": SPACE.model_copy(update={"shard": ()})})
    assert "optimizer      state not sharded" in proof_text(plan.model_copy(update={"certificate": proof}))


def test_a_configuration_in_words_names_all_that_is_decided() -> None:
    every = OWN.model_copy(
        update={
            "family": "chimera",
            "grid": (2, 2),
            "recompute": "where_needed",
            "recomputed": (1, 3),
            "shard": True,
            "innermost": "pipeline",
            "rescheduled": True,
        }
    )
    assert configuration_text(every) == (
        "chimera, 2 replicas, 2 workers, 1 pair, 2x2 shards, micro-batches of 2, recompute where needed, recompute in "
        "stages 1, 3, optimizer state sharded, pipeline innermost, rescheduled"
    )


def test_the_plans_that_lie_with_the_program_show_themselves() -> None:
    for path in sorted((Path(__file__).parents[3] / "plans").glob("*.yaml")):
        told = text(load(path))
        assert "  proved fastest of 1 configuration for these costs\n" in told and "data parallel" in told


def test_sums_that_passes_wait_for_are_not_told_as_none() -> None:
    shared = rival("family", 34, held="parameters", ranks=2).model_copy(update={"sums": 0.0})
    rows = rival_rows(proved(rival("chosen", 33.45), shared))
    assert [row.sums for row in rows] == ["3.1 %", "in passes"]
