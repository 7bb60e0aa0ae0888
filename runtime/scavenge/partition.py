"""What SLURM says of a partition: whether its jobs give way to all others, which nodes are idle, which jobs are there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from planner.errors import BadInput
from runtime import slurm

GIVES_WAY = ("REQUEUE", "CANCEL")
SEPARATOR = "\x1f"  # stands in no name


def check_gives_way(name: str) -> None:
    """Refuses a partition in which a job of somebody else could have to wait for ours.

    Args: `name` is one partition.
    Raises: BadInput unless SLURM takes nodes from its jobs for the jobs of every partition that shares them.
    """
    rows = partitions()
    if name not in rows:
        raise BadInput(
            f"there is no partition '{name}'", where="--partition", allowed=", ".join(sorted(rows))
        )
    kind = _setting(slurm.ask("scontrol", "show", "config"), "PreemptType")
    allowed = (
        "a partition with PreemptMode=REQUEUE whose PriorityTier is below that of all that share its nodes"
    )
    if kind != "preempt/partition_prio":
        said = f"this site preempts by {kind}, so that no partition gives way to others"
        raise BadInput(said, where="PreemptType", allowed="preempt/partition_prio; or `scavenge replay`")
    own = rows[name]
    if (mode := own.get("PreemptMode", "OFF").split(",")[-1]) not in GIVES_WAY:
        said = f"jobs of '{name}' do not give way: its PreemptMode is {mode}"
        raise BadInput(said, where="--partition", allowed=allowed)
    nodes = set(slurm.hostnames(own["Nodes"]))
    for other, row in rows.items():
        shared = nodes.intersection(slurm.hostnames(row["Nodes"])) if other != name else set()
        if shared and int(row["PriorityTier"]) <= int(own["PriorityTier"]):
            said = (
                f"jobs of '{other}' would wait for those of '{name}': both have {min(shared)}, and the PriorityTier "
                f"of '{other}' is not higher"
            )
            raise BadInput(said, where="--partition", allowed=allowed)


def partitions() -> dict[str, Mapping[str, str]]:
    """Returns the settings of every partition by name, as `scontrol` writes them."""
    found = dict[str, Mapping[str, str]]()
    for line in slurm.ask("scontrol", "show", "partition", "-o").splitlines():
        row = dict(re.findall(r"(\w+)=(\S*)", line))
        if "PartitionName" in row:
            found[row["PartitionName"]] = row
    return found


def idle_nodes(name: str) -> list[str]:
    """Returns the nodes on which nothing runs, and that SLURM keeps for nobody.

    Args: `name` is a partition. A node that drains, is reserved, planned or powered down is not idle.
    """
    text = slurm.ask("sinfo", "-h", "-N", "-p", name, "-o", f"%N{SEPARATOR}%T")
    rows = [line.split(SEPARATOR) for line in text.splitlines()]
    return [node for node, state in rows if state.strip() == "idle"]


def jobs_below(folder: Path) -> dict[Path, tuple[int, str]]:
    """Returns the jobs of this user by the folder that their batch script lies in, also those that just ended.

    Args: `folder` is above those folders.
    Returns: folder -> number of the job, and SLURM's word for its state. Of several jobs, the one that runs, else one
      that waits, else the last one.
    """
    row = SEPARATOR.join(("%A", "%T", "%o"))
    text = slurm.ask("squeue", "-h", "--states=all", f"--user={os.getuid()}", "-o", row)
    found = dict[Path, tuple[int, str]]()
    for line in text.splitlines():
        number, word, script = line.split(SEPARATOR)
        home, job = Path(script.strip()).parent, (int(number), word)
        if home.parent == folder and (home not in found or _nearness(job) > _nearness(found[home])):
            found[home] = job
    return found


def is_over(word: str) -> bool:
    """Returns whether a job with this word of SLURM for its state neither waits nor runs."""
    return word not in (*slurm.QUEUED, *slurm.RUNNING)


def _nearness(job: tuple[int, str]) -> tuple[bool, bool, int]:
    number, word = job
    return word == "RUNNING", not is_over(word), number


def _setting(text: str, key: str) -> str:
    found = re.search(rf"^{key}\s*=\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else "nothing"
