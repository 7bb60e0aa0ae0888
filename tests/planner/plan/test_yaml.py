"""Plans in files: back to the byte, and readable."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import BadInput
from planner.files import yaml_text as yaml_files
from planner.plan import Axes, Batch, Certificate, Plan
from planner.plan import yaml as plan_yaml
from tests.planner import plan_examples as examples

PLANS = Path(__file__).parents[3] / "plans"
SCHEMA = json.loads((PLANS / "plan.schema.json").read_text())
OWN = {"family": "1f1b", "micro": 1, "micros": 2}
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
                "searched": {"configurations": 3, "solved": 1, "ruled_out": 1, "open": 1},
                "space": {
                    "families": ["1f1b"],
                    "fixed": {"schedule": "1f1b"},
                    "most_workers": 64,
                    "most_actions": 1024,
                    "parts": "none",
                    "cuts": "all",
                    "recompute": "none",
                    "shard": [False, True],
                    "grids": [[2], [2, 2]],
                },
                "chosen": {"kind": "chosen", "configuration": OWN, "step_ns": 10, "idle": 0.25},
                "rivals": [
                    {"kind": "data_parallel", "missing_bytes": 3 << 30},
                    {
                        "kind": "near",
                        "configuration": OWN | {"pipeline": 2, "rescheduled": True},
                        "step_ns": 11,
                    },
                ],
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
@given(words, settings_, settings_, st.lists(words, max_size=3), st.floats(0, 1e-3), words)
def test_any_names_and_settings_come_back_to_the_byte(
    workload: str,
    arguments: dict[str, object],
    chosen: dict[str, object],
    layers: list[str],
    idle: float,
    family: str,
) -> None:
    plan = examples.edited(
        EXAMPLES[2],
        {
            "model.workload": workload,
            "model.arguments": arguments,
            "schedule.settings": chosen,
            "stages.0.layers": layers,
            "certificate.rivals.1.idle": idle,
            "certificate.space.families": [family],
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


VERSION_1 = """certificate:
  objective_ns: 12
  bound_ns: 9
  free_bound_ns: 8
  gap: 0.25
  scope: "1 shapes (0 ruled out by bounds): 1f1b, orders frozen as generated"
  rivals:
    - {name: "one device: 1f1b data 1", step_ns: 20, why: "bubble 0.0% of its step; fullest worker 245668 bytes"}
"""


def of_version_1(certificate: str = VERSION_1) -> str:
    text = plan_yaml.dump(EXAMPLES[0]).replace("version: 2", "version: 1", 1)
    return text.replace("certificate: null\n", certificate)


def test_a_plan_of_version_1_keeps_its_bounds_and_forgets_its_sentences() -> None:
    plan = plan_yaml.parse(of_version_1())
    assert plan.certificate == Certificate(objective_ns=12, bound_ns=9, order_free_bound_ns=8)
    assert plan.certificate.gap == 0.25
    assert plan.certificate.searched is plan.certificate.space is None
    assert plan.model_copy(update={"certificate": None}) == EXAMPLES[0]


def test_a_plan_of_version_1_is_written_as_version_2_and_comes_back() -> None:
    plan = plan_yaml.parse(of_version_1())
    text = plan_yaml.dump(plan)
    assert "version: 2\n" in text and "scope" not in text
    assert plan_yaml.parse(text) == plan


def test_a_plan_of_version_1_without_a_certificate_is_read() -> None:
    assert plan_yaml.parse(of_version_1("certificate: null\n")) == EXAMPLES[0]


def test_what_is_wrong_in_a_plan_of_version_1_is_named_with_its_line() -> None:
    with pytest.raises(BadInput, match=r"plan:\d+: certificate.bound_ns: 'soon' does not fit"):
        plan_yaml.parse(of_version_1(VERSION_1.replace("bound_ns: 9", "bound_ns: soon", 1)))
    with pytest.raises(BadInput, match="version: 3 is from the future"):
        plan_yaml.parse(of_version_1().replace("version: 1", "version: 3", 1))


def test_no_sentence_is_in_a_certificate() -> None:
    """Every text of a written certificate is one word: a name that programs know."""
    written = plan_yaml.dump(EXAMPLES[2]).partition("certificate:\n")[2].partition("provenance:")[0]
    assert '"' not in written
