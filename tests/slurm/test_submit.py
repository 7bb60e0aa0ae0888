"""What is said before a job is queued, what SLURM makes of our scripts, and how a run is watched."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from planner.errors import BadInput, BadPlan, Infeasible
from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from runtime.launch import status
from runtime.probe import main as probe_main
from runtime.probe import probe
from runtime.runfolder import Job, outcome
from runtime.slurm import Options, script, state, submit
from runtime.slurm import commands as clients
from runtime.slurm import job as slurm
from runtime.slurm.script import JobRequest
from tests.runtime.readable import reads
from tests.runtime.slurm.golden import request
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PATIENCE_S, Gate, launch, paced_plan, shardwright, until, until_step
from tests.slurm.warm import Warm

NAMES = [
    "plain",
    "a b",
    "it's",
    'say "x"',
    "#1",
    "$HOME",
    "`id`",
    "a;b&c",
    "packjob",
    "-x",
    "ümlaut",
    "a'\"#b",
]


def asked(tmp_path: Path, options: Options, plan: Plan | None = None, **job: object) -> str:
    made: JobRequest = submit.request(plan or paced_plan(), "p", tmp_path, Job(steps=1, **job))  # type: ignore[arg-type]
    return slurm.test_only(made, options)


def test_slurm_takes_the_script_and_says_when(cluster: Cluster, tmp_path: Path) -> None:
    assert "to start at" in asked(tmp_path, Options(partition="main", time=10))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"partition": "gpu"}, BadInput, "no partition 'gpu' .*four, main, small, spot, urgent"),
        ({"time": "2:00:00"}, Infeasible, "over the limit of partition 'main', 60 minutes"),
        ({"partition": "small"}, Infeasible, "needs 2 nodes; partition 'small' has 1"),
        ({"cpus_per_task": 64}, Infeasible, "needs 64 cores a node; nodes of partition 'main' have 4"),
        ({"nodelist": "n99"}, clients.SlurmError, "sbatch: "),
        ({"constraint": "h100"}, clients.SlurmError, "sbatch: "),
    ],
)
def test_a_job_that_can_never_start_is_refused(
    options: dict[str, object], error: type[Exception], message: str, cluster: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        asked(tmp_path, Options(**options))  # type: ignore[arg-type]


def test_gpus_that_no_node_has_are_missed_before_queueing(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match="needs 1 GPUs a node; nodes of partition 'main' have 0"):
        asked(tmp_path, Options(), device="cuda")


def test_what_the_environment_says_to_sbatch_is_checked_too(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "small")
    with pytest.raises(Infeasible, match="'small'"):
        asked(tmp_path, Options(partition="main"))


def test_a_plan_that_is_wrong_is_not_queued(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    plan = paced_plan()
    wrong = plan.model_copy(update={"prediction": plan.prediction.model_copy(update={"step_ns": 1})})
    with pytest.raises(BadPlan, match="step_ns is 1"):
        launch(warm, wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert cluster.run("squeue", "-h", "-t", "all", "-o", "%Z").count(str(tmp_path)) == 0


def test_checkpoints_that_will_not_fit_on_disk_are_missed(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    with pytest.raises(Infeasible, match=r"checkpoints need .* free"):
        launch(warm, paced_plan(), tmp_path / "run", keep=10**12)


@pytest.fixture(scope="module")
def echoed(up: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """By name: the job's name as SLURM has it, and the folder its script ran in."""
    found, folders = {}, {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp("names") / name
        (folder / "logs").mkdir(parents=True)
        head = script.text(request(name=name, tasks=(1,), folder=str(folder)), Options()).partition(
            "\nset -e"
        )[0]
        (folder / "x.sbatch").write_text(f"{head}\npwd\n")
        folders[name] = (folder, clients.submit(folder / "x.sbatch"))
    for name, (folder, job) in folders.items():
        log = folder / "logs" / f"slurm-{job}.out"
        until(lambda log=log: log.exists() and log.read_text(), f"the log of {name}", 20)  # type: ignore[misc]
        title = up.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%j")
        found[name] = (title, log.read_text().rstrip("\n").removeprefix(str(folder.parent) + "/"))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_sbatch_reads_our_quotes_as_they_are_meant(name: str, echoed: dict[str, tuple[str, str]]) -> None:
    assert echoed[name] == (name, name)


def test_a_job_is_watched_from_any_process_and_its_folder_is_not_taken_twice(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run = launch(warm, paced_plan(), folder, steps=8)
    until_step(run, 2)
    found = json.loads(shardwright("status", str(folder), "--json"))
    with pytest.raises(BadInput, match=f"job {run.job} of this run is queued or running"):
        launch(warm, paced_plan(), folder, steps=8)
    gate.open()
    assert (found["state"], found["backend"], found["job"], found["steps"]) == (
        "running",
        "slurm",
        run.job,
        8,
    )
    assert found["step"] >= 2 and found["loss"] > 0 and found["left_s"] > 0 and found["samples_per_s"] > 0
    run.wait(PATIENCE_S).check()
    assert status.of(folder).state == "done"
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert folder.stat().st_mode & 0o077 == 0
    (folder / "outcome.json").unlink()
    until(lambda: status.of(folder).state == "done", "SLURM says that it is done", 20)
    assert state.of(999_999).state == "gone"


def test_a_script_submitted_by_hand_goes_on_from_the_last_checkpoint(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    run = launch(warm, paced_plan(), tmp_path / "run", steps=4, save_every=2)
    first = run.wait(PATIENCE_S).check().losses
    job = json.loads(run.paths.job.read_text())
    run.paths.job.write_text(json.dumps(job | {"steps": 6}))
    run.paths.outcome.unlink()
    cluster.run("sbatch", str(run.paths.script))
    until(lambda: outcome.outcome_of(run.paths) is not None, "the job by hand", PATIENCE_S)
    steps = run.metrics()
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert {row["step"]: row["loss"] for row in steps[:4]} == first
    assert len(run.paths.rank_metrics(0).read_text().splitlines()) == 6  # no step is done twice


def test_inside_an_allocation_the_ranks_start_at_once(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(paced_plan()))
    (tmp_path / "site.yaml").write_text(f"version: 1\npython: {warm.python}\n")
    words = [
        "launch",
        f"{tmp_path}/plan.yaml",
        f"--site={tmp_path}/site.yaml",
        f"--run={tmp_path}/run",
        "--wait",
        "--device=cpu",
    ]
    command = shlex.join([sys.executable, "-m", "shardwright", *words, "--steps=3"])
    said = cluster.run("salloc", "-N2", "-n2", "-c1", "sh", "-c", command, timeout_s=PATIENCE_S)
    assert "step: measured " in said
    assert cluster.run("squeue", "-h", "-t", "PD") == ""
    reads(tmp_path / "run", 3, tmp_path / "page.html")


def test_nodes_are_probed_by_srun(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    found = probe_main.by_srun(tmp_path, 2, 2, ["--nodelist=n[9-10]"], python=str(warm.python), repeats=2)
    assert found.hosts == ("n9", "n9", "n10", "n10")
    links = [(wire.a, wire.b, wire.within_node) for wire in found.wires]
    assert links == [(0, 1, True), (0, 2, False), (2, 3, True)]
    assert [each.groups for each in found.together] == [((0, 1), (2, 3)), ((0, 2), (1, 3))]
    assert [len(each.ranks) for each in found.sums] == [2, 3, 4]
    links = probe.cluster_of(found, "test", 12, []).links
    assert links.node is not None and links.rack is not None


def test_a_probe_that_fails_says_how(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    with pytest.raises(probe_main.ProbeFailed, match=r"srun .* ended with 1: .*"):
        probe_main.by_srun(tmp_path, 2, 1, ["--partition=none"])
