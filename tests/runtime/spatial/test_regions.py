"""Ranks that share a sample read its parts, and draw the same augmentation."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from planner.capture import Captured, capture
from planner.errors import BadInput
from planner.plan import Plan
from planner.workload import Workload, load
from runtime.data import Batches, Wanted
from runtime.data import regions as regions_
from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.spatial.test_plans import plan_of
from tests.runtime.spatial.workloads.recorded import SAMPLES, SIDE, Volumes

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


def asked(folder: Path, compared: int = 0) -> list[dict[str, object]]:
    """What each process asked for, in its order; they are forgotten. Left out are `compared` samples that it read
    before the first step: those of a micro-batch, by region and whole."""
    found = []
    for path in sorted(folder.glob("asked-*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first = [row["index"] for row in rows[:compared]]
        assert first[: compared // 2] == first[compared // 2 :]
        found += rows[compared:]
        path.unlink()
    return found


def regions(rows: list[dict[str, object]]) -> set[str]:
    return {json.dumps(row["region"]) for row in rows}


WHOLE = [0, SIDE]
COMPARED = 2 * 2  # a micro-batch, read twice


@pytest.mark.parametrize("labels", ["parts", "whole"])
def test_each_rank_reads_its_part_only(labels: str, pool: Pool, volumes: Path) -> None:
    alone = run(pool, plan(volumes, {}, 1, labels="whole"), volumes / "alone", steps=3)
    assert regions(asked(volumes)) == {json.dumps([WHOLE] * 3)}
    shared = run(
        pool, plan(volumes, {0: (2,)}, 2, labels), volumes / "shared", steps=3, compare_holders=False
    )
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)
    rows = asked(volumes, COMPARED)
    assert regions(rows) == {json.dumps([[0, 4], WHOLE, WHOLE]), json.dumps([[4, 9], WHOLE, WHOLE])}


def test_a_grid_reads_boxes(pool: Pool, volumes: Path) -> None:
    run(pool, plan(volumes, {0: (2, 2)}, 4), volumes / "run", steps=1, compare_holders=False)
    rows = [[0, 4], [4, 9]]
    assert regions(asked(volumes, COMPARED)) == {json.dumps([a, b, WHOLE]) for a in rows for b in rows}


@pytest.mark.parametrize("labels", ["parts", "whole"])
def test_a_stage_on_whole_samples_reads_labels_whole_in_whichever_part_they_come(
    labels: str, pool: Pool, volumes: Path
) -> None:
    grids = {0: (2,), 1: ()}
    settings = {"micros": 2, "workers": 2}
    alone = run(pool, plan(volumes, {}, 1, "whole"), volumes / "alone", steps=2)
    asked(volumes)
    shared = run(
        pool, plan(volumes, grids, 2, labels, **settings), volumes / "shared", steps=2, compare_holders=False
    )
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)


@pytest.mark.parametrize("labels", ["parts", "whole"])
def test_a_plan_that_gathers_before_the_loss_reads_labels_whole_in_whichever_part_they_come(
    labels: str, pool: Pool, volumes: Path
) -> None:
    alone = run(pool, plan(volumes, {}, 1, "whole"), volumes / "alone", steps=2)
    asked(volumes)
    on_shards = plan(volumes, {0: (2,)}, 2, labels)
    stage = on_shards.stages[0].model_copy(update={"gather_before": "loss"})
    gathered = on_shards.model_copy(update={"stages": (stage,)})
    shared = run(pool, gathered, volumes / "shared", steps=2, compare_holders=False)
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)
    assert (asked(volumes)[-1]["region"] == [WHOLE] * 3) == (labels == "parts")


@pytest.fixture
def captured(volumes: Path) -> Captured:
    return capture(workload(volumes))


def workload(folder: Path, labels: str = "parts") -> Workload:
    return load(RECORDED, {"folder": str(folder), "labels": labels})


UPPER = ((4, 9), (0, 9), (0, 9))


def read(folder: Path, data: object, captured: Captured, pieces: bool = True) -> dict[str, Tensor]:
    """What the upper one of two ranks reads first; it needs a part of the labels, or whole ones."""
    work = workload(folder)
    work = replace(work, functions={**work.functions, "dataset": lambda: data})
    parts = {"input": ((2, 4, 9),)} | ({"target": ((1, 4, 9),)} if pieces else {})
    wanted = Wanted(
        micros=(0,),
        first=0,
        micro=2,
        step_samples=2,
        values=frozenset({"input", "target"}),
        parts=parts,
        region=UPPER,
    )
    found = Batches(work, wanted, captured.batch_values, seed=0, graph=captured.graph)
    return dict(next(found.steps(0))[0])


class Wrong(Volumes):
    """A dataset with a fault in how it reads regions."""

    def __init__(self, folder: Path, fault: str) -> None:
        super().__init__(str(folder), "parts")
        self.fault = fault

    def __getitem__(self, key: object) -> tuple[Tensor, Tensor]:
        if not isinstance(key, tuple):
            if self.fault == "no whole":
                raise KeyError(key)
            volume, labels = super().__getitem__(key)
            noise = torch.randn_like(volume) if self.fault == "noise" else 0.0
            return volume + noise, labels
        index, region = key
        assert isinstance(region, tuple)
        rows = region[0]
        if self.fault == "first":
            rows = slice(0, rows.stop - rows.start)
        if self.fault == "short":
            rows = slice(rows.start, rows.stop - 1)
        volume, labels = super().__getitem__((index, (rows, *region[1:])))
        if self.fault == "noise":
            volume = volume + torch.randn_like(volume)
        return volume, labels


@pytest.mark.parametrize("fault", ["first", "noise"])
def test_rows_or_noise_of_a_region_that_the_whole_sample_has_not_are_refused_before_the_first_step(
    fault: str, volumes: Path, captured: Captured
) -> None:
    with pytest.raises(BadInput, match=r"'input' read by the region \[4:9, 0:9, 0:9\] is not that part"):
        read(volumes, Wrong(volumes, fault), captured)


def test_what_is_read_by_region_is_compared_up_to_a_size_only(
    volumes: Path, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions_, "COMPARED_BYTES", 1)
    read(volumes, Wrong(volumes, "noise"), captured)
    read(volumes, Wrong(volumes, ""), captured)
    monkeypatch.undo()
    found = read(volumes, Wrong(volumes, "no whole"), captured)
    assert found["input"].shape == (2, 1, 5, 9, 9), "nor where samples cannot be read whole"


def test_a_region_of_another_shape_is_named_with_what_was_asked_for(
    volumes: Path, captured: Captured
) -> None:
    wrong = r"'input' .*asked for the region \[4:9, 0:9, 0:9\], is float64\[2, 1, 4, 9, 9\] "
    with pytest.raises(BadInput, match=wrong + r"\(allowed: float64\[1, 1, 5, 9, 9\] .* this rank's part"):
        read(volumes, Wrong(volumes, "short"), captured)


def test_labels_that_come_in_parts_only_where_they_are_needed_whole_are_refused_with_the_remedy(
    volumes: Path, captured: Captured
) -> None:
    assert read(volumes, Wrong(volumes, ""), captured, pieces=False)["target"].shape == (2, 9, 9, 9)
    with pytest.raises(BadInput, match=r"needs it whole here.* dataset\(\)\[index\] for whole samples"):
        read(volumes, Wrong(volumes, "no whole"), captured, pieces=False)


def test_who_shares_a_sample_draws_the_same_augmentation(pool: Pool, volumes: Path) -> None:
    settings = {"micros": 1, "workers": 1, "data": 2}
    run(pool, plan(volumes, {0: (2,)}, 2, **settings), volumes / "run", steps=4, compare_holders=False)
    rows = asked(volumes, COMPARED)
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


def test_slabs_are_kept_and_exchanged_among_ranks_of_one_place(pool: Pool, volumes: Path) -> None:
    arguments = {"folder": str(volumes), "halves": "True"}
    two = plan_of(RECORDED, {0: (2,)}, 2, arguments=arguments, micros=1, workers=1, data=2)
    places = [place.model_copy(update={"node": place.data}) for place in two.places]
    two = two.model_copy(update={"places": tuple(places)})
    read = run(pool, two, volumes / "read", steps=3, compare_holders=False)
    for file in volumes.glob("asked-*.jsonl"):
        file.unlink()
    kept = run(pool, two, volumes / "kept", steps=3, compare_holders=False, store="ram", store_steps=1)
    assert kept.losses == read.losses
    (volumes / f"asked-{os.getpid()}.jsonl").unlink()  # of the launcher
    rows = asked(volumes, COMPARED)
    upper, lower = json.dumps([[0, 4], WHOLE, WHOLE]), json.dumps([[4, 9], WHOLE, WHOLE])
    assert regions(rows) == {upper, lower}
    for half in (upper, lower):
        own = [row["index"] for row in rows if json.dumps(row["region"]) == half]
        assert sorted(map(str, own)) == list(map(str, range(SAMPLES)))


def test_slabs_with_noise_are_refused_without_two_halves(pool: Pool, volumes: Path) -> None:
    with pytest.raises(RuntimeError, match="sample 0 draws random numbers when it is read"):
        run(pool, plan(volumes, {0: (2,)}, 2), volumes / "kept", steps=1, store="ram")
