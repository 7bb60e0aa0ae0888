"""Ranks that share a sample read its parts, and draw the same augmentation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.plan import Plan
from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.spatial.test_plans import plan_of
from tests.runtime.spatial.workloads.recorded import SAMPLES, SIDE

RECORDED = "tests/runtime/spatial/workloads/recorded.py"


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    numbers = np.random.default_rng(0).normal(size=(SAMPLES, 1, SIDE, SIDE, SIDE))
    numbers.astype(np.float64).tofile(tmp_path / "volumes.f64")
    return tmp_path


def plan(
    folder: Path, grids: dict[int, tuple[int, ...]], ranks: int, labels: str = "parts", **shape: object
) -> Plan:
    arguments = {"folder": str(folder), "labels": labels}
    return plan_of(RECORDED, grids, ranks, arguments=arguments, **{"micros": 2, "workers": 1, **shape})


def asked(folder: Path) -> list[dict[str, object]]:
    """What each process asked for, in its order; they are forgotten."""
    found = []
    for path in sorted(folder.glob("asked-*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
    return found


def regions(rows: list[dict[str, object]]) -> set[str]:
    return {json.dumps(row["region"]) for row in rows}


WHOLE = [0, SIDE]


@pytest.mark.parametrize("labels", ["parts", "whole"])
def test_each_rank_reads_its_part_only(labels: str, pool: Pool, volumes: Path) -> None:
    alone = run(pool, plan(volumes, {}, 1, labels="whole"), volumes / "alone", steps=3)
    assert regions(asked(volumes)) == {json.dumps([WHOLE] * 3)}
    shared = run(
        pool, plan(volumes, {0: (2,)}, 2, labels), volumes / "shared", steps=3, compare_holders=False
    )
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)
    assert regions(asked(volumes)) == {json.dumps([[0, 4], WHOLE, WHOLE]), json.dumps([[4, 9], WHOLE, WHOLE])}


def test_a_grid_reads_boxes(pool: Pool, volumes: Path) -> None:
    run(pool, plan(volumes, {0: (2, 2)}, 4), volumes / "run", steps=1, compare_holders=False)
    rows = [[0, 4], [4, 9]]
    assert regions(asked(volumes)) == {json.dumps([a, b, WHOLE]) for a in rows for b in rows}


def test_stages_on_whole_samples_read_whole_samples(pool: Pool, volumes: Path) -> None:
    grids = {0: (2,), 1: ()}
    settings = {"micros": 2, "workers": 2}
    alone = run(pool, plan(volumes, {}, 1, "whole"), volumes / "alone", steps=2)
    asked(volumes)
    shared = run(
        pool, plan(volumes, grids, 2, "whole", **settings), volumes / "shared", steps=2, compare_holders=False
    )
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)


def test_who_shares_a_sample_draws_the_same_augmentation(pool: Pool, volumes: Path) -> None:
    settings = {"micros": 1, "workers": 1, "data": 2}
    run(pool, plan(volumes, {0: (2,)}, 2, **settings), volumes / "run", steps=4, compare_holders=False)
    rows = asked(volumes)
    drawn: dict[object, list[object]] = {}
    for row in rows:
        drawn.setdefault(row["factor"], []).append((row["index"], json.dumps(row["region"])))
    assert all(len(each) == 2 and len({index for index, _ in each}) == 1 for each in drawn.values())  # type: ignore[misc]
    again = [row["factor"] for row in rows if row["index"] == rows[0]["index"]]
    assert len(set(again)) > 1, "another epoch draws anew"


def test_a_dataset_that_reads_no_parts_is_read_whole_and_cut(pool: Pool, volumes: Path) -> None:
    alone = run(pool, plan(volumes, {}, 1, "whole"), volumes / "alone", steps=2)
    asked(volumes)
    shared = run(
        pool, plan(volumes, {0: (3,)}, 3, "unread"), volumes / "shared", steps=2, compare_holders=False
    )
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)
    assert regions(asked(volumes)) == {json.dumps([WHOLE] * 3)}
