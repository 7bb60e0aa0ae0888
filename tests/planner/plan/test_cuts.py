"""What a plan's section `cut` may say, how it is written, and what is refused of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.plan import CutLine, Plan, cut_lines, dump, load, refused_cuts
from tests.captures import captured_of
from tests.runtime.layout.test_plans import HEADS, WORDS, plan_of


def refusals(plan: Plan) -> list[str]:
    _, captured = captured_of(WORDS, {}, 2)
    return [str(found) for found in refused_cuts(plan, captured.graph)]


def test_a_plan_with_a_cut_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = plan_of({"blocks.*.attention": "heads+samples"}, (2, 2), workers=1)
    text = dump(plan)
    (tmp_path / "plan.yaml").write_text(text)
    assert load(tmp_path / "plan.yaml") == plan
    assert "group: 4" in text and "spatial: 4" not in text and "mesh: [2, 2]" in text
    assert refusals(plan) == []


def test_lines_are_read_from_a_text_rows_or_a_file(tmp_path: Path) -> None:
    lines = (CutLine(layers="blocks.*", x="heads", y="samples"), CutLine(layers="head", x="out"))
    assert cut_lines("blocks.*:heads:samples, head:out") == lines
    assert (
        cut_lines([{"layers": "blocks.*", "x": "heads", "y": "samples"}, {"layers": "head", "x": "out"}])
        == lines
    )
    file = tmp_path / "cut.yaml"
    file.write_text(
        "version: 1\ncut:\n- {layers: blocks.*, x: heads, y: samples}\n- {layers: head, x: out}\n"
    )
    assert cut_lines(str(file)) == lines


@pytest.mark.parametrize("given", ["heads", "blocks.*:", ":heads", "a:b:c:d:e", "no/such/file.yaml"])
def test_what_is_no_cut_is_refused(given: str) -> None:
    with pytest.raises(BadInput):
        cut_lines(given)


REFUSED: Mapping[str, tuple[Mapping[str, str], tuple[int, ...], str]] = {
    "heads that ranks cannot share": (HEADS, (3,), "48 columns in 3 parts do not fit"),
    "a factor that there is not": ({"blocks.*": "columns"}, (2,), "factor 'columns'"),
    "a factor that a layer has not": (
        {"norm": "heads"},
        (2,),
        "no operation of 'norm' has the factor 'heads'",
    ),
    "a module that there is not": ({"block": "heads"}, (2,), "no module 'block'"),
    "a weight under two cuts": ({"token": "vocabulary"}, (2,), "'token.weight' is used under two cuts"),
    "a line without a factor": ({"norm": ""}, (2,), "names no factor"),
    "more axes than the group has": ({"norm": "samples+samples"}, (2,), "names 2 axes"),
    "a group of one": (HEADS, (1,), "a group of 2 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cut_that_cannot_be_is_refused_in_one_message(name: str) -> None:
    lines, mesh, said = REFUSED[name]
    (found,) = refusals(plan_of(lines, mesh, workers=1))
    assert said in found


def test_a_mesh_is_as_large_as_its_group() -> None:
    plan = plan_of(HEADS, (2,), workers=1)
    stage = plan.stages[0].model_copy(update={"mesh": (2, 2)})
    (found,) = refusals(plan.model_copy(update={"stages": (stage,)}))
    assert "a mesh of 2 x 2 is 4 ranks" in found


def test_what_does_not_go_with_a_cut_is_refused_by_name() -> None:
    plan = plan_of(HEADS, (2,), workers=1)
    assert "compiled" in refusals(plan.model_copy(update={"execution": "compiled"}))[0]
    assert "pruned" not in "".join(refusals(plan))
    (found,) = (str(x) for x in refused_cuts(plan, captured_of(WORDS, {}, 2)[1].graph, "adafactor"))
    assert "adafactor looks at whole parameters" in found
