"""Logs of three kinds become the same spells; what is no log is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.scavenge import IdleLog, read_log
from planner.scavenge.logs import hosts

EVENTS = "seconds,node,idle\n0,a,1\n0,b,0\n10,b,1\n20,a,0\n30,b,0\n40,a,0\n"
SACCT = """JobID|Start|End|NodeList
1|2026-01-01T00:00:00|2026-01-01T00:01:40|n[1-2]
2|2026-01-01T00:00:00|2026-01-01T00:00:50|n3
3|2026-01-01T00:03:20|Unknown|n3
4|Unknown|Unknown|None assigned
5|2026-01-01T00:01:40|2026-01-01T00:05:00|n1
6|2026-01-01T00:01:00|2026-01-01T00:01:20|n2
"""
SWF = """; MaxProcs: 8
1 0 0 100 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1
2 50 10 40 8 -1 -1 8 -1 -1 1 1 1 1 1 1 -1 -1
3 90 10 100 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1
4 90 -1 -1 2 -1 -1 2 -1 -1 0 1 1 1 1 1 -1 -1
"""


def read(tmp_path: Path, text: str, **options: object) -> IdleLog:
    path = tmp_path / "log.txt"
    path.write_text(text)
    return read_log(path, **options)  # type: ignore[arg-type]


def spells(log: IdleLog) -> set[tuple[str, float, float]]:
    return {(log.nodes[node], begin - log.begin_s, end - log.begin_s) for node, begin, end in log.spells}


def test_a_table_of_events_is_read(tmp_path: Path) -> None:
    log = read(tmp_path, EVENTS)
    assert spells(log) == {("a", 0, 20), ("b", 10, 30)}
    assert (log.begin_s, log.end_s, log.average) == (0, 40, 1.0)


def test_the_text_of_sacct_is_read(tmp_path: Path) -> None:
    # n1 is never idle; n2 from its only job on, whose inside another job lies; n3 between two, of which one still runs.
    assert spells(read(tmp_path, SACCT)) == {("n2", 100, 300), ("n3", 50, 200)}


def test_swf_is_read_for_nodes_of_several_processors(tmp_path: Path) -> None:
    log = read(tmp_path, SWF, processors=2)
    assert len(log.nodes) == 4
    # ElasticJob 2 wants all nodes and gets the two that are left; job 3 takes the first node.
    assert spells(log) == {("n2", 0, 60), ("n3", 0, 60), ("n1", 100, 200), ("n2", 100, 200), ("n3", 100, 200)}


def test_a_log_is_cut_to_its_first_nodes_and_seconds(tmp_path: Path) -> None:
    log = read(tmp_path, EVENTS).cut(nodes=1, seconds=15)
    assert (spells(log), log.nodes, log.end_s) == ({("a", 0, 15)}, ("a",), 15)


def test_lists_of_nodes_are_read_as_slurm_writes_them() -> None:
    assert hosts("n[01-03,7],login", "") == ["n01", "n02", "n03", "n7", "login"]
    assert hosts("rack1-n[1-2]-ib", "") == ["rack1-n1-ib", "rack1-n2-ib"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no event"),
        ("0,a,1\n", "is about no time"),
        ("0,a,1\n5,a\n", r":2: has 2 columns"),
        ("0,a,1\n5,a,2\n", r":2: '2' is no state"),
        ("5,a,1\n0,a,0\n", r":2: 0 lies before"),
        ("x,a,1\n", r":1: 'x' is no number"),
        ("nan,a,1\n", r":1: 'nan' is no number"),
        ("JobID|Start|End\n", "has no column NodeList"),
        (
            "JobID  Start  End  NodeList\n-----  -----  ---  --------\n",
            r":1: .* without '\|' .*sacct -a -X -P",
        ),
        ("JobID|Start|End|NodeList\n1|now|later|n1\n", r":2: 'now' is no time"),
        ("JobID|Start|End|NodeList\n1|2026-01-01|2026-01-02|n[1-9999999]\n", "too many nodes"),
        ("JobID|Start|End|NodeList\n1|2026-01-01|2026-01-02|n[\n", "is no list of nodes"),
        ("; MaxProcs: 4\n1 2 3\n", r":2: has 3 columns"),
        ("; MaxProcs: 99999999999\n1 0 0 9 4\n", "too many nodes"),
    ],
)
def test_what_is_no_log_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read(tmp_path, text)
