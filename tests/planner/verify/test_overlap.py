"""What is wrong with a plan whose updates come when a stage is used."""

from __future__ import annotations

from tests.planner import plan_examples as examples
from tests.planner.verify.test_verify import judged, without


def test_updates_at_use_go_with_a_rolling_update_only() -> None:
    plan = without(examples.plan(), "0STEP")
    early = examples.edited(
        plan, {"schedule.orders": ["0STEP " + plan.schedule.orders[0], *plan.schedule.orders[1:]]}
    )
    assert "schedule: 0STEP comes before 0SYNC" in judged(early)
    rolling = judged(examples.edited(early, {"schedule.update": "rolling"}))
    assert not any(line.startswith("schedule") for line in rolling)


def test_compiled_stages_are_cut_into_parts_where_roundings_do_not_depend_on_it() -> None:
    compiled = {"schedule.family": "overlap", "schedule.chunks": 2, "execution": "compiled"}
    for precision in ("bf16", "fp16", "fp32"):
        found = judged(examples.edited(examples.plan(), compiled | {"precision": precision}))
        assert any("a compiler fuses" in line for line in found) == (precision != "fp32")
    eager = compiled | {"execution": "eager", "precision": "bf16"}
    assert not any("a compiler fuses" in line for line in judged(examples.edited(examples.plan(), eager)))


def test_a_second_stream_is_not_built() -> None:
    found = judged(examples.edited(examples.plan(), {"schedule.settings": {"streams": 2}}))
    assert any("streams is 2" in line and "not built" in line for line in found)
