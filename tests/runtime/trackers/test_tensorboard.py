"""Steps for TensorBoard: as the lines of all ranks say, and nothing where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runtime.launch import launch_inline
from runtime.runfolder import MetricLines, Paths
from runtime.trackers import Board, board
from runtime.trackers import tensorboard as boards
from tests.runtime.runfolder.test_metrics import line
from tests.runtime.test_equality import HERE, plan_of

MODULE = "torch.utils.tensorboard"


class Written:
    """In the place of torch's writer."""

    made: list[Written] = []

    def __init__(self, folder: str, purge_step: int | None = None, flush_secs: int = 0) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.rows: list[tuple[str, float, int]] = []
        Written.made.append(self)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.rows.append((tag, scalar_value, global_step))

    def close(self) -> None:
        self.closed = True

    def of(self, tag: str) -> dict[int, float]:
        return {step: value for name, value, step in self.rows if name == tag}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Written]]:
    module: Any = ModuleType(MODULE)
    module.SummaryWriter = Written
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(boards, "EVERY_S", 0.0)
    Written.made.clear()
    yield Written.made


def opened(paths: Paths, **given: int) -> Board:
    found = board(paths, **({"first": 1, "generation": 0, "samples": 12} | given))
    assert found is not None
    return found


def test_a_step_is_written_once_all_ranks_have_told_of_it(installed: list[Written], tmp_path: Path) -> None:
    paths = Paths(tmp_path).make()
    here = opened(paths)
    first, second = paths.rank_metrics(0).open("a"), paths.rank_metrics(1).open("a")
    with first, second:
        print(line(1, {0: 1.0}), line(2, {0: 5.0}), sep="\n", file=first, flush=True)
        here.look()
        assert installed[0].rows == []
        print(
            line(1, {1: 2.0}, seconds=3.0), line(2, {1: 7.0})[:-9], sep="\n", end="", file=second, flush=True
        )
        here.look()
        assert installed[0].of("loss") == {1: 1.5}
        print(line(2, {1: 7.0})[-9:], file=second, flush=True)
    assert not installed[0].closed
    here.close()
    assert installed[0].closed and installed[0].folder == str(paths.tensorboard)
    assert installed[0].of("loss") == {1: 1.5, 2: 6.0}
    assert installed[0].of("step_seconds") == {1: 3.0, 2: 1.0}
    assert installed[0].of("samples_per_second") == {1: 4.0, 2: 12.0}


def test_what_is_done_again_takes_the_place_of_what_was_written(
    installed: list[Written], tmp_path: Path
) -> None:
    paths = Paths(tmp_path).make()
    rows = [line(1, {0: 1.0}, micros=1), line(2, {0: 9.0}, micros=1)]
    rows += [line(2, {0: 4.0}, micros=1, generation=1)] * 2  # told of by two ranks that share samples
    paths.rank_metrics(0).write_text("".join(f"{row}\n" for row in rows))
    opened(paths, first=2, generation=1).close()
    assert installed[0].purge_step == 2
    assert installed[0].rows == [("loss", 4.0, 2), ("step_seconds", 1.0, 2), ("samples_per_second", 12.0, 2)]


def test_lines_are_looked_at_now_and_then_only(
    installed: list[Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "EVERY_S", 1000.0)
    paths = Paths(tmp_path).make()
    here = opened(paths)
    here.look()
    paths.rank_metrics(0).write_text(line(1, {0: 1.0}, micros=1) + "\n")
    here.look()
    assert installed[0].rows == []
    here.close()
    assert installed[0].of("loss") == {1: 1.0}


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert board(Paths(tmp_path), first=1, generation=0, samples=1) is None
    plan = plan_of(HERE + "mlp.py", {"layers": "9"}, workers=1, micros=2)
    assert len(launch_inline(plan, tmp_path, steps=2).losses) == 2
    assert not Paths(tmp_path).tensorboard.exists()


def test_a_run_is_written_to_its_end(installed: list[Written], tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "9"}, workers=2, micros=2)
    found = launch_inline(plan, tmp_path, steps=3)
    (writer,) = installed
    assert writer.closed and writer.purge_step is None
    assert writer.of("loss") == found.losses and list(found.losses) == [1, 2, 3]


def test_torch_s_own_writer_takes_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    paths = Paths(tmp_path).make()
    paths.rank_metrics(0).write_text(line(1, {0: 1.0}, micros=1) + "\n" + line(2, {0: 0.5}, micros=1) + "\n")
    opened(paths).close()
    read = EventAccumulator(str(paths.tensorboard)).Reload()
    assert [(each.step, each.value) for each in read.Scalars("loss")] == [(1, 1.0), (2, 0.5)]


def test_lines_of_half_a_write_are_read_once_they_are_whole(tmp_path: Path) -> None:
    paths = Paths(tmp_path).make()
    lines, text = MetricLines(paths), line(1, {0: 1.0}, micros=1)
    paths.rank_metrics(0).write_text(text[:10])
    assert list(lines.complete()) == []
    paths.rank_metrics(0).write_text(text + "\n")
    assert [step for _, step, _ in lines.complete()] == [1]
    assert list(lines.complete()) == []
