"""Plans in files: back to the byte, and readable."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.files import yaml_text as yaml_files
from planner.plan import Axes, Batch, Plan
from planner.plan import yaml as plan_yaml
from tests.planner import plan_examples as examples

PLANS = Path(__file__).parents[3] / "plans"
SCHEMA = json.loads((PLANS / "plan.schema.json").read_text())
EXAMPLES = [
    examples.plan(),
    examples.plan(family="chimera", cuts=(1, 2, 4), workers=4, pairs=2),
    examples.edited(
        examples.plan(recompute=True),
        {
            "model.arguments": {"size": "xl", "rate": 1e-6, "on": True, "0": "no"},
            "certificate": {
                "objective_ns": 10,
                "bound_ns": 10,
                "gap": 1e-7,
                "scope": "all cuts: 3, of 1 shape",
                "rivals": [{"name": "data only", "step_ns": None, "why": "does not fit: 3 GiB, on worker 0"}],
            },
        },
    ),
]


@pytest.mark.parametrize("plan", EXAMPLES)
def test_a_plan_comes_back_to_the_byte(plan: Plan) -> None:
    text = plan_yaml.dump(plan)
    again = plan_yaml.parse(text)
    assert again == plan
    assert plan_yaml.dump(again) == text


@pytest.mark.parametrize("plan", EXAMPLES)
def test_a_written_plan_fits_the_schema(plan: Plan) -> None:
    data = yaml_files.parse_yaml(plan_yaml.dump(plan), name="plan")
    jsonschema.validate(data, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"layers": []}, SCHEMA)


words = st.text(min_size=1, max_size=12)
settings_ = st.dictionaries(
    words, st.integers(-5, 5) | st.floats(-1e6, 1e6) | st.booleans() | words, max_size=3
)


@settings(max_examples=50)
@given(words, settings_, settings_, st.lists(words, max_size=3), st.floats(0, 1), words)
def test_any_names_and_settings_come_back_to_the_byte(
    workload: str,
    arguments: dict[str, object],
    chosen: dict[str, object],
    layers: list[str],
    gap: float,
    scope: str,
) -> None:
    plan = examples.edited(
        EXAMPLES[2],
        {
            "model.workload": workload,
            "model.arguments": arguments,
            "schedule.settings": chosen,
            "stages.0.layers": layers,
            "certificate.gap": gap,
            "certificate.scope": scope,
        },
    )
    text = plan_yaml.dump(plan)
    again = plan_yaml.parse(text)
    assert again == plan
    assert plan_yaml.dump(again) == text


def test_the_order_in_which_settings_were_given_does_not_show() -> None:
    one, other = (
        examples.edited(examples.plan(), {"model.arguments": arguments})
        for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )
    assert plan_yaml.dump(one) == plan_yaml.dump(other)


def test_a_plan_is_read_by_its_path_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(plan_yaml.dump(EXAMPLES[0]))
    assert plan_yaml.load(path) == plan_yaml.load(str(path)) == EXAMPLES[0]


def test_a_place_may_be_written_with_its_columns_named() -> None:
    row = "  - {rank: 0, node: 0, slot: 0, data: 0, pipeline: 0, spatial: 0}\n"
    text = plan_yaml.dump(EXAMPLES[0]).replace("  - 0 0 0 0 0 0\n", row)
    assert row in text
    assert plan_yaml.parse(text) == EXAMPLES[0]


def test_a_plan_of_thousands_of_ranks_has_one_short_line_a_rank() -> None:
    ranks = 2048
    places = [
        {"rank": r, "node": r, "slot": 0, "data": r // 2, "pipeline": r % 2, "spatial": 0}
        for r in range(ranks)
    ]
    plan = examples.plan().model_copy(
        update={"axes": Axes(data=ranks // 2, pipeline=2), "batch": Batch(samples=8192, micro=2, micros=4)}
    )
    text = plan_yaml.dump(examples.edited(plan, {"places": places}))
    rows = [line for line in text.splitlines() if line.startswith("  - ")]
    assert rows[-1 - len(plan.times) - len(plan.hops)] == "  - 2047 2047 0 1023 1 0"
    assert len(plan_yaml.parse(text).places) == ranks
