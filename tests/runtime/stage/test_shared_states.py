"""Buffers that a forward writes, held by several ranks or pipes: after every step they are those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadPlan
from runtime.rank import check_supported
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE, plan_of

STATES = HERE + "states.py"
HELD = {
    "two replicas": {"workers": 1, "micros": 2, "data": 2},
    "two replicas of a pipeline that recomputes": {"micros": 2, "data": 2, "recompute": (0, 1)},
    "two pipes": {"family": "chimera", "micros": 4},
    "two pipes and replicas with zero bubble": {"family": "chimera-zb", "micros": 2, "data": 2},
    "updates at use": {"family": "overlap", "workers": 1, "micros": 2, "data": 2, "update": "rolling"},
}


@pytest.mark.parametrize("shape", HELD.values(), ids=HELD)
@pytest.mark.parametrize("kind", ["spectral", "smoothed", "blind"])
def test_states_of_several_holders_are_those_of_one_process(
    kind: str, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(STATES, {"kind": kind}, **shape)
    have = run(pool, plan, tmp_path, steps=3)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() <= 1e-12, found


@pytest.mark.parametrize("family", ["gpipe", "interleaved", "zb-v"])
@pytest.mark.parametrize("kind", ["ema", "bank", "rows"])
def test_states_that_depend_on_samples_go_through_every_pipeline_of_one_pipe(
    kind: str, family: str, pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(STATES, {"kind": kind}, family=family, workers=2, micros=4)
    have = run(pool, plan, tmp_path, steps=2)
    assert distance(expected(plan, tmp_path, steps=2), have).worst() <= 1e-12


@pytest.mark.parametrize(
    "shape", [{"workers": 1, "micros": 2, "data": 2}, {"family": "chimera", "micros": 2}]
)
@pytest.mark.parametrize(
    ("kind", "named"),
    [("ema", r"'2\.ema'"), ("bank", r"'2\.queue'"), ("rows", r"parameter '0\.rows\.weight'")],
)
def test_states_that_holders_cannot_keep_equal_are_refused_with_their_names(
    kind: str, named: str, shape: dict[str, object]
) -> None:
    plan = plan_of(STATES, {"kind": kind}, **shape)
    with pytest.raises(BadPlan, match=rf"writes (and reads )?{named}.* cannot keep it equal: data: 1"):
        check_supported(plan, captured_of(STATES, {"kind": kind}, 2)[1])
