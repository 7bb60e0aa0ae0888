"""Every public name has an example that runs."""

from __future__ import annotations

import re

import shardwright as sw
from tests.docs.blocks import ROOT, blocks_of, tried

ELSEWHERE = {  # examples that need libraries which are no dependency, and the tests that train with them
    "PlanStrategy": "tests/runtime/bridges/test_lightning_strategy.py",
    "PlanTrainer": "tests/runtime/bridges/test_transformers_trainer.py",
}


def test_every_public_name_has_an_example_that_a_test_runs() -> None:
    shown = [block for block in blocks_of(ROOT / "docs" / "by-example.md") if block.language == "python"]
    met = {name for block in shown if tried(block) for name in re.findall(r"\bsw\.(\w+)", block.text)}
    assert sorted(set(sw.__all__) - met) == sorted(ELSEWHERE)
    assert met <= set(sw.__all__)
    for name, path in ELSEWHERE.items():
        assert any(f"sw.{name}(" in block.text for block in shown)
        assert f"sw.{name}(" in (ROOT / path).read_text()
