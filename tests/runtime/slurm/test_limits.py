"""SLURM's texts read as it means them."""

from __future__ import annotations

import pytest

from runtime.slurm import commands as clients
from runtime.slurm import limits
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
