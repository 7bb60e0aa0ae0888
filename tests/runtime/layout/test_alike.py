"""A group without a cut computes alike on all of its ranks, or is refused; and all derive the same from one file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.plan import refused
from planner.profile import save
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.layout.test_memory import VOCABULARY
from tests.runtime.layout.test_plans import in_parts
from tests.runtime.plans import plan_for
from tests.runtime.test_memory_model import profile

MODELS = {
    "LSTM": ("tests/runtime/workloads/lstm.py", {"size": "tiny"}),
    "U-Net": ("unet3d", {"size": "tiny"}),
    "ResNet": ("resnet50", {"width": "8", "classes": "4", "side": "32"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_group_without_a_cut_trains_as_one_process_or_is_refused(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    workload, arguments = MODELS[name]
    _, captured = captured_of(workload, arguments, 2)
    plan = in_parts(plan_for(captured.graph, workload, arguments=arguments, workers=1, micros=2), {}, (2,))
    if any(refused(plan, captured.graph)):
        return
    have = run(pool, plan, tmp_path, steps=2, compare_holders=False)
    assert distance(expected(plan, tmp_path, steps=2), have).worst() < 1e-4


def test_every_process_derives_the_same_parts_of_one_file(tmp_path: Path) -> None:
    """Whatever order its sets have; ranks compare such a digest before they start."""
    save(profile("gpt2", (("dropout", "0"), ("size", "tiny")), 4), tmp_path / "profile.yaml")
    code = f"""
from hashlib import sha256
from pathlib import Path
from planner.layout import cut_of
from planner.plan import cut_lines, wishes_in
from planner.profile import load
graph = load(Path("profile.yaml")).graph
found = cut_of(graph, 4, (2,), wishes_in(cut_lines({VOCABULARY!r})))
print(sha256(repr(found).encode()).hexdigest())
"""
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
