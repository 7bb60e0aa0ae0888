"""torch.profiler's events among those of a run: at the run's moments, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as sw
from planner.errors import BadInput
from planner.timeline import Timeline
from planner.trace import read_rank_trace

PLAN = str(Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml")


def test_what_ranks_compute_lies_within_the_actions_that_compute_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, trace = tmp_path / "run", tmp_path / "trace.json"
    asked = ["--local", "--steps=2", "--profile-step=2", "--wait", f"--run={run}"]
    assert sw.run(["launch", PLAN, *asked]) == 0, capsys.readouterr().err
    files = sorted((run / "profiles").iterdir())
    assert len(files) == 2
    told = [f"--profiler={file}" for file in files]
    page = f"--output={tmp_path / 'page.html'}"
    assert sw.run(["report", PLAN, str(run), *told, f"--trace={trace}", page]) == 0
    by_folder = [
        "report",
        str(run),
        f"--output={tmp_path / 'other.html'}",
        f"--trace={tmp_path / 'other.json'}",
    ]
    assert sw.run(by_folder) == 0, "a run's folder stands for its plan and for the run"
    assert "measured, rank 1" in (tmp_path / "other.json").read_text()
    assert sw.run(["verify", str(run)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for rank in (0, 1):
        own = next(pid for pid, name in names.items() if name == f"measured, rank {rank}")
        theirs = next(pid for pid, name in names.items() if name.startswith(f"torch.profiler, rank {rank}"))
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "F" and e["pid"] == own]
        found = [e["ts"] for e in events if e["name"] == "aten::addmm" and e["pid"] == theirs]
        assert len(found) >= 16
        slack = 500.0  # of a machine that stops a rank between the reading of its clock and the mark
        assert all(any(low - slack <= at <= high + slack for low, high in spans) for at in found)


def written(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


MARK = {"ph": "X", "name": "shardwright clock 5000000", "ts": 7.5, "dur": 1, "pid": 3, "tid": 3}


def test_a_rank_is_moved_by_its_earliest_mark_and_by_its_hosts_clock(tmp_path: Path) -> None:
    late = {**MARK, "name": "shardwright clock 4000000", "ts": 5000.0}
    file = written(tmp_path / "rank-00001.json", {"traceEvents": [late, MARK, {"ph": "?"}]})
    clocks = {
        "clock_rank": [0, 1],
        "clock_start": [0, 0],
        "clock_offset_ns": [0, 2000],
        "clock_error_ns": [0, 0],
    }
    found = read_rank_trace(file, Timeline.from_dict(clocks))
    moved = list(found.moved(zero_ns=5_000_000, first=40))
    assert [(e["ts"], e["pid"]) for e in moved][1] == (2.0, 40)
    assert found.rank == 1 and len(moved) == 2


def test_arrows_have_numbers_of_their_rank_and_what_overlaps_a_thread_of_its_own(tmp_path: Path) -> None:
    at = {"pid": 3, "tid": 3}
    spans = [{**at, "ph": "X", "name": name, "ts": ts, "dur": dur} for name, ts, dur in (
        ("around", 10.0, 5.0), ("within", 11.0, 4.0), ("beyond", 14.0, 9.0), ("later", 16.0, 1.0)
    )]  # fmt: skip
    arrows = [{**at, "ph": kind, "name": "arrow", "id": "a", "ts": 12} for kind in "sf"]
    told = {"distributedInfo": {"rank": 1}, "traceEvents": [MARK, *spans, *arrows]}
    found = read_rank_trace(written(tmp_path / "mine.json", told), Timeline())
    moved = list(found.moved(zero_ns=0, first=9))
    threads = {e["name"]: e["tid"] for e in moved if e["ph"] == "X"}
    assert threads["around"] == threads["within"] == threads["later"] == 3 != threads["beyond"]
    assert [e["args"]["name"] for e in moved if e["ph"] == "M"] == ["beside 3"]
    ids = {e["id"] for e in moved if e["ph"] in "sf"}
    assert len(ids) == 1 and isinstance(ids.pop(), int)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "no trace of torch.profiler"),
        ({"traceEvents": [{**MARK, "name": "else"}]}, "no mark of a run's clock"),
        ({"traceEvents": 3}, "no trace of torch.profiler"),
    ],
)
def test_what_is_no_trace_of_a_rank_is_refused(tmp_path: Path, data: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_rank_trace(written(tmp_path / "rank0.json", data), Timeline())


def test_a_trace_that_says_no_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="of which rank"):
        read_rank_trace(written(tmp_path / "mine.json", {"traceEvents": [MARK]}), Timeline())
