"""The same from the command line: one message and status 2, or a script that bash reads as it was meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import shardwright

PLAN = "plans/mlp-two-stages.yaml"

REFUSED: list[tuple[list[str], str]] = [
    (["--job-name=a\n#SBATCH --uid=0"], "job_name: holds the character U+000A"),
    (["--job-name=\udcff"], "half a surrogate pair"),
    (["--sbatch=comment=a\n#SBATCH --wrap=id"], "U+000A"),
    (["--sbatch=comment\n=x"], "sbatch.commentU+000A: holds"),
    (["--sbatch=wrap=id"], "sbatch.wrap: sets what comes from the command launch"),
    (["--sbatch=output=/etc/passwd"], "the run folder"),
    (["--sbatch=comment=a", "--sbatch=comment=b"], "given twice"),
    (["--sbatch==x"], "no KEY=VALUE"),
    (["--partition=main;id"], "partition: 'main;id' does not fit"),
    (["--time=99999999999999"], "time"),
    (["--time=1:99"], "time"),
    (["--time=1\n"], "U+000A"),
    (["--account=$(id)"], "account"),
    (["--qos=a b"], "qos"),
    (["--dependency=afterok:1\nid"], "U+000A"),
    (["--constraint=\u202egpu"], "U+202E"),
    (["--steps=99999999999999999999999"], "steps is 99999999999999999999999"),
    (["--steps=0"], "steps is 0"),
    (["--run=/tmp/a%jb"], "cannot write a log below a path with '%'"),
    (["--run=/tmp/a\nb"], "one line of printable characters"),
    (["--site=/nowhere/slurm.yaml"], "/nowhere/slurm.yaml"),
    (["--elastic=3"], "MIN:MAX"),
    (["--elastic=9:3"], "empty"),
    (["--profile=p.yaml"], "--profile is an option of --elastic"),
    (["--device=tpu"], "no device 'tpu'"),
    (["--local"], "--dry-run is an option of --slurm"),
    (["--failure-every=nan"], "no time"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=lambda value: repr(value)[:40])
def test_it_is_one_message(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shardwright.run(["launch", PLAN, "--dry-run", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.startswith("error: ")
    assert "Traceback" not in said.err and said.out == ""
    assert said.err.count("\n") == 1


QUOTED = ["it's", 'a "b" c', "#1", "$(id)", "`id`", "a;b&&c", "naïve 世界", "*", "-x"]


@pytest.mark.parametrize("name", QUOTED)
def test_a_folder_and_a_name_stand_quoted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--run={tmp_path}/{name}", f"--job-name=j {name}", f"--sbatch=comment=c {name}"]
    assert shardwright.run(["launch", PLAN, "--dry-run", *words]) == 0
    script = capsys.readouterr().out
    assert sum(line.startswith("#SBATCH --comment") for line in script.splitlines()) == 1
    path = tmp_path / "x.sh"
    path.write_text(script.replace("exec ", "printf '%s\\n' ").replace("\ncd ", "\n: "))
    said = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[4] == f"{tmp_path}/{name}"
    assert not (tmp_path / name).exists()
