"""SLURM's own programs, by their text formats, which have stayed the same over its releases."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
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
    code: int
    output: str
    error: str


def call(*command: str, folder: Path | None = None) -> Said:
    if shutil.which(command[0]) is None:
        raise BadInput(f"there is no {command[0]} here", where="SLURM", allowed="a login node, or --local")
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
    """Output of a command that must work."""
    said = call(*command)
    if said.code:
        raise SlurmError(_reason(command[0], said))
    return said.output


def _reason(name: str, said: Said) -> str:
    lines = [line.partition("error: ")[2] or line for line in said.error.splitlines() if line.strip()]
    return f"{name}: {'; '.join(lines) or f'ended with {said.code}'}"


def submit(script: Path, *, test: bool = False) -> str:
    """The job's number; with `test` what sbatch says about when it could start."""
    said = call("sbatch", *(["--test-only"] if test else ["--parsable"]), script.name, folder=script.parent)
    if said.code:
        raise SlurmError(_reason("sbatch", said))
    return (said.error if test else said.output.partition(";")[0]).strip()


def answers() -> bool:
    """Whether there is a cluster."""
    return shutil.which("sbatch") is not None and call("sinfo", "-h", "-o", "%P").code == 0


def hostnames(nodelist: str) -> list[str]:
    """In the order in which SLURM numbers the nodes of a job."""
    return ask("scontrol", "show", "hostnames", nodelist).split()


def unwell(nodes: Sequence[str]) -> list[str]:
    """Those of the nodes that are down, with SLURM's reason."""
    said = call("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", f"%N{SEPARATOR}%T{SEPARATOR}%E")
    found = {}
    for line in said.output.splitlines():
        name, state, reason = line.split(SEPARATOR)
        if not state.upper().rstrip("*~#$@+!%-^").startswith(WELL) or state.endswith("*"):
            found[name] = f"{name} ({state}: {reason})"
    return [found[name] for name in nodes if name in found]


def requeue(job: str) -> bool:
    return call("scontrol", "requeue", job).code == 0


def job_name(environment: Mapping[str, str]) -> str:
    """How SLURM names this job; a task of an array is not its whole array."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment["SLURM_JOB_ID"]
