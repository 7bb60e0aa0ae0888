"""Every process derives the same parts of one file, whatever order its sets have: ranks compare that before they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from planner.profile import save
from tests.runtime.layout.test_memory import VOCABULARY
from tests.runtime.test_memory_model import profile

CODE = f"""
from pathlib import Path
from planner.layout import cut_of
from planner.plan import cut_lines, wishes_in
from planner.profile import load
wishes = wishes_in(cut_lines({VOCABULARY!r}))
print(cut_of(load(Path("profile.yaml")).graph, 4, (2,), wishes).agreed)
"""


def test_every_process_derives_the_same_parts_of_one_file(tmp_path: Path) -> None:
    save(profile("gpt2", (("dropout", "0"), ("size", "tiny")), 4), tmp_path / "profile.yaml")
    path = str(Path(__file__).parents[3])
    texts = {
        subprocess.run(
            [sys.executable, "-c", CODE],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
