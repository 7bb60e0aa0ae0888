"""Layers are measured on one node of each kind, by jobs that bring the profiles back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import shardwright
from planner.profile import yaml as profile_yaml
from tests.slurm.cluster import Cluster


def test_a_profile_is_brought_back_from_a_node_of_each_kind(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["profile", "mlp", "--slurm", "--micro=1", "--set=layers=2", "--sbatch=partition=four", "--json"]
    status = shardwright.run([*words, f"--output={tmp_path}/it's #1.yaml"])
    said = capsys.readouterr()
    assert status == 0, said.err
    found = [Path(path) for path in json.loads(said.out)["profiles"]]
    assert [path.name for path in found] == ["it's #1-cpu-4-new.yaml", "it's #1-cpu-4-old.yaml"]
    profiles = [profile_yaml.load(path) for path in found]
    assert {profile.graph.fingerprint for profile in profiles} == {json.loads(said.out)["fingerprint"]}
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in found)
    rows = cluster.run("squeue", "-h", "-t", "all", "-o", "%j %N").splitlines()
    assert "profile-cpu-4-new n4" in rows
    assert {"profile-cpu-4-old n1", "profile-cpu-4-old n2", "profile-cpu-4-old n3"} & set(rows)


def test_a_job_that_fails_says_how_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = "--sbatch=partition=small"
    words = ["profile", f"{tmp_path}/none.py", "--slurm", site, f"--output={tmp_path}/a.yaml"]
    assert shardwright.run(words) == 1
    said = capsys.readouterr().err
    assert "cpu: job " in said and "failed" in said and "none.py" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm", "--device=cuda"], "there are no GPUs in the partition"),
        (["--slurm", "--device=roofline:H100-80GB"], "needs no node"),
        (["--slurm", "--sbatch=partition=moon"], "there is no partition 'moon'"),
        (["--slurm", "--sbatch=comment=a\nb"], "U+000A"),
        (["--sbatch=partition=main"], "--sbatch is an option of --slurm"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is_queued(
    words: list[str], message: str, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shardwright.run(["profile", "mlp", f"--output={tmp_path}/a.yaml", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
