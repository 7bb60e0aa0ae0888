"""The limits of a cluster's partitions: time, nodes, cores and devices. They are asked before a job is
queued.

SLURM itself accepts many jobs that can never start, and only says so as the reason for which they wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import BadInput, Infeasible
from runtime.slurm import commands
from runtime.slurm.options import Options
from runtime.slurm.task_layout import TaskLayout

COLUMNS = ("%P", "%a", "%l", "%D", "%c", "%G")


@dataclass(frozen=True)
class Nodes:
    """Nodes of one partition that are alike."""

    partition: str
    default: bool
    up: bool
    limit_min: float  # infinite where there is none
    count: int
    cpus: int
    devices: int


def known() -> list[Nodes]:
    """Returns the nodes of the cluster by partition, as sinfo lists them.

    Raises: SlurmError where SLURM does not answer.
    """
    text = commands.ask("sinfo", "-h", "-e", "-o", commands.SEPARATOR.join(COLUMNS))
    return [parse(line) for line in text.splitlines() if line.strip()]


def parse(line: str) -> Nodes:
    """Returns the nodes of one line of sinfo.

    Args: `line` has the fields of COLUMNS.
    """
    name, up, limit, count, cpus, gres = (word.strip() for word in line.split(commands.SEPARATOR))
    return Nodes(
        partition=name.rstrip("*"),
        default=name.endswith("*"),
        up=up == "up",
        limit_min=minutes(limit),
        count=int(count),
        cpus=int(cpus.rstrip("+")),
        devices=devices(gres),
    )


def devices(gres: str) -> int:
    """Returns the number of GPUs of a node.

    Args: `gres` is as sinfo writes it, such as `gpu:a100:4(S:0-1),tmpdisk:100`.
    """
    rows = re.findall(r"gpu(?::[^:,()]+)*?:(\d+)(?![\w.])", gres)
    return sum(map(int, rows))


def minutes(text: str) -> float:
    """Returns a time limit in minutes, infinite where there is none.

    Args: `text` is as SLURM writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.
    """
    if text.lower() in ("infinite", "unlimited", "n/a"):
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, secs = (*parts, 0, 0)[:3]
        return int(days) * 1440 + hours * 60 + mins + secs / 60
    if len(parts) == 1:
        return parts[0]
    hours, mins, secs = (0, *parts)[-3:]
    return hours * 60 + mins + secs / 60


def check(nodes: Sequence[Nodes], layout: TaskLayout, threads: int, cuda: bool, options: Options) -> None:
    """Refuses a job that could not start in any of its partitions, even with all nodes free.

    Args: `threads` is the cores of a rank where `options` have none; `layout` is the ranks by node.
    Raises: Infeasible with one line for each partition.
    """
    names = check_partitions(nodes, options)
    cpus = max(layout.tasks) * (options.cpus_per_task or threads)
    wanted = {"count": len(layout.tasks), "cpus": cpus, "devices": layout.devices * cuda}
    reasons = [_reason([n for n in nodes if n.partition == name], options, **wanted) for name in names]
    if reasons and all(reasons):
        raise Infeasible("\n".join(reasons))


def check_partitions(nodes: Sequence[Nodes], options: Options) -> list[str]:
    """Returns the partitions that a job would go to.

    Raises: BadInput for a partition that is not there.
    Args: without a partition in `options`, the cluster's default counts.
    """
    names = (
        options.partition.split(",") if options.partition else [n.partition for n in nodes if n.default][:1]
    )
    there = sorted({node.partition for node in nodes})
    for name in names:
        if name not in there:
            raise BadInput(f"there is no partition '{name}'", where="SLURM", allowed=", ".join(there))
    return names


def _reason(nodes: Sequence[Nodes], options: Options, *, count: int, cpus: int, devices: int) -> str:
    """Returns why a job can never start on the nodes of a partition; empty where it can. It wants `count` nodes, each
    with so many `cpus` and `devices`.
    """
    name = nodes[0].partition
    if not nodes[0].up:
        return f"partition '{name}' is down"
    limit = nodes[0].limit_min
    if options.time is not None and minutes(str(options.time)) > limit:
        return f"a time of {options.time} is over the limit of partition '{name}', {limit:g} minutes"
    fit = nodes
    for what, need, have in (
        ("cores", cpus, [n.cpus for n in nodes]),
        ("GPUs", devices, [n.devices for n in nodes]),
    ):
        if need > max(have):
            return f"the plan needs {need} {what} a node; nodes of partition '{name}' have {max(have)}"
        fit = [n for n in fit if (n.cpus if what == "cores" else n.devices) >= need]
    total = sum(n.count for n in fit)
    if count > total:
        return f"the plan needs {count} nodes; partition '{name}' has {total} that fit"
    return ""


def effective(options: Options, environment: Mapping[str, str]) -> Options:
    """Returns options with the values that sbatch takes from the environment, which override the script.

    Args: `environment` may have SBATCH_PARTITION and SBATCH_TIMELIMIT.
    """
    found = {
        name: environment[f"SBATCH_{variable}"]
        for name, variable in (("partition", "PARTITION"), ("time", "TIMELIMIT"))
        if environment.get(f"SBATCH_{variable}")
    }
    return options.model_copy(update=found)
