"""Everything that reads a run, for one that was launched in any way."""

from __future__ import annotations

from pathlib import Path

import shardwright as sw
from runtime.runfolder import Paths


def reads(folder: Path, steps: int, page: Path) -> None:
    """`show`, `report`, `calibrate` and `sw.record` take it, and all speak of the same steps."""
    ran = sw.record(folder)
    assert sorted(ran.losses) == list(range(1, steps + 1))
    assert ran.steps == tuple(range(3, steps + 1)), "the first two are warm-up"
    assert sorted(ran.measured.clock_rank.tolist()) == list(range(len(ran.plan.places)))
    compared = ran.comparison
    assert 0 < compared.measured_idle_ns < compared.measured_step_ns
    assert "Measured and predicted" in sw.report(ran.plan, page, run=folder).read_text()
    assert sw.run(["show", str(folder)]) == 0
    assert sw.run(["calibrate", str(folder), "-o", str(page.with_suffix(".yaml"))]) == 0
    assert Paths(folder).trace.exists(), "gathered when the run ended"
