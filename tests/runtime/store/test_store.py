"""A training on samples in memory is the training on samples from the dataset, to the bit, and reads each once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.errors import BadInput
from planner.plan import Plan, SampleReading
from runtime.data import Stream, Wanted
from runtime.launch import launch_inline
from runtime.runfolder import losses_of
from runtime.store import StoreCounts, opening
from runtime.store.memory import Growing
from runtime.store.samples import flattened, read_raw
from runtime.store.store import MOVES, READY, Exchanges, Store
from runtime.train import Model, job_of, prepare
from runtime.world import alone
from tests.captures import captured_of
from tests.draws import covering
from tests.pool import Pool
from tests.runtime.compare import Run, run
from tests.runtime.test_equality import HERE, plan_of
from tests.runtime.workloads import recorded

FILE = HERE + "recorded.py"
LENGTH, STEPS = 23, 7  # steps of 8 samples: more than two epochs


def on_nodes(plan: Plan, nodes: int) -> Plan:
    """The plan with its ranks on so many nodes, as if each were a machine."""
    ranks = len(plan.places)
    rows = [x.model_copy(update={"node": x.rank * nodes // ranks}) for x in plan.places]
    return plan.model_copy(update={"places": tuple(rows)})


def planned(nodes: int, *, family: str = "1f1b", halves: bool = False, log: str = "") -> Plan:
    data = {1: 2, 2: 2, 3: 3, 4: 4}[nodes]
    arguments = {"halves": str(halves), **({"log": log} if log else {})}
    return on_nodes(
        plan_of(FILE, arguments, family=family, workers=2, micros=2 if data < 4 else 1, data=data), nodes
    )


@dataclass(frozen=True)
class Node:
    """What the first rank of a node says of its store."""

    read_samples: int
    read_bytes: int
    window_steps: int
    windows: int
    received_samples: int
    received_bytes: int


def nodes_of(folder: Path) -> list[Node]:
    return [Node(**json.loads(x.read_text())) for x in sorted((folder / "metrics").glob("store-*.json"))]


def same(one: Run, two: Run) -> bool:
    return one.losses == two.losses and all(
        bool((one.after[-1][name] == two.after[-1][name]).all()) for name in one.after[-1]
    )


CASES = covering(
    product((1, 2, 3, 4), ("1f1b", "chimera", "zb-h1"), (1, 2, 3, 0), (False, True)), kinds=lambda case: case
)


@pytest.mark.parametrize(("nodes", "family", "window", "halves"), CASES)
def test_losses_are_the_same_to_the_bit_with_and_without_a_store(
    nodes: int, family: str, window: int, halves: bool, pool: Pool, tmp_path: Path
) -> None:
    plan = planned(nodes, family=family, halves=halves)
    want = run(pool, plan, tmp_path / "read", steps=STEPS)
    have = run(pool, plan, tmp_path / "kept", steps=STEPS, store="ram", store_steps=window)
    assert same(want, have), (want.losses, have.losses)
    assert len(nodes_of(tmp_path / "kept")) == nodes


def launched(pool: Pool, plan: Plan, folder: Path, steps: int, **settings: object) -> dict[int, float]:
    """Trains as a launched run does, from its folder, with a checkpoint at the end."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, _ = prepare(model, folder, job_of(plan, steps, settings))
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(paths.root))
    return losses_of(paths)


def test_a_run_that_goes_on_reads_its_part_again_and_loses_nothing(pool: Pool, tmp_path: Path) -> None:
    plan = planned(2)
    want = launched(pool, plan, tmp_path / "read", 6)
    kept = tmp_path / "kept"
    launched(pool, plan, kept, 3, store="ram", store_steps=2)
    assert launched(pool, plan, kept, 6, store="ram", store_steps=2) == want
    assert sum(node.read_samples for node in nodes_of(kept)) == LENGTH
    assert launched(pool, plan, kept, 7) == launched(pool, plan, tmp_path / "read", 7, store="ram")


def test_readers_of_a_rank_find_the_samples_too(pool: Pool, tmp_path: Path) -> None:
    plan = planned(2, halves=True)
    want = run(pool, plan, tmp_path / "read", steps=STEPS)
    have = run(pool, plan, tmp_path / "kept", steps=STEPS, store="ram", store_steps=1, data_workers=2)
    assert same(want, have)


def test_each_sample_is_read_once_and_only_what_others_have_is_sent(pool: Pool, tmp_path: Path) -> None:
    log = tmp_path / "reads"
    plan = planned(3, log=str(log))
    before = len(log.read_text().splitlines()) if log.exists() else 0
    run(pool, plan, tmp_path / "kept", steps=STEPS, store="ram", store_steps=2)
    rows = [tuple(map(int, line.split())) for line in log.read_text().splitlines()[before:]]
    by_rank = [
        (process, index) for process, index in rows if process != os.getpid()
    ]  # this one has tried some
    assert sorted(index for _, index in by_rank) == list(range(LENGTH))
    for process in {process for process, _ in by_rank}:
        own = [index for each, index in by_rank if each == process]
        assert own == list(range(own[0], own[-1] + 1)), "front to back"
    found = nodes_of(tmp_path / "kept")
    moved = [(node.received_samples, node.received_bytes) for node in found]
    assert moved == needed(plan, windows=-(-STEPS // 2)) and {node.window_steps for node in found} == {2}


def needed(plan: Plan, windows: int) -> list[tuple[int, int]]:
    """The samples that each of three nodes needs of the others, a window of two steps after the other, and their bytes,
    by hand."""
    stream, counts = Stream(seed=0, length=LENGTH), []
    data = recorded.dataset(LENGTH)
    sizes = [len(flattened(data[index])) for index in range(LENGTH)]  # type: ignore[index]
    bounds = [LENGTH * node // 3 for node in range(4)]
    share = plan.batch.micro * plan.batch.micros
    for node in range(3):
        own = range(bounds[node], bounds[node + 1])
        total, size = 0, 0
        for window in range(windows):
            starts = [(2 * window + step) * plan.batch.samples for step in range(2)]
            starts = [at + node * share for at in starts]
            read = {index for at in starts for _, index in stream.span(at, at + share)}
            total += len(read - set(own))
            size += sum(sizes[index] for index in read - set(own))
        counts.append((total, size))
    return counts


def test_one_process_keeps_all_samples_and_trains_alike(tmp_path: Path) -> None:
    plan = planned(1)
    want = launch_inline(plan, tmp_path / "read", steps=3)
    have = launch_inline(plan, tmp_path / "kept", steps=3, store="ram")
    assert list(want.losses.values()) == list(have.losses.values())
    (node,) = nodes_of(tmp_path / "kept")
    assert (node.read_samples, node.received_bytes, node.windows) == (LENGTH, 0, 0)


def test_a_plan_that_asks_for_a_store_has_one_unless_launch_says_none(tmp_path: Path) -> None:
    plan = planned(1).model_copy(update={"data": SampleReading(store="ram")})
    assert job_of(plan, 1, {}).store == "ram" and job_of(plan, 1, {"store": "none"}).store == "none"
    assert job_of(planned(1), 1, {}).store == "none"
    with pytest.raises(BadInput, match="store is 'disk'"):
        job_of(plan, 1, {"store": "disk"})


def test_too_little_memory_is_one_message_before_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "reads"
    monkeypatch.setattr(opening, "free_bytes", lambda: 1000)
    with pytest.raises(BadInput, match=r"node 0 is to keep .* of samples in memory, and has 1000 B for them"):
        launch_inline(planned(1, log=str(log)), tmp_path / "kept", steps=1, store="ram")
    assert len(log.read_text().splitlines()) < LENGTH


def test_a_dataset_that_has_shrunk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(1)
    monkeypatch.setattr(opening, "read_raw", lambda data, index, region: read_raw(Short(data), index, region))
    with pytest.raises(BadInput, match="sample 9 raised IndexError: no row 9") as found:
        launch_inline(plan, tmp_path / "kept", steps=1, store="ram")
    assert found.value.allowed == "23 samples, as its length says"


class Short(list[object]):
    """A dataset that has lost samples since its length was told."""

    def __init__(self, data: object) -> None:
        super().__init__([0] * LENGTH)
        self._data = data

    def __getitem__(self, index: Any) -> Any:
        if index >= 9:
            raise IndexError(f"no row {index}")
        return self._data[index]  # type: ignore[index]


def test_ranks_with_datasets_of_other_lengths_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = opening.StoreAsked(
        world=alone(torch.device("cpu")),
        node=0,
        micros=1,
        steps=0,
        ends=0,
        beat=lambda _: None,
        tell=lambda _: None,
    )
    monkeypatch.setattr(opening.StoreAsked, "_told", lambda _, row: [row, [row[0] + 1, *row[1:]]])
    wanted = Wanted(micros=(0,), first=0, micro=1, step_samples=1, values=frozenset())
    with pytest.raises(BadInput, match="23 samples on one rank and 24 on another"):
        asked.open([0] * LENGTH, (), wanted, Stream(seed=0, length=LENGTH), 0)


@pytest.mark.parametrize(
    ("progress", "behind"), [((0, 3), True), ((1, 3), False), ((1, 0), True), ((5, 2), False)]
)
def test_a_window_waits_until_no_rank_reads_what_lies_in_its_place(
    progress: tuple[int, int], behind: bool
) -> None:
    memory = Growing().whole(0, 0)
    memory.head[1:3] = progress
    exchanges = Exchanges(None, memory, None, 2, StoreCounts(), print)  # type: ignore[arg-type]
    assert exchanges._behind(1) is behind and not exchanges._behind(0)


NOWHERE = SimpleNamespace(routes=SimpleNamespace(readers=[SimpleNamespace(region="")]))


def test_a_rank_that_waits_beats_only_while_samples_come(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Growing().whole(0, 0)
    beats: list[bool] = []
    moves = [0, 0, 0, 1, 1, 2, 2, 2]

    def look(_: float) -> None:
        if not moves:
            memory.head[READY] = 1
            return
        memory.head[MOVES] = moves.pop(0)

    look(0)
    monkeypatch.setattr("runtime.store.store.time.sleep", look)
    waits = Store(None, NOWHERE, memory, 0, None, beats.append, 0)  # type: ignore[arg-type]
    waits._await(1)
    assert beats == [True] * 3


def test_samples_that_come_at_last_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, now = Growing().whole(0, 0), [0.0]

    def look(_: float) -> None:
        now[0] += 100.0
        memory.head[MOVES] += now[0] < 1000.0

    monkeypatch.setattr("runtime.store.store.time.sleep", look)
    monkeypatch.setattr("runtime.store.store.time.monotonic", lambda: now[0])
    waits = Store(None, NOWHERE, memory, 0, None, lambda _: None, 0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Timed out waiting"):
        waits._await(1)
    assert now[0] > 1000.0
