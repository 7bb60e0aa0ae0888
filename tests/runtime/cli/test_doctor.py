"""The doctor says what is missing and what to type, and nothing is wrong where the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import slurm
from runtime.cli import doctor
from runtime.slurm import commands as clients


def by_name(folder: Path) -> dict[str, doctor.Finding]:
    return {finding.what: finding for finding in doctor.findings(folder)}


def test_here_everything_that_is_needed_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SHARDWRIGHT_SLURM", str(tmp_path / "none.yaml"))
    found = by_name(tmp_path)
    assert {name for name, finding in found.items() if finding.state == "wrong"} == set()
    assert found["SLURM"].state == "absent"
    assert found["torch"].detail[0].isdigit()


def test_a_broken_site_file_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "slurm.yaml"
    site.write_text("version: 1\ntime: soon\n")
    monkeypatch.setenv("SHARDWRIGHT_SLURM", str(site))
    found = by_name(tmp_path)["site file"]
    assert found.state == "wrong" and "slurm.yaml:2: time" in found.detail
    assert str(site) in found.remedy
    assert not doctor.well([found])


def test_a_package_that_is_missing_comes_with_what_to_type() -> None:
    found = doctor._package("shardwright-of-another-world")
    assert found.state == "wrong" and "-m pip install shardwright-of-another-world" in found.remedy


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("sinfo: _establish_config_source: failed to fetch config", "absent"),
        ("sinfo: Unable to process configuration file", "absent"),
        ("sinfo: Unable to contact slurm controller (connect failure)", "wrong"),
        ("sinfo did not answer within 60 s", "wrong"),
    ],
)
def test_programs_of_slurm_without_a_cluster_are_no_failure_but_a_cluster_that_is_down_is(
    said: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> None:
        raise clients.SlurmError(said)

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(slurm, "known", asked)
    found = doctor._slurm()
    assert found.state == state and doctor.well([found]) == (state == "absent")
