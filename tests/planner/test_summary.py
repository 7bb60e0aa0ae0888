"""What people read of a plan."""

from __future__ import annotations

from planner import summary
from planner.plan import Certificate, Plan, Rival
from tests.planner import plan_examples as examples

NAME = "1f1b data 2 x pipeline 2, micro-batch 2 x 4"


def with_rivals(*rivals: Rival) -> Plan:
    plan = examples.plan()
    ns = plan.prediction.step_ns
    proof = Certificate(objective_ns=ns, bound_ns=ns, free_bound_ns=ns, gap=0.0, scope="all", rivals=rivals)
    return plan.model_copy(update={"certificate": proof})


def line_of(plan: Plan, name: str) -> str:
    return next(line for line in summary.of_plan(plan).splitlines() if line.startswith(name))


def test_sizes_of_rivals_are_in_units_that_people_read() -> None:
    plan = with_rivals(Rival(name="one device: x", step_ns=10**12, why="fullest worker 8754180 bytes"))
    assert line_of(plan, "one device").endswith("  fullest worker 8.349 MiB")


def test_a_trivial_plan_that_is_the_chosen_one_is_told_as_that() -> None:
    ns = examples.plan().prediction.step_ns
    for name in (f"equal-depth 1f1b: {NAME}", f"equal-depth 1f1b: {NAME}, data innermost", NAME):
        assert "the plan itself" in line_of(with_rivals(Rival(name=name, step_ns=ns, why="a")), name)
    for name, step in ((f"{NAME}0", ns), (NAME, ns + 1), ("equal-depth 1f1b", ns)):
        assert "the plan itself" not in line_of(with_rivals(Rival(name=name, step_ns=step, why="a")), name)


def test_what_is_faster_than_the_plan_is_not_said_to_have_lost() -> None:
    plan = with_rivals(Rival(name="one device", step_ns=1, why="a"), Rival(name="two", step_ns=None, why="b"))
    assert "faster, but not what was asked for; a" in line_of(plan, "one device")
    assert line_of(plan, "two").endswith("does not fit  b")
