"""Calls of SLURM's own programs. Their text formats have stayed the same over its releases."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planner.errors import BadInput, ShardwrightError

ANSWER_S = 60.0
WELL = ("IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED")
SEPARATOR = "\x1f"  # stands in no name


class SlurmError(ShardwrightError):
    """SLURM refused, or did not answer."""


@dataclass(frozen=True)
class Said:
    """The exit status of a program, and the texts that it has written."""

    code: int
    output: str
    error: str


def call(*command: str, folder: Path | None = None) -> Said:
    """Runs one of SLURM's programs.

    Args: `folder` is where it runs.
    Returns: its status and output, also where it failed.
    Raises: BadInput where the program is not here; SlurmError where it does not answer within a minute.
    """
    if shutil.which(command[0]) is None:
        allowed = "a login node; --local; or --dry-run, which prints the batch script anywhere"
        raise BadInput(f"this machine has none (no {command[0]})", where="SLURM", allowed=allowed)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            cwd=folder,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer within {ANSWER_S:.0f} s") from None
    return Said(done.returncode, done.stdout, done.stderr)


def ask(*command: str) -> str:
    """Runs one of SLURM's programs and returns its output.

    Raises: SlurmError with SLURM's reason where the program fails.
    """
    said = call(*command)
    if said.code:
        raise SlurmError(_reason(command[0], said))
    return said.output


def _reason(name: str, said: Said) -> str:
    lines = [line.partition("error: ")[2] or line for line in said.error.splitlines() if line.strip()]
    return f"{name}: {'; '.join(lines) or f'ended with {said.code}'}"


def submit(script: Path, *, test: bool = False) -> str:
    """Submits a batch script.

    Args: with `test`, nothing is queued.
    Returns: the number of the job; with `test`, what sbatch says about when it could start.
    Raises: SlurmError with SLURM's reason where the script is refused.
    """
    said = call("sbatch", *(["--test-only"] if test else ["--parsable"]), script.name, folder=script.parent)
    if said.code:
        raise SlurmError(_reason("sbatch", said))
    return (said.error if test else said.output.partition(";")[0]).strip()


def answers() -> bool:
    """Returns whether there is a SLURM cluster that answers."""
    return shutil.which("sbatch") is not None and call("sinfo", "-h", "-o", "%P").code == 0


def hostnames(nodelist: str) -> list[str]:
    """Returns the hosts of a node list, in the order in which SLURM numbers the nodes of a job.

    Args: `nodelist` is as SLURM writes it, such as `n[1-3]`.
    """
    return ask("scontrol", "show", "hostnames", nodelist).split()


def unwell(nodes: Sequence[str]) -> list[str]:
    """Returns which nodes are down, each with SLURM's reason.

    Args: `nodes` are hosts; the result keeps their order.
    """
    said = call("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", f"%N{SEPARATOR}%T{SEPARATOR}%E")
    found = {}
    for line in said.output.splitlines():
        name, state, reason = line.split(SEPARATOR)
        if not state.upper().rstrip("*~#$@+!%-^").startswith(WELL) or state.endswith("*"):
            found[name] = f"{name} ({state}: {reason})"
    return [found[name] for name in nodes if name in found]


def script_of(job: int) -> Path | None:
    """Returns the batch script of a job, None where SLURM does not name it."""
    said = call("scontrol", "show", "job", "-o", str(job))
    found = re.search(r" Command=(.*?) WorkDir=", said.output)
    return Path(found[1]) if found else None


def requeue(job: str) -> bool:
    """Queues a job again.

    Returns: whether SLURM has done so.
    """
    return call("scontrol", "requeue", job).code == 0


def is_preempted(environment: Mapping[str, str]) -> bool:
    """Returns whether SLURM has told this job to give way since it began. It tells the steps that run then, and nobody else.

    Args: `environment` is that of a process in the job.
    Returns: False, too, where SLURM does not answer.
    """
    try:
        said = call("scontrol", "show", "job", "-o", job_name(environment))
    except SlurmError:
        return False
    found = dict(re.findall(r" (StartTime|PreemptTime)=(\d\S+)", said.output))
    return {"StartTime", "PreemptTime"} <= set(found) and found["PreemptTime"] >= found["StartTime"]


def tell_steps(environment: Mapping[str, str]) -> None:
    """Tells the steps of this job to end, as SLURM does where others need its nodes, if SLURM answers.

    Args: `environment` is that of a process in the job.
    """
    with suppress(SlurmError):
        call("scancel", "--signal=TERM", job_name(environment))


def job_name(environment: Mapping[str, str]) -> str:
    """Returns SLURM's name of this job, such as `12`, or `12_3` for one task of an array.

    Args: `environment` is that of a process in the job.
    """
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment["SLURM_JOB_ID"]
