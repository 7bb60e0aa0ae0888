"""The batch script of a run: text from a plan and options, and nothing else.

The script is kept beside the run and can be submitted again by hand. The run then goes on from its last
checkpoint. All text in it is quoted, so that it can only mean itself.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.errors import BadInput
from runtime.slurm import limits
from runtime.slurm.options import Container, Options
from runtime.slurm.task_layout import TaskLayout

LOG = "logs/slurm-%j.out"
TASK = "runtime.slurm.task"

KILLED, OUTCOME = "killed", "outcome.json"  # files of the run folder, as `Paths` names them

BATCH = "runtime.slurm.supervisor"

# What SLURM would put in place of these in the name of the log.
_PATTERN = "\\%"


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """The facts about one job that its script is made from, beside the options."""

    name: str  # of the plan
    folder: Path  # of the run
    directory: Path  # where the user stood; the plan's workload may be named from there
    layout: TaskLayout
    threads: int  # of a rank
    cuda: bool
    nodes: tuple[int, int] | None = None  # the fewest and the most, where plans are made for what is granted
    python: str  # the interpreter that runs the supervisor, and the ranks unless another is said


def text(request: JobRequest, options: Options) -> str:
    """Returns the batch script of a run.

    Args: `request` describes the job; `options` are those of the site and user.
    Raises: BadInput for a path or name that cannot stand in a script.
    """
    folder, elastic = str(request.folder), request.nodes is not None
    if not request.folder.is_absolute():
        raise BadInput("is no absolute path", where=folder)
    if found := set(folder) & set(_PATTERN):
        raise BadInput(
            f"SLURM cannot write a log below a path with '{found.pop()}'",
            where=folder,
            allowed="another run folder",
        )
    lines = [
        "#!/bin/bash",
        *_directives(request, options),
        "",
        comment(
            f"Written by shardwright for {request.layout.ranks} ranks. It can be submitted again by hand:"
        ),
        comment("the run goes on from its last complete checkpoint."),
        "set -e",
        *surroundings(options),
        f"cd {word(str(request.directory))}",
        "trap '' USR1  # until the supervisor listens to it",
        "supervise() {",
        f"  exec {word(request.python)} -P -m {BATCH} {word(folder)} \\",
        f"    --requeues {options.requeues} --restarts {options.restarts}{' --elastic' * elastic} -- \\",
        *(f"  {line}" for line in _step(request, options)),
        "}",
        *_watch(options.requeues, request.folder),
    ]
    return "\n".join([*lines, ""])


def _watch(requeues: int, folder: Path) -> Iterator[str]:
    """Yields the lines that hand signals to the supervisor, wait for it, and queue the job again where it was killed.

    A signal ends `wait` early, so the supervisor is waited for until it is gone. One that was killed has told no outcome.
    """
    outcome, killed = (word(str(folder / name)) for name in (OUTCOME, KILLED))
    yield "supervise & supervisor=$! status=0 ended="
    yield "trap 'kill -USR1 $supervisor || :' USR1"
    yield "trap 'ended=1; kill -TERM $supervisor || :' TERM"
    yield "wait $supervisor || status=$?"
    yield "while kill -0 $supervisor 2>/dev/null; do status=0; wait $supervisor || status=$?; done"
    yield "last=0; wait $supervisor 2>/dev/null || last=$?"
    yield "[ $last = 127 ] || status=$last"
    yield f'if [ $status = 137 ] && [ -z "$ended" ] && [ ! -e {outcome} ]; then'
    if requeues:
        yield "  " + comment(
            "Killed, or out of memory: the job goes on from its last checkpoint, as often as was said."
        )
        yield '  job="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
        yield f'  echo "$SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}}" >> {killed}'
        yield f'  [ "$(wc -l < {killed})" -gt {requeues} ] || {{ scontrol requeue "$job" && sleep 120; }} || :'
    yield "  kill -KILL $$  # SLURM says then what has happened"
    yield "fi"
    yield "exit $status"


def _directives(request: JobRequest, options: Options) -> Iterator[str]:
    layout = request.layout
    yield directive("job-name", options.job_name or request.name)
    yield from named(options)
    if request.nodes is not None:
        yield f"#SBATCH --nodes={request.nodes[0]}-{request.nodes[1]}"
        yield f"#SBATCH --ntasks-per-node={layout.devices}"
    else:
        yield f"#SBATCH --nodes={len(layout.tasks)}"
        yield f"#SBATCH --ntasks={layout.ranks}"
        yield f"#SBATCH --ntasks-per-node={max(layout.tasks)}"
    yield f"#SBATCH --cpus-per-task={options.cpus_per_task or request.threads}"
    if request.cuda and options.gpu_flag == "gres":
        yield f"#SBATCH --gres=gpu:{layout.devices}"
    elif request.cuda:
        yield f"#SBATCH --gpus-per-node={layout.devices}"
    yield directive("chdir", str(request.folder))
    yield directive("output", LOG)
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue" if options.requeues else "#SBATCH --no-requeue"
    yield f"#SBATCH --signal=B:USR1@{signal_s(options, options.time)}"
    for key, value in sorted(options.sbatch.items()):
        yield directive(key, value)


def signal_s(options: Options, time_limit: str | int | None) -> int:
    """Returns how many seconds before its time limit a job is told to stop: at most a quarter of the limit.

    Args: `time_limit` is as SLURM writes it.
    """
    limit_s = 60 * (float("inf") if time_limit is None else limits.minutes(str(time_limit)))
    return max(1, int(min(options.signal_s, limit_s / 4)))


def named(options: Options) -> Iterator[str]:
    """Yields the sbatch lines of options with a name of their own that do not come from a plan.

    Args: `options` without a value yield no line.
    """
    keys = "partition account qos reservation constraint nodelist exclude dependency time mem"
    for key in keys.split():
        value = getattr(options, key)
        if value is not None:
            yield directive(key, str(value))


def surroundings(options: Options) -> Iterator[str]:
    """Yields the shell lines before the program: the site's prologue, modules and environment variables.

    Args: `options` are those of the site and user.
    """
    yield from options.prologue
    for module in options.modules:
        yield f"module load {word(module)}"
    for name, value in sorted(options.env.items()):
        yield f"export {name}={word(value)}"


def _step(request: JobRequest, options: Options) -> Iterator[str]:
    layout, container = request.layout, options.container
    words = ["srun", "--kill-on-bad-exit=1"]
    if request.nodes is None:  # else the supervisor knows how many
        words += [f"--nodes={len(layout.tasks)}", f"--ntasks={layout.ranks}"]
    words.append(f"--cpus-per-task={options.cpus_per_task or request.threads}")
    if layout.even and request.nodes is None:
        words += [f"--ntasks-per-node={layout.tasks[0]}", "--distribution=block"]
    else:
        words.append("--distribution=arbitrary")  # by a list of hosts that the supervisor writes
    if request.cuda:
        words.append("--gpu-bind=none")  # ranks of a node must see each other's devices
    yield "  " + " ".join(words) + " \\"
    if container is not None:
        words = container_words(container, request.folder, cuda=request.cuda)
        yield "  " + " ".join(map(word, words)) + " \\"
    yield f"  {word(options.python or request.python)} -P -m {TASK} {word(str(request.folder))}"


def array_text(
    folder: Path,
    elements: int,
    directory: str,
    cuda: bool,
    options: Options,
    *,
    room: str = "infer",
    devices: int = 1,
) -> str:
    """Returns the batch script of an array whose elements share the tasks of a folder.

    Args: `folder` is that of the tasks; `directory` is where workers start; `options` are those of the site and user;
        `room` has the worker, `runtime.ROOM.work`, which uses so many `devices`.
    Raises: BadInput for a path or name that cannot stand in a script.
    """
    cores = options.cpus_per_task or devices
    lines = [
        "#!/bin/bash",
        directive("job-name", options.job_name or room),
        *named(options),
        directive("array", f"0-{elements - 1}"),
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={cores}",
        *([directive("gres", f"gpu:{devices}")] if cuda and options.gpu_flag == "gres" else []),
        *([directive("gpus-per-node", f"{devices}")] if cuda and options.gpu_flag != "gres" else []),
        directive("chdir", directory),
        directive("output", str(folder / "logs" / "%A_%a.out")),
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        *(directive(key, value) for key, value in sorted(options.sbatch.items())),
        "",
        comment(f"Written by shardwright: {elements} workers that share the tasks of a folder."),
        comment("Elements may be cancelled and the script submitted again at any time."),
        "set -e",
        *surroundings(options),
        f"export OMP_NUM_THREADS={max(1, cores // devices)}",
        "exec srun \\",
    ]
    if options.container is not None:
        words = container_words(options.container, folder, cuda=cuda)
        lines.append("  " + " ".join(map(word, words)) + " \\")
    program = f"  {word(options.python or sys.executable)} -P -m runtime.{room}.work {word(str(folder))}"
    return "\n".join([*lines, program, ""])


def container_words(container: Container, folder: Path, *, cuda: bool) -> list[str]:
    """Returns the words of a command that come before the interpreter, so that it runs in a container.

    Args: `folder` is the run folder, which is mounted.
    Raises: BadInput for a path with a comma.
    """
    mounts = [*container.mounts, f"{folder}:{folder}"]
    if any("," in mount for mount in mounts):
        raise BadInput("a path with a comma cannot be mounted", where="container", allowed="other paths")
    if container.runtime == "pyxis":
        return [f"--container-image={container.image}", f"--container-mounts={','.join(mounts)}"]
    binds = [word for mount in mounts for word in ("--bind", mount)]
    return ["apptainer", "exec", *(["--nv"] if cuda else []), *binds, container.image]


def directive(key: str, value: str) -> str:
    """Returns one `#SBATCH` line.

    sbatch knows double quotes, takes every backslash for an escape, and an unescaped `#` for a comment even
    inside quotes.
    Args: an empty `value` is for an option without one.
    Raises: BadInput where the value is not one line of printable characters.
    """
    escaped = _one_line(value).replace("\\", "\\\\").replace('"', '\\"').replace("#", "\\#")
    return f'#SBATCH --{key}="{escaped}"' if value else f"#SBATCH --{key}"


def word(text: str) -> str:
    """Returns a text as one word of a shell command.

    Raises: BadInput where the text is not one line of printable characters.
    """
    return shlex.quote(_one_line(text))


def comment(text: str) -> str:
    """Returns a text as a comment line.

    Raises: BadInput where the text is not one line of printable characters.
    """
    return f"# {_one_line(text)}"


def _one_line(text: str) -> str:
    """Returns the text, which must be printable. Options were checked when they were read; paths and names of
    plans were not.
    """
    if not text.isprintable():
        raise BadInput(f"{text!r} cannot stand in a batch script", allowed="one line of printable characters")
    return text
