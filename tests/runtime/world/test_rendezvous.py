"""Ranks meet at a file, or at one socket on one interface where that was asked for, or where torchrun has them meet."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import BadInput
from runtime.launch import launch_inline
from runtime.runfolder import Job, check, losses_of
from runtime.train import Model, job_of, prepare
from runtime.world import rendezvous as meeting
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE, plan_of

pytestmark = pytest.mark.usefixtures("warm_starts")


def test_at_a_file_nothing_listens(pool: Pool) -> None:
    assert pool.run("tests.runtime.meetings:meet", 2, how="file") == [(True, []), (True, [])]


def test_a_socket_is_bound_to_the_interface_that_was_said_and_to_no_other(pool: Pool) -> None:
    for agreed, sockets in pool.run("tests.runtime.meetings:meet", 3, how="tcp:lo"):  # type: ignore[misc]
        assert agreed
        assert [row.partition(":")[0] for row in sockets] == ["0100007F"]  # 127.0.0.1


@pytest.mark.parametrize("how", ["", "udp", "tcp:", "tcp:eth0; id", "tcp:" + "x" * 16, "env://", "/a/file"])
def test_a_meeting_that_there_is_not_is_refused(how: str) -> None:
    with pytest.raises(BadInput, match="file, tcp or tcp:INTERFACE"):
        check(Job(steps=1, rendezvous=how))


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"has no address at 'ib7'.*lo"):
        meeting.address("tcp:ib7")


@pytest.mark.parametrize("found", ["127.0.1.1", ""])
def test_a_host_that_only_knows_itself_as_loopback_needs_an_interface(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_name(name: str) -> str:
        if not found:
            raise OSError
        return found

    monkeypatch.setattr(socket, "gethostbyname", by_name)
    with pytest.raises(BadInput, match="tcp:INTERFACE"):
        meeting.address("tcp")


def test_torchruns_ranks_train_and_are_told_their_places_by_it(tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {}, workers=2, micros=2)
    places = tuple(place.model_copy(update={"node": 0, "slot": place.rank}) for place in plan.places)
    plan = plan.model_copy(update={"places": places})
    job = job_of(plan, 2, {})
    paths, _ = prepare(Model.of(plan), tmp_path / "run", job)
    words = ["--standalone", "--nproc-per-node=2", "-m", "runtime.slurm.task", str(paths.root)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    alone = launch_inline(plan, tmp_path / "inline", steps=2)
    assert losses_of(paths) == alone.losses
    records = [json.loads(paths.task(rank).read_text()) for rank in range(2)]
    assert [record["state"] for record in records] == ["done", "done"]
    assert not paths.rendezvous(0).exists()


def test_clocks_of_several_hosts_are_aligned_to_the_first_rank_within_the_error_that_is_told(
    pool: Pool,
) -> None:
    apart = 7_000_000_000
    found = pool.run("tests.runtime.meetings:clocks", 5, apart_ns=apart)
    assert found[:2] == [(0, 0), (0, 0)]
    assert found[2] == found[3]  # one host, one measurement
    for rank in (2, 4):
        offset, error = found[rank]  # type: ignore[misc]
        assert abs(offset + rank // 2 * apart) <= error < apart / 10
    assert pool.run("tests.runtime.meetings:clocks", 2, apart_ns=apart) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_a_model_that_asks_whether_it_has_ranks_trains_as_in_one_process(
    family: str, pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(HERE + "asking.py", {}, family=family, cuts=[2])
    have = run(pool, plan, tmp_path)
    found = distance(expected(plan, tmp_path), have)
    assert found.worst() <= 1e-6, found


def test_only_a_model_does_not_learn_that_ranks_have_met(pool: Pool) -> None:
    for rank, told in enumerate(pool.run("tests.runtime.meetings:ask", 2)):
        ranks, nobody = (True, rank, 2), (False, -1, -1)
        assert told == {
            "a script": ranks,
            "a callback": ranks,
            "an optimizer": ranks,
            "a model": nobody,
            "a thread of autograd": nobody,
            "a thread of a program": ranks,
            "a model that starts torch.distributed": "forward() starts torch.distributed, which the ranks of a run use",
        }
