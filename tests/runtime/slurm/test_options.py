"""Forty things that people and programs get wrong: each is one clear message, or stands quoted in the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadInput
from runtime.slurm import Options, options, text
from tests.runtime.slurm.golden import request

REFUSED: list[tuple[dict[str, object], str]] = [
    ({"job_name": "a\n#SBATCH --uid=0"}, "job_name: holds the character U\\+000A"),
    ({"job_name": "a\rb"}, "U\\+000D"),
    ({"job_name": "a\0b"}, "U\\+0000"),
    ({"job_name": "a\u2028b"}, "U\\+2028"),
    ({"job_name": "a\u202eb"}, "U\\+202E"),
    ({"job_name": "a\x1b[2Jb"}, "U\\+001B"),
    ({"job_name": ""}, "job_name"),
    ({"job_name": " a"}, "blank"),
    ({"job_name": "x" * 5000}, "5000 characters"),
    ({"partition": "a b"}, "partition: 'a b' does not fit .*commas"),
    ({"partition": "main\nrm -rf /"}, "U\\+000A"),
    ({"partition": "$(id)"}, "partition"),
    ({"account": "a;b"}, "account"),
    ({"qos": "`id`"}, "qos"),
    ({"time": "soon"}, "time: 'soon' does not fit .*D-HH:MM:SS"),
    ({"time": "1:99:00"}, "time"),
    ({"time": -5}, "time"),
    ({"time": 10**30}, "time"),
    ({"time": 1.5}, "time"),
    ({"mem": "64 GB"}, "mem: '64 GB' does not fit .*64G"),
    ({"mem": "1" * 40}, "mem"),
    ({"cpus_per_task": 0}, "cpus_per_task"),
    ({"cpus_per_task": "8; reboot"}, "cpus_per_task"),
    ({"signal_s": 10**9}, "signal_s"),
    ({"requeues": -1}, "requeues"),
    ({"sbatch": {"nodes": "9"}}, "sbatch.nodes: sets what comes from the plan's places"),
    ({"sbatch": {"output": "/etc/x"}}, "sets what comes from the run folder"),
    ({"sbatch": {"wrap": "id"}}, "sets what comes from the command launch"),
    ({"sbatch": {"cpus-per-task": "12"}}, "`cpus_per_task` of a site file, which --site names"),
    ({"sbatch": {"partition": "x"}}, r"has a key of its own beside sbatch \(allowed: partition: x\)"),
    ({"sbatch": {"mail type": "END"}}, "long name of an option"),
    ({"sbatch": {"comment=x --uid": "0"}}, "long name of an option"),
    ({"sbatch": {"comment": "a\nb"}}, "U\\+000A"),
    ({"sbatch": {"array": "1-5"}}, "train in one run folder at once .*%1"),
    ({"env": {"A B": "1"}}, "a name of letters"),
    ({"env": {"A;id": "1"}}, "a name of letters"),
    ({"env": {"A": "1\n2"}}, "U\\+000A"),
    ({"modules": ("cuda\nid",)}, "U\\+000A"),
    ({"prologue": ("echo \\",)}, "backslash"),
    ({"container": {"runtime": "docker", "image": "x"}}, "container.runtime"),
    ({"container": {"runtime": "pyxis", "image": "a\nb"}}, "U\\+000A"),
    ({"gpu_flag": "gpus"}, "gpu_flag"),
    ({"partitoin": "x"}, "unknown key 'partitoin' .*partition"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        options.over(Options(), given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["=x"], ["mail-type=A", "mail-type=B"], [""]])
def test_pairs_that_are_none_are_refused(words: list[str]) -> None:
    with pytest.raises(BadInput, match="--sbatch"):
        options.pairs(words, "--sbatch")


def test_the_users_words_go_over_the_sites_and_mappings_are_joined(tmp_path: Path) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text(
        "version: 1\npartition: gpu\naccount: lab\ntime: 01:30:00\nenv: {NCCL_DEBUG: WARN}\nsbatch: {mail-type: END}\n"
    )
    found = options.over(options.load(file), {"partition": "long", "env": {"OMP_NUM_THREADS": "4"}})
    assert (found.partition, found.account, found.time) == ("long", "lab", "01:30:00")
    assert found.env == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "4"}
    assert "#SBATCH --mail-type" in text(request(), found)


def test_a_mistake_in_the_sites_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text("version: 1\npartition: gpu\ntime: soon\n")
    with pytest.raises(BadInput, match=r"slurm.yaml:3: time: 'soon'"):
        options.load(file)


def test_a_site_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        options.load(tmp_path / "none.yaml")


def test_the_site_file_is_found_by_environment() -> None:
    assert options.site_file({"SHARDWRIGHT_SLURM": "/a/b.yaml"}) == Path("/a/b.yaml")
    assert options.site_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/shardwright/slurm.yaml")
