"""The examples in the files that a newcomer reads first run, and print what they say."""

from __future__ import annotations

import doctest
import sys

import pytest

import planner.model
import planner.schedule
import planner.shown
import planner.simulate  # noqa: F401

FILES = (
    "planner.model.graph",
    "planner.schedule.actions",
    "planner.simulate.simulate",
    "planner.shown",
)


@pytest.mark.parametrize("name", FILES)
def test_the_examples_of_a_file_hold(name: str) -> None:
    found = doctest.testmod(sys.modules[name], optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted and not found.failed
