"""Averages of parameters that replicas share are those of whole parameters, to the bit, in any checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from planner.plan import Plan
from runtime.checkpoint import latest
from runtime.runfolder import Evaluated, evaluations_of
from tests.pool import Pool
from tests.runtime.loop.test_around import HERE, trained
from tests.runtime.test_equality import plan_of

SETTINGS: dict[str, object] = {"ema": 0.9, "eval_every": 2, "save_every": 2}


def plan(sharing: str = "", ranks: int = 0, **shape: object) -> Plan:
    shape = {
        "family": "1f1b",
        "workers": 1,
        "micros": 1,
        "data": 4,
        "sharing": sharing,
        "ranks": ranks,
    } | shape
    return plan_of(HERE + "looped.py", {"channels": "3"}, **shape)


def found_in(folder: Path) -> tuple[list[Evaluated], dict[str, Tensor]]:
    """What a run evaluated, and the averages in its last checkpoint."""
    from runtime.runfolder import Paths

    last = latest(folder / "checkpoints")
    assert last is not None
    return list(evaluations_of(Paths(folder))), last.whole(averaged=True)


@pytest.mark.parametrize(
    ("sharing", "ranks"), [("state", 0), ("gradients", 0), ("parameters", 0), ("parameters", 2)]
)
def test_averages_are_those_of_whole_parameters_to_the_bit(
    sharing: str, ranks: int, pool: Pool, tmp_path: Path
) -> None:
    exact = 1e-12 if ranks else 0.0  # two copies sum in another order
    trained(pool, plan(), tmp_path / "whole", 4, **SETTINGS)
    trained(pool, plan(sharing, ranks), tmp_path / "shared", 4, **SETTINGS)
    (seen, averages), (others, found) = found_in(tmp_path / "whole"), found_in(tmp_path / "shared")
    assert averages.keys() == found.keys()
    assert max(float((averages[name] - found[name]).abs().max()) for name in averages) <= exact
    values = [(a.values[key], b.values[key]) for a, b in zip(seen, others, strict=True) for key in a.values]
    assert max(abs(a - b) for a, b in values) <= exact
    last = latest(tmp_path / "shared" / "checkpoints")
    assert last is not None
    assert any(not torch.equal(x, found[name]) for name, x in last.whole().items())


def test_a_run_goes_on_with_its_averages_under_any_sharing(pool: Pool, tmp_path: Path) -> None:
    trained(pool, plan(), tmp_path / "whole", 8, **SETTINGS)
    parts = ("parameters", "gradients", "", "state")
    for done, sharing in enumerate(parts, 1):
        trained(pool, plan(sharing), tmp_path / "shared", 2 * done, **SETTINGS)
    (seen, averages), (others, found) = found_in(tmp_path / "whole"), found_in(tmp_path / "shared")
    assert [each.values for each in seen] == [each.values for each in others]
    assert all(torch.equal(averages[name], found[name]) for name in averages)
