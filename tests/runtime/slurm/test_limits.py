"""SLURM's texts read as it means them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.errors import Infeasible
from planner.plan import yaml as plan_yaml
from runtime.runfolder import Job
from runtime.slurm import Options, limits, submit
from runtime.slurm import commands as clients
from runtime.slurm.limits import Nodes
from runtime.slurm.state import JobState, _state


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("1:30", 1.5),
        ("2:00:00", 120),
        ("1-0", 1440),
        ("1-12", 2160),
        ("1-00:30", 1470),
        ("7-00:00:00", 10080),
        ("infinite", float("inf")),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, minutes: float) -> None:
    assert limits.minutes(text) == minutes


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:a100:8", 8),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100_3g.20gb:2,gpu:h100:4,tmpdisk:1000", 6),
        ("shard:8", 0),
    ],
)
def test_gpus_of_a_node_are_counted(gres: str, count: int) -> None:
    assert limits.devices(gres) == count


def test_a_line_of_sinfo_is_read() -> None:
    line = clients.SEPARATOR.join(("gpu*", "up", "1-00:00:00", "12", "64+", "gpu:h100:8"))
    assert limits.parse(line) == Nodes("gpu", True, True, 1440, 12, 64, 8)


@pytest.mark.parametrize(
    ("word", "reason", "state"),
    [
        ("PENDING", "Resources", JobState("queued", "Resources")),
        ("PENDING", "PartitionTimeLimit", JobState("queued", "PartitionTimeLimit: it will never start")),
        ("RUNNING", "", JobState("running")),
        ("COMPLETED", "", JobState("done")),
        ("CANCELLED by 1000", "", JobState("cancelled")),
        ("NODE_FAIL", "", JobState("failed")),
        ("OUT_OF_MEMORY", "", JobState("failed")),
        ("TIMEOUT", "", JobState("out of time")),
    ],
)
def test_states_of_a_job_are_told_in_our_words(word: str, reason: str, state: JobState) -> None:
    assert _state(word, reason, "") == state


@pytest.mark.parametrize(
    ("step_s", "limit", "found"),
    [(1, "60", ""), (1, None, ""), (100, "2", "told to stop 30 s before its limit"), (500, "2", "refused")],
)
def test_a_limit_too_short_for_a_step_and_a_checkpoint_is_refused_or_said(
    step_s: int, limit: str | None, found: str, tmp_path: Path
) -> None:
    plan = plan_yaml.load(Path("plans/mlp-two-stages.yaml"))
    slow = plan.prediction.model_copy(update={"step_ns": step_s * 10**9})
    graph = SimpleNamespace(parameters=[SimpleNamespace(bytes=1000)])

    def check() -> list[str]:
        options = Options(time=limit)
        return submit._check_time(
            plan.model_copy(update={"prediction": slow}), graph, tmp_path / "run", options
        )  # type: ignore[arg-type]

    if found == "refused":
        with pytest.raises(Infeasible, match="ends before the first checkpoint"):
            check()
    else:
        assert [found in said for said in check()] == [True] * bool(found)


@pytest.mark.parametrize(("workers", "cores"), [(0, 2), (3, 5), (None, 2)])
def test_a_rank_asks_for_a_core_for_each_thread_and_each_named_reader(
    workers: int | None, cores: int
) -> None:
    job = Job(steps=1, device="cpu", threads=2, data_workers=workers)
    assert submit.cores_of(job) == cores
