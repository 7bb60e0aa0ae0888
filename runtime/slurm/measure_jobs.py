"""Measures layers where the devices are: one short job on a node of each kind brings back a profile.

Users sit on login nodes without a GPU. The job runs the command that they would type on a node.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import BadInput, ShardwrightError
from planner.files import absolute, refuse_overwrite, write_whole
from runtime.slurm import commands, limits, script, state
from runtime.slurm.options import Options
from runtime.slurm.task_layout import TaskLayout

LIMIT_MIN = 30  # where none is said; a short job is started sooner
COLUMNS = ("%P", "%G", "%c", "%f", "%N")
WELL = "idle,allocated,mixed,completing,reserved"
LOOK_S = 2.0
LATE_S = 30.0  # for file systems that show a file late
NONE = "(null)"

Note = Callable[[str], None]


class MeasureFailed(ShardwrightError):
    """A job ended without a profile; says how."""


@dataclass(frozen=True)
class NodeKind:
    """Nodes whose devices are alike."""

    name: str
    gres: str = ""  # what a job asks for one device with
    others: str = ""  # nodes of other kinds, on which it is not to run


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One job that measures layers on one kind of node."""

    kind: NodeKind
    words: tuple[str, ...]  # of `shardwright profile`, without where to write
    folder: Path  # of the job
    directory: Path  # where the user stood; the workload may be named from there
    python: str

    @property
    def result(self) -> Path:
        """Returns the file in which the job writes its profile."""
        return self.folder / f"{self.kind.name}.yaml"

    @property
    def log(self) -> str:
        """Returns the name of the job's log, with SLURM's `%j` for its number."""
        return f"{self.kind.name}-%j.out"


def known(options: Options) -> list[list[str]]:
    """Returns one row of sinfo for each group of nodes that are alike and up.

    Args: `options` may name partitions; otherwise the default one counts.
    """
    words = ["-h", "-e", "-r", "-t", WELL, "-o", commands.SEPARATOR.join(COLUMNS)]
    text = commands.ask("sinfo", *words)
    rows = [[word.strip() for word in line.split(commands.SEPARATOR)] for line in text.splitlines()]
    wanted = options.partition.split(",") if options.partition else []
    return [row for row in rows if (row[0].rstrip("*") in wanted if wanted else row[0].endswith("*"))]


def kinds(rows: Sequence[Sequence[str]], cuda: bool) -> list[NodeKind]:
    """Returns the kinds of node to measure on: GPUs by SLURM's types, other nodes by cores and features.

    Args: `rows` are those of `known`; `cuda` asks for nodes with GPUs.
    """
    if cuda:
        types = {kind for _, gres, *_ in rows for kind in _gpu_types(gres)}
        return [NodeKind(kind or "gpu", f"gpu:{kind}:1" if kind else "gpu:1") for kind in sorted(types)]
    groups: dict[tuple[str, str], list[str]] = {}
    for _, _, cores, features, nodes in rows:
        key = cores.rstrip("+"), "" if features == NONE else features
        groups.setdefault(key, []).append(nodes)
    if len(groups) == 1:
        return [NodeKind("cpu")]
    return [
        NodeKind(_plain(f"cpu-{cores}-{features}"), others=_nodes(groups, but=(cores, features)))
        for cores, features in sorted(groups)
    ]


def _gpu_types(gres: str) -> list[str]:
    """Returns the types of a node's GPUs, an empty text for GPUs without a type: `gpu:a100:4(S:0-1),gpu:2`."""
    return [kind.rstrip(":") for kind in re.findall(r"\bgpu:((?:[^:,()]+:)?)\d+(?![\w.])", gres)]


def _nodes(groups: dict[tuple[str, str], list[str]], but: tuple[str, str]) -> str:
    return ",".join(dict.fromkeys(name for key in sorted(groups) if key != but for name in groups[key]))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-")


def text(job: Measurement, options: Options) -> str:
    """Returns the batch script of a measurement.

    Args: `options` are those of the site and user.
    Raises: BadInput for text that cannot stand in a script.
    """
    lines = [
        "#!/bin/bash",
        *_directives(job, options),
        "",
        script.comment(f"Written by shardwright to measure layers on one device: {job.kind.name}"),
        "set -e",
        *script.surroundings(options),
        f"cd {script.word(str(job.directory))}",
        f"exec srun --ntasks=1 --cpus-per-task={options.cpus_per_task or 1} \\",
    ]
    if options.container is not None:
        words = script.container_words(options.container, job.folder, cuda=bool(job.kind.gres))
        lines.append("  " + " ".join(map(script.word, words)) + " \\")
    program = " ".join(map(script.word, [options.python or job.python, "-P", "-m", "shardwright", "profile"]))
    what = " ".join(map(script.word, [*job.words, "--output", str(job.result), "--force"]))
    return "\n".join([*lines, f"  {program} {what}", ""])


def _directives(job: Measurement, options: Options) -> Iterator[str]:
    yield script.directive("job-name", options.job_name or f"profile-{job.kind.name}")
    apart = ",".join(filter(None, (options.exclude, job.kind.others))) or None
    yield from script.named(options.model_copy(update={"exclude": apart}))
    yield "#SBATCH --nodes=1"
    yield "#SBATCH --ntasks=1"
    yield f"#SBATCH --cpus-per-task={options.cpus_per_task or 1}"
    if job.kind.gres and options.gpu_flag == "gres":
        yield script.directive("gres", job.kind.gres)
    elif job.kind.gres:
        yield script.directive("gpus-per-node", job.kind.gres.removeprefix("gpu:"))
    yield script.directive("chdir", str(job.folder))
    yield script.directive("output", job.log)
    yield "#SBATCH --open-mode=append"
    for key, value in sorted(options.sbatch.items()):
        yield script.directive(key, value)


def run(
    words: Sequence[str], output: Path, options: Options, *, cuda: bool, force: bool, note: Note
) -> list[Path]:
    """Measures layers on one node of each kind, by SLURM jobs, and waits for them.

    Args: `words` are those of `shardwright profile` without its output; `note` is told how the jobs go on.
      Jobs end when this is interrupted.
    Returns: the profiles written, one for each kind; with several, `output` gets the kind's name.
    Raises: MeasureFailed where a job brings no profile; BadInput where no node fits.
    """
    options = _with_limit(options)
    found = kinds(known(options), cuda)
    if not found:
        what = "GPUs" if cuda else "nodes that are up"
        raise BadInput(f"there are no {what} in the partition", where="SLURM", allowed="another partition")
    named = (output.with_name(f"{output.stem}-{kind.name}{output.suffix}") for kind in found)
    targets = [output] if len(found) == 1 else list(named)
    for target in targets:
        refuse_overwrite(target, force)
    # Beside the file to be written, since nodes may not share this machine's place for temporary ones.
    folder = Path(tempfile.mkdtemp(prefix=".profile-", dir=absolute(output).parent))
    jobs = [
        Measurement(kind=kind, words=tuple(words), folder=folder, directory=Path.cwd(), python=sys.executable)
        for kind in found
    ]
    try:
        failed = _measured(jobs, targets, options, note)
    finally:
        shutil.rmtree(folder)
    if failed:
        raise MeasureFailed("\n".join(failed))
    return targets


def _with_limit(options: Options) -> Options:
    """Returns options with a time limit that the partition allows.

    Raises: Infeasible where the limit given is longer.
    """
    nodes = limits.known()
    names = limits.check_partitions(nodes, options)
    most = max((node.limit_min for node in nodes if node.partition in names), default=LIMIT_MIN)
    time = limits.effective(options, os.environ).time or max(1, int(min(LIMIT_MIN, most)))
    found = options.model_copy(update={"time": time})
    limits.check(nodes, TaskLayout((1,), 1), 1, False, found)
    return found


def _measured(
    jobs: Sequence[Measurement], targets: Sequence[Path], options: Options, note: Note
) -> list[str]:
    """Queues all jobs and takes the profile of each that ends well.

    Returns: a line for each job that brought no profile.
    """
    queued: dict[int, tuple[Measurement, Path]] = {}
    failed: list[str] = []
    try:
        for job, target in zip(jobs, targets, strict=True):
            path = job.folder / f"{job.kind.name}.sbatch"
            path.write_text(text(job, options))
            number = int(commands.submit(path))
            queued[number] = job, target
            note(f"{job.kind.name}: job {number}")
        said: dict[int, str] = {}
        while queued:
            for number, (job, target) in list(queued.items()):
                now = state.of(number)
                line = f"{job.kind.name}: {now.state}" + (f" ({now.reason})" if now.reason else "")
                if said.get(number) != line:
                    said[number] = line
                    note(line)
                if now.stuck:
                    commands.call("scancel", str(number))
                    failed.append(line)
                elif now.state in ("queued", "running"):
                    continue
                else:
                    failed += _taken(job, number, target, now.state)
                del queued[number]
            if queued:
                time.sleep(LOOK_S)
    finally:
        if queued:
            commands.call("scancel", *map(str, queued))
    return failed


def _taken(job: Measurement, number: int, target: Path, how: str) -> list[str]:
    if how in ("done", "gone"):  # SLURM may have forgotten a job that did well
        end = time.monotonic() + LATE_S
        while not job.result.exists() and time.monotonic() < end:
            time.sleep(0.2)
        if job.result.exists():
            write_whole(target, job.result.read_text())
            return []
    log = job.folder / job.log.replace("%j", str(number))
    said = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else ["it left no log"]
    return [f"{job.kind.name}: job {number} {how}: {'; '.join(said)}"]
