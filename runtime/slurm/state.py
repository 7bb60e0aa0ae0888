"""What SLURM knows of a job: of a waiting or running one by squeue, of one that has ended by scontrol for some
minutes, by accounting where a site has it, and then no more."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ShardwrightError
from runtime.slurm import clients

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
FORMAT = clients.SEPARATOR.join(("%T", "%r", "%N"))
NEVER = "it will never start"
# Reasons for which a job waits that no waiting will end.
STUCK = (
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "BadConstraints",
    "DependencyNeverSatisfied",
    "JobHeldUser",
    "JobHeldAdmin",
    "PartitionDown",
    "InvalidAccount",
    "InvalidQOS",
    "AssocGrpCPUMinutesLimit",
    "launch failed requeued held",
)


@dataclass(frozen=True)
class JobState:
    state: str  # queued | running | done | failed | cancelled | preempted | out of time | gone
    reason: str = ""
    nodes: str = ""

    @property
    def stuck(self) -> bool:
        """No waiting will start it."""
        return self.state == "queued" and self.reason.endswith(NEVER)


def of(job: int) -> JobState:
    return (
        _queue(job) or _controller(job) or _accounting(job) or JobState("gone", "SLURM has forgotten the job")
    )


def _queue(job: int) -> JobState | None:
    said = clients.call("squeue", "-h", "-j", str(job), "-o", FORMAT)
    if said.code or not said.output.strip():
        return None
    word, reason, nodes = said.output.splitlines()[-1].split(clients.SEPARATOR)
    return _state(word, "" if reason == "None" else reason, nodes)


def _controller(job: int) -> JobState | None:
    said = clients.call("scontrol", "show", "job", "-o", str(job))
    if said.code or "JobState=" not in said.output:
        return None
    line = said.output.splitlines()[-1]
    found = {
        key: line.partition(f" {key}=")[2].partition(" ")[0] for key in ("JobState", "Reason", "NodeList")
    }
    return _state(found["JobState"], "" if found["Reason"] == "None" else found["Reason"], found["NodeList"])


def _accounting(job: int) -> JobState | None:
    try:
        said = clients.call("sacct", "-n", "-X", "-P", "-j", str(job), "-o", "State,NodeList")
    except ShardwrightError:
        return None
    if said.code or not said.output.strip():
        return None
    word, _, nodes = said.output.splitlines()[-1].partition("|")
    return _state(word, "", nodes)


def _state(word: str, reason: str, nodes: str) -> JobState:
    name = word.split()[0].rstrip("+")
    if name in QUEUED:
        return JobState("queued", f"{reason}: {NEVER}" if reason in STUCK else reason, nodes)
    if name in RUNNING:
        return JobState("running", "", nodes)
    return JobState(ENDED.get(name, "failed"), reason, nodes)
