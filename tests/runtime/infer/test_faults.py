"""What goes wrong while workers compute: twenty kills, torn chunks, two workers on one task; the bytes stay the same."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from planner.errors import BadInput
from runtime.infer import InferFolder, InferPlan, prepared, run
from runtime.infer.work import begin, work_on
from runtime.leases import Tasks
from tests.runtime.infer.conftest import Place
from tests.runtime.infer.test_infer import inferred, request

KILLS = 20


def forked(work: Callable[[], object]) -> int:
    """Runs something in a process of its own, which has the model already; returns its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        torch.set_num_threads(1)
        work()
        status = 0
    finally:
        os._exit(status)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begun(place: Place, output: Path, chunk: str, **changed: str) -> tuple[InferPlan, InferFolder]:
    plan = prepared(request(place[0], output, chunk=chunk, **changed))
    plan.applied.tensors  # loads the weights, which children then have  # noqa: B018
    return plan, begin(plan.job, plan.applied, plan.unit)


@pytest.mark.parametrize("mode", ["exact", "blend"])
def test_twenty_kills_at_random_leave_the_bytes_of_an_undisturbed_run(
    place: Place, tmp_path: Path, mode: str
) -> None:
    changed = {"mode": mode} | ({"patch": "12", "overlap": "6"} if mode == "blend" else {})
    expected = inferred(place[0], tmp_path / "undisturbed.npy", chunk="2", **changed)
    plan, folder = begun(place, tmp_path / "out.npy", "2", **changed)
    draw, killing = random.Random(0), tmp_path / "killing"
    killing.touch()

    def rest(_: str) -> None:
        """Leaves work for those who are killed, however slow the machine is that kills them."""
        if killing.exists():
            time.sleep(0.2)

    def work() -> None:
        work_on(folder, rest, plan.applied)

    killed = 0
    workers = [forked(work), forked(work)]
    while killed < KILLS:
        time.sleep(draw.uniform(0, 0.03))
        child = workers.pop(draw.randrange(2))
        os.kill(child, signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
        workers.append(forked(work))
    assert len(folder.tasks().finished()) < expected.total, "work is left for those who are killed"
    killing.unlink()
    assert [ended(child) for child in workers] == [0, 0]
    found = run(plan, lambda line: None)
    assert found.state == "done" and not found.aside and found.checksum == expected.checksum
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()


def test_two_workers_that_both_take_each_task_write_the_same_bytes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = inferred(place[0], tmp_path / "undisturbed.npy", chunk="8")
    plan, folder = begun(place, tmp_path / "out.npy", "8")
    monkeypatch.setattr(
        Tasks, "_gone", lambda self, path: True
    )  # as after a clock that jumped, for everybody
    said = [tmp_path / f"{number}" for number in range(2)]

    def work(number: int) -> None:
        with said[number].open("w") as file:
            work_on(folder, lambda line: print(line, file=file), plan.applied)

    workers = [forked(lambda number=number: work(number)) for number in range(2)]  # type: ignore[misc]
    assert [ended(child) for child in workers] == [0, 0]
    lines = [line for path in said for line in path.read_text().splitlines()]
    assert not any("failed" in line for line in lines)
    found = run(plan, lambda line: None)
    assert found.checksum == expected.checksum and not found.aside
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_chunk_of_zarr_that_was_written_by_half_is_written_again(
    place: Place, tmp_path: Path, share: float
) -> None:
    pytest.importorskip("zarr")
    expected = inferred(place[0], tmp_path / "undisturbed.zarr")
    plan, folder = begun(place, tmp_path / "out.zarr", "10")
    run(plan, lambda line: None)
    for name in ("0-10_0-10", "30-37_20-29"):
        (folder.root / "done" / f"{name}.json").unlink()
    for path in (tmp_path / "out.zarr" / "c" / "0").rglob("*"):
        if path.is_file() and path.parent.name + "/" + path.name in ("0/0", "3/2"):
            path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert run(plan, lambda line: None).checksum == expected.checksum


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.max_pool2d(x, 2)", "0.5 * torch.max_pool2d(x, 2)"),
        ("torch.ones(3, 1, 1)", "torch.zeros(3, 1, 1)"),
    ],
    ids=["a number in forward", "a buffer that no weights have"],
)
def test_a_model_whose_code_was_changed_does_not_go_on_with_what_another_began(
    place: Place, tmp_path: Path, before: str, after: str
) -> None:
    text = (place[0] / "net.py").read_text()
    text = text.replace(
        "self.deep =",
        "self.register_buffer('own', torch.ones(3, 1, 1), persistent=False)\n        self.deep =",
    )
    text = text.replace("return self.last(", "return self.own * self.last(")
    (tmp_path / "net.py").write_text(text)
    given = {"workload": str(tmp_path / "net.py"), "chunk": "20"}
    first = inferred(place[0], tmp_path / "out.npy", **given)
    assert inferred(place[0], tmp_path / "out.npy", **given) == first
    (tmp_path / "net.py").write_text(text.replace(before, after))
    with pytest.raises(BadInput, match=r"out\.npy: exists, and was begun with another model"):
        inferred(place[0], tmp_path / "out.npy", **given)
