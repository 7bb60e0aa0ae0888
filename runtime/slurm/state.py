"""The state of a SLURM job, asked of the programs that still know it.

squeue knows jobs that wait or run. scontrol knows ended jobs for some minutes. Accounting knows them longer,
where a site has it. Later, nobody does.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import asdict, dataclass
from typing import Literal

from planner.errors import ShardwrightError
from planner.files import find_record
from runtime.runfolder import Paths, write_whole
from runtime.slurm import commands

QUEUED = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = (
    "RUNNING",
    "CONFIGURING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
)
ENDED = {"COMPLETED": "done", "CANCELLED": "cancelled", "PREEMPTED": "preempted", "TIMEOUT": "out of time"}
UNKNOWN = "UNKNOWN"  # SLURM does not answer

FORMAT = commands.SEPARATOR.join(("%T", "%r", "%N"))

NEVER_STARTS = "it will never start"
# Reasons that lie in the job alone: no waiting ends them. Nodes that are away, limits of a user or an account, and a
# partition that is closed are none; nor is PartitionNodeLimit, which SLURM also says where nodes are drained.
FINAL = (
    "AccountNotAllowed",
    "BadConstraints",
    "DependencyNeverSatisfied",
    "InvalidAccount",
    "InvalidQOS",
    "MaxMemPerLimit",
    "PartitionTimeLimit",
    "QOSNotAllowed",
    "ReservationDeleted",
)
FINAL_OF_A_JOB = re.compile("(Assoc|QOS)Max[A-Za-z]+PerJob(Limit)?|QOSMin[A-Za-z]+")
# And those that somebody has to end.
UNTIL = {
    "AssocGrpCPUMinutesLimit": "until the account has time again",
    "JobHeldAdmin": "until an administrator releases it",
    "JobHeldUser": "until it is released: scontrol release",
    "PartitionDown": "until the partition is up",
    "PartitionInactive": "until the partition is active",
    "launch failed requeued held": "until it is released: scontrol release",
}
OVER = (*ENDED, "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED", *QUEUED, "")


@dataclass(frozen=True)
class JobState:
    """The state of a job in the words of runs, with SLURM's reason."""

    state: str  # queued | running | done | failed | cancelled | preempted | out of time | gone
    reason: str = ""
    nodes: str = ""

    @property
    def stuck(self) -> bool:
        """Returns whether the job waits for something that never comes."""
        return self.state == "queued" and self.reason.endswith(NEVER_STARTS)


def word(job: int | str) -> str:
    """Returns SLURM's word for the state of a job that waits or runs.

    Args: `job` is as SLURM names it.
    Returns: an empty text for a job that SLURM does not know; UNKNOWN where SLURM does not answer.
    """
    if shutil.which("squeue") is None:
        return ""
    said = commands.call("squeue", "-h", "-j", str(job), "-o", "%T")
    if said.code:
        return "" if "Invalid job id" in said.error else UNKNOWN
    return said.output.split()[-1] if said.output.strip() else ""


def of(job: int) -> JobState:
    """Returns the state of a job.

    Args: `job` is its number.
    Returns: the state "gone" for a job that SLURM has forgotten.
    """
    return (
        _queue(job) or _controller(job) or _accounting(job) or JobState("gone", "SLURM has forgotten the job")
    )


def _queue(job: int) -> JobState | None:
    said = commands.call("squeue", "-h", "-j", str(job), "-o", FORMAT)
    if said.code or not said.output.strip():
        return None
    found = []
    for line in said.output.splitlines():  # one a task of an array
        word, reason, nodes = line.split(commands.SEPARATOR)
        found.append(_state(word, "" if reason == "None" else reason, nodes))
    return next((each for each in found if each.state == "running"), found[-1])


def _controller(job: int) -> JobState | None:
    said = commands.call("scontrol", "show", "job", "-o", str(job))
    if said.code or "JobState=" not in said.output:
        return None
    line = said.output.splitlines()[-1]
    found = {
        key: line.partition(f" {key}=")[2].partition(" ")[0]
        for key in ("JobState", "Reason", "NodeList", "ExitCode")
    }
    # SLURM calls a supervisor that was killed a failed launch.
    killed = _killed(found["JobState"], found["ExitCode"])
    reason = "" if found["Reason"] == "None" else found["Reason"]
    return _state(found["JobState"], killed or reason, found["NodeList"])


def _killed(word: str, exit_code: str) -> str:
    number = int(exit_code.partition(":")[2] or 0)
    return (
        f"its supervisor was killed by {signal.Signals(number).name}" if word == "FAILED" and number else ""
    )


def _accounting(job: int) -> JobState | None:
    try:
        said = commands.call("sacct", "-n", "-X", "-P", "-j", str(job), "-o", "State,ExitCode,NodeList")
    except ShardwrightError:
        return None
    if said.code or not said.output.strip():
        return None
    word, code, nodes = said.output.splitlines()[-1].split("|", 2)
    return _state(word, _killed(word, code), nodes.replace("None assigned", ""))


def _state(word: str, reason: str, nodes: str) -> JobState:
    name = word.split()[0].rstrip("+")
    if name in QUEUED:
        final = reason in FINAL or FINAL_OF_A_JOB.fullmatch(reason)
        until = NEVER_STARTS if final else UNTIL.get(reason, "")
        return JobState("queued", f"{reason}: {until}" if until else reason, nodes)
    if name in RUNNING:
        return JobState("running", "", nodes)
    return JobState(ENDED.get(name, "failed"), reason, nodes)


@dataclass(frozen=True, kw_only=True)
class Queued:
    """The job of a run, written down when it is queued."""

    job: int
    submitted_s: float
    inside: int = 0  # process of the supervisor where the ranks run inside the caller's own allocation
    left: Literal["", "stopped", "withdrawn"] = ""  # by `stop`, while it ran or while it waited

    def write(self, paths: Paths) -> None:
        """Writes the job in the run folder."""
        write_whole(paths.slurm, json.dumps(asdict(self)))

    @classmethod
    def read(cls, paths: Paths) -> Queued | None:
        """Returns the job of a run, None where none was queued.

        Args: `paths` is the run folder.
        """
        return find_record(cls, paths.slurm)


def somebody_cancelled(paths: Paths) -> bool:
    """Returns whether the job of a run was ended for good, by scancel or `shardwright cancel`, and not by `stop`.

    A job that `stop` has withdrawn is cancelled too. One that `stop` told to stop is not, unless somebody did that.
    Args: `paths` is the run folder. Of a job that SLURM has forgotten, only `shardwright cancel` has left a mark.
    """
    queued = Queued.read(paths)
    if queued is None or queued.left == "withdrawn":
        return False
    found = of(queued.job).state
    return found == "cancelled" or (found == "gone" and not queued.left and paths.cancelled.exists())
