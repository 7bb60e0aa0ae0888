"""Small modules, each with something in it that a tracer or a cutter can get wrong, and the example models."""

from __future__ import annotations

from functools import partial

from benchmarks.zoo.parts import Case, Make
from planner.workload import load
from tests.planner.capture.more_state import STATES
from tests.planner.capture.test_cases import OURS
from tests.planner.capture_cases import CASES, mse, vectors
from tests.planner.capture_corners import CORNERS


def constructs() -> dict[str, Make]:
    """Returns the constructs that the tests of the capture have; a new table of theirs is one more name here."""
    return {**CASES, **CORNERS, **{name: partial(_state, name) for name in STATES}}


def examples() -> dict[str, Make]:
    """Returns the models in models/, small."""
    return {name: partial(_example, name) for name in OURS}


def _state(name: str) -> Case:
    return STATES[name](), vectors(4), mse


def _example(name: str) -> Case:
    workload = load(name, OURS[name])
    return workload.build(), workload.batch, workload.loss
