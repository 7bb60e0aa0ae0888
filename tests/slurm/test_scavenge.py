"""A job on nodes that nobody else uses: it grows, shrinks, gives way and goes on, and trains each sample once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from planner import plan as plans
from planner.errors import BadInput
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import launch, slurm
from runtime.launch import handle_of
from runtime.runfolder import read
from runtime.scavenge import Asked, Scavenger, Tally, check_gives_way, daemon, idle_nodes, partition
from shardwright import run as run_command
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PACED, PATIENCE_S, until
from tests.slurm.plans import plan_over
from tests.slurm.warm import Warm

STEPS = 40


@lru_cache(maxsize=8)
def plan(data: int, pace_s: str = "0.2") -> Plan:
    arguments = {"pace_s": pace_s, "leaves": "-1"}
    made = plan_over(
        PACED, arguments=arguments, ranks_a_node=1, family="1f1b", workers=1, micros=4 // data, data=data
    )
    provenance = made.provenance.model_copy(update={"profile": "cpu, paced"})
    return made.model_copy(update={"provenance": provenance})


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    folder = tmp_path / "jobs" / "paced"
    folder.mkdir(parents=True)
    for nodes in (1, 2, 4):
        (folder / f"devices-{nodes:05}.yaml").write_text(plans.dump(plan(nodes)))
    monkeypatch.setattr(daemon, "GRANT_S", 5.0)
    return Asked(jobs=str(tmp_path / "jobs"), partition="spot", steps=STEPS, save_every=5)


@pytest.fixture
def started(warm: Warm, tmp_path: Path) -> Callable[[Asked], Scavenger]:
    def of(asked: Asked) -> Scavenger:
        return Scavenger(asked, tmp_path / "idle", slurm.Options(python=str(warm.python)), print)

    return of


def occupied(cluster: Cluster, nodes: int, partition: str = "main", seconds: int = 600) -> str:
    """The job of somebody else, which has its nodes when this returns."""
    wanted = ["-p", partition, f"-N{nodes}", "--exclusive", "--output=/dev/null", f"--wrap=sleep {seconds}"]
    job = cluster.run("sbatch", "--parsable", *wanted)
    until(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING", "somebody else's job runs")
    return job


def ticked(running: Scavenger, wish: Callable[[Tally], object], what: str) -> Tally:
    """Decides until the only job is as wished."""
    last: list[Tally] = []

    def there() -> bool:
        last[:] = running.tick()
        assert wish(last[0]) or last[0].state != "aside", last[0].reason
        return bool(wish(last[0]))

    until(there, what, timeout_s=60)
    return last[0]


def trains_on(running: Scavenger, nodes: int) -> Tally:
    begin = ticked(running, lambda job: job.state == "runs" and job.nodes == nodes, f"{nodes} nodes")
    return ticked(
        running, lambda job: job.step > begin.step or job.state == "done", f"a step on {nodes} nodes"
    )


def test_a_job_grows_shrinks_gives_way_and_goes_on_after_each_death(
    cluster: Cluster,
    asked: Asked,
    started: Callable[[Asked], Scavenger],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    alone = launch.launch_inline(plan(1, "0"), tmp_path / "alone", steps=STEPS).check().losses
    other, running = occupied(cluster, 10), started(asked)
    trains_on(running, 2)
    cluster.run("scancel", other)
    trains_on(running, 4)  # it grows
    running = started(replace(asked, most=1))  # as after a death of the process; and the user wants less
    trains_on(running, 1)
    with monkeypatch.context() as patch:  # the process dies when the job was stopped, and not queued again
        patch.setattr(launch, "go_on", died)
        patch.setattr(launch.handle, "go_on", died)
        with pytest.raises(Death):
            started(asked).tick()
    running = started(asked)
    trains_on(running, 4)
    urgent = occupied(cluster, 12, "urgent")
    ticked(running, lambda job: job.state == "rests", "it gives way")
    assert not idle_nodes("spot")
    cluster.run("scancel", urgent)
    trains_on(running, 4)
    run = handle_of(running.paths("paced").root)
    done = run.wait(PATIENCE_S).check()
    assert running.tick()[0].state == "done"
    assert sorted(done.losses) == list(range(1, STEPS + 1))
    assert done.losses == pytest.approx(alone, rel=1e-5)
    last = checkpoints.latest(run.paths.checkpoints)
    assert last is not None and last.facts.sample == STEPS * plan(1).batch.samples
    took = [note.took_s for note in running.journal.of("paced", "trained")]
    print("from a decision to the first step:", [f"{seconds:.1f} s" for seconds in took])
    assert len(took) >= 4


class Death(BaseException):
    """Nothing of ours catches it."""


def died(*_: object, **__: object) -> None:
    raise Death


def test_a_job_that_somebody_cancelled_stays_cancelled(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger]
) -> None:
    running = started(asked)
    trains_on(running, 4)
    assert read(running.paths("paced")).gives_way == "at once"
    launch.cancel(running.paths("paced").root)
    found = ticked(running, lambda job: job.state == "aside", "set aside")
    assert found.reason == "somebody cancelled it"
    assert started(asked).tick()[0].state == "aside"


def test_a_job_that_was_cancelled_while_nobody_decided_stays_cancelled(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, running = occupied(cluster, 12), started(asked)
    launch.launch_slurm(
        plan(4), running.paths("paced").root, steps=STEPS, options=running._options, device="cpu"
    )
    waits = running.tick()[0]
    assert waits.state == "waits"
    monkeypatch.setattr(daemon, "GRANT_S", 0.0)
    with monkeypatch.context() as patch:  # the process dies when the job was withdrawn, and not queued again
        patch.setattr(launch.handle, "go_on", died)
        patch.setattr(partition, "idle_nodes", lambda _: ["n1", "n2"])
        with pytest.raises(Death):
            running.tick()
    cluster.run("scancel", other)
    running = started(asked)
    trains_on(running, 4)  # what it has cancelled itself goes on
    with monkeypatch.context() as patch:  # it dies between the line before a change and the change
        patch.setattr(launch, "rescale", died)
        with pytest.raises(Death):
            started(replace(asked, most=1)).tick()
    assert running.journal.file.read_text().splitlines()[-1].find('"what": "asked"') > 0
    cluster.run("scancel", str(handle_of(running.paths("paced").root).job))
    running = started(asked)
    found = ticked(running, lambda job: job.state == "aside", "set aside")
    assert found.reason == "somebody cancelled it"
    assert [note.why for note in started(asked).journal.of("paced", "aside")] == [found.reason]


def test_a_cancellation_while_a_job_stops_is_told_to_whoever_stops_it(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = started(asked)
    trains_on(running, 4)
    run, ask = handle_of(running.paths("paced").root), slurm.commands.ask

    def beaten(*command: str) -> str:
        return ask("scancel", str(run.job)) if "--signal=USR1" in command else ask(*command)

    with monkeypatch.context() as patch, pytest.raises(BadInput, match=f"somebody cancelled job {run.job}"):
        patch.setattr(slurm.submit.commands, "ask", beaten)
        slurm.stop(run.paths)


def test_a_job_that_has_just_begun_hears_that_it_is_to_stop(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger]
) -> None:
    running = started(asked)
    running.tick()
    run = handle_of(running.paths("paced").root)
    until(lambda: slurm.of(run.job or 0).state == "running", "it runs")
    slurm.stop(run.paths)
    assert len(launch.of(run.folder).history) == 0 and launch.of(run.folder).step < STEPS // 2


def test_a_job_that_never_gets_a_step_further_is_set_aside(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BadInput("the disk is full")

    monkeypatch.setattr(launch, "launch_slurm", refused)
    found = ticked(started(asked), lambda job: job.state == "aside", "set aside")
    assert "the disk is full" in found.reason


def test_one_decision_fails_where_slurm_does_not_answer(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> list[str]:
        raise slurm.SlurmError("sinfo did not answer")

    running = started(asked)
    monkeypatch.setattr(partition, "idle_nodes", away)
    with pytest.raises(slurm.SlurmError, match="did not answer"):
        running.run(1.0, once=True)


def test_two_processes_do_not_decide_in_one_folder(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger]
) -> None:
    one, two = started(asked), started(asked)
    with one.alone(), pytest.raises(BadInput, match="another process decides here"), two.alone():
        pass


def test_the_command_decides_once_and_says_where_every_job_stands(
    cluster: Cluster, asked: Asked, warm: Warm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(f"version: 1\npython: {warm.python}\npartition: spot\n")
    words = ["scavenge", "run", f"--jobs={asked.jobs}", f"--state={tmp_path / 'idle'}", f"--site={site}"]
    words += ["--steps=4", "--once", "--json"]
    assert run_command(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["jobs"][0]["state"] == "rests"
    assert "paced: 0 -> 4 nodes" in said.err
    run = handle_of(tmp_path / "idle" / "paced")
    run.wait(PATIENCE_S).check()
    assert run_command(words) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["state"] == "done"


def test_a_partition_that_does_not_give_way_is_refused(cluster: Cluster) -> None:
    check_gives_way("spot")
    with pytest.raises(BadInput, match="its PreemptMode is OFF"):
        check_gives_way("main")
    with pytest.raises(BadInput, match="there is no partition 'fast'"):
        check_gives_way("fast")


def test_another_folder_and_other_jobs_are_refused(
    cluster: Cluster, asked: Asked, started: Callable[[Asked], Scavenger], tmp_path: Path
) -> None:
    (tmp_path / "idle").mkdir()
    (tmp_path / "idle" / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="neither empty nor the folder of a scavenger"):
        started(asked)
    (tmp_path / "idle" / "mine.txt").unlink()
    started(asked)
    (tmp_path / "jobs").rename(tmp_path / "others")
    with pytest.raises(BadInput, match="trains the jobs of"):
        started(replace(asked, jobs=str(tmp_path / "others")))
    with pytest.raises(BadInput, match="'unet' is no job"):
        started(replace(asked, weights={"unet": 2.0}, jobs=str(tmp_path / "others")))
