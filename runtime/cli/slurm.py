"""The options of `launch --slurm` with what the command does with them, and `scavenge run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import cli as commands
from planner import terminal, units
from planner.cli import Json
from planner.errors import BadInput, Interrupted
from planner.files import absolute
from planner.shown import one_line

if TYPE_CHECKING:
    from planner.plan import Plan
    from runtime.launch import Handle, Status
    from runtime.runfolder import Job
    from runtime.slurm import Elastic, Options

Text = str | None
ElasticNodes = Annotated[
    Text, typer.Option("--elastic", help="plan anew for the nodes that are left", metavar="MIN:MAX")
]
Profile = Annotated[Path | None, typer.Option(help="what --elastic plans from", metavar="FILE")]
Machines = Annotated[Path | None, typer.Option("--cluster", help="what --elastic plans for", metavar="FILE")]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", help="what --elastic may not decide", metavar="KEY=VALUE")
]

Trust = Annotated[
    bool, typer.Option("--trust", help="run the plan's workload file wherever it lies, without asking")
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of every command that queues a job."""

    partition: Annotated[Text, typer.Option(help="SLURM's; several with commas", metavar="NAMES")] = None
    account: Annotated[Text, typer.Option(help="SLURM's account", metavar="NAME")] = None
    qos: Annotated[Text, typer.Option(help="SLURM's quality of service", metavar="NAME")] = None
    time: Annotated[Text, typer.Option(help="limit: minutes, HH:MM:SS or D-HH:MM:SS", metavar="TIME")] = None
    constraint: Annotated[Text, typer.Option(help="features that nodes must have", metavar="TEXT")] = None
    job_name: Annotated[
        Text, typer.Option("--job-name", help="the plan's name when left out", metavar="NAME")
    ] = None
    dependency: Annotated[Text, typer.Option(help="such as afterok:1234", metavar="TEXT")] = None
    sbatch: Annotated[
        list[str] | None, typer.Option("--sbatch", help="any other option of sbatch", metavar="KEY=VALUE")
    ] = None
    site: Annotated[Path | None, typer.Option(help="the site's defaults for SLURM", metavar="FILE")] = None

    def over_site(self, restarts: int | None = None) -> Options:
        """Returns the site's options with these over them.

        Args: `restarts` are the tries of a command that has that option.
        Raises: BadInput for an option that is wrong.
        """
        from runtime import slurm

        named = vars(self) | {"restarts": restarts}
        named.pop("sbatch"), named.pop("site")
        found = {name: value for name, value in named.items() if value is not None}
        pairs = slurm.pairs(self.sbatch or [], "--sbatch")
        for key in [key for key in pairs if key in slurm.NAMED]:
            found.setdefault(slurm.NAMED[key], pairs.pop(key))
        if pairs:
            found["sbatch"] = pairs
        return slurm.over(slurm.load(self.site), found)


def flexible(
    nodes: str | None, profile: Path | None, cluster: Path | None, fix: list[str] | None
) -> Elastic | None:
    """Returns the range of nodes of `--elastic`, None for a run of as many nodes as its plan has.

    Raises: BadInput where it has nothing to plan from, or without it where `--profile`, `--cluster` or
      `--fix` is given.
    Args: `fix` are KEY=VALUE words.
    """
    from runtime import slurm

    if nodes is None:
        refuse_without("--elastic", {"profile": profile, "cluster": cluster, "fix": fix})
        return None
    fewest, most = slurm.parse(nodes)
    if profile is None or cluster is None:
        raise BadInput("needs something to plan from", where="--elastic", allowed="--profile and --cluster")
    fixed = slurm.pairs(fix or [], "--fix")
    return slurm.Elastic(fewest=fewest, most=most, profile=profile, cluster=cluster, fix=fixed)


def dry_run(
    plan: Plan,
    name: str,
    folder: Path,
    job: Job,
    options: Options,
    *,
    nodes: Elastic | None,
    ask: bool,
    out: terminal.Output,
) -> None:
    """Prints the batch script, which needs no SLURM.

    Args: with `ask`, SLURM's answer to the script is printed instead; nothing is queued.
    """
    from runtime import slurm

    request = slurm.request(plan, name, folder, job, nodes)
    text = slurm.text(request, options)
    for warning in slurm.container_warnings(request, options):
        out.note(f"warning: {warning}")
    if not ask:
        if not folder.exists():
            out.note(
                f"{folder} is not made yet: with --prepare, launch makes it with this script and queues nothing"
            )
        out.file({"script": text}, text.rstrip("\n"))
        return
    said = slurm.test_only(request, options)
    out.result({"script": text, "sbatch": said}, lambda: said)


def launch(
    plan: Plan,
    name: str,
    folder: Path,
    job: Job,
    options: Options,
    *,
    nodes: Elastic | None,
    wait: bool,
    out: terminal.Output,
) -> Handle:
    """Queues a run as a job, and prints its number where nobody waits for it.

    Args: with `wait`, the caller waits for the run.
    """
    from runtime import slurm
    from runtime.launch import Handle

    paths, warnings = slurm.prepared(plan, name, folder, job, options, flexible=nodes)
    for warning in warnings:
        out.note(f"warning: {warning}")
    backend = slurm.queue(paths)
    if not wait:
        data = {"run": str(paths.root), "state": "queued", "job": backend.job}
        out.note(f"queued in {paths.root}")
        out.result(data, lambda: str(backend.job))
    else:
        out.note(f"job {backend.job}, in {paths.root}")
    return Handle(paths, len(plan.places), backend)


class StatusLine:
    """One line with the state of a run, printed when it changes. On a terminal it replaces the line before."""

    def __init__(self, out: terminal.Output) -> None:
        self._out, self._last = out, ""

    def __call__(self, found: Status) -> None:
        loss = f", loss {found.loss:.6g}" if found.loss is not None else ""
        left = f", {units.format_duration(found.left_s * 1e9)} left" if found.left_s is not None else ""
        why = f" ({found.reason})" if found.reason else ""
        line = one_line(f"{found.state}{why}: step {found.step} of {found.steps}{loss}{left}")
        if line != self._last:
            self._last = line
            if sys.stderr.isatty():
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            else:
                self._out.note(line)

    def end(self) -> None:
        """Ends the line, so that what is printed next begins on a line of its own."""
        if self._last and sys.stderr.isatty():
            print(file=sys.stderr, flush=True)


def refuse_without(option: str, given: Mapping[str, object]) -> None:
    """Refuses options that would be ignored in silence.

    Args: `given` are options that belong to `option`, by name.
    Raises: BadInput with the first that has a value.
    """
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if used:
        raise BadInput(f"{used[0]} is an option of {option}", allowed=f"{option}, or without it")


@dataclass(frozen=True, kw_only=True)
class ScavengeOptions:
    """The options of the command `scavenge run`."""

    jobs: Annotated[Path, typer.Option(help="a folder of `plan --devices`, or a folder of such folders")]
    state: Annotated[Path, typer.Option(help="what is remembered, and a run folder for every job")]
    steps: Annotated[int, typer.Option(min=1, help="of every job")]
    save_every: Annotated[int, typer.Option(min=1, help="steps between two checkpoints")] = 100
    nodes: Annotated[int, typer.Option(min=0, help="for all jobs together; 0: all that are idle")] = 0
    grace: Annotated[
        bool,
        typer.Option("--grace", help="end with a checkpoint in the partition's GraceTime, while others wait"),
    ] = False
    every: Annotated[float, typer.Option(min=1, help="seconds between two decisions")] = 30.0
    look_ahead: Annotated[float, typer.Option(min=1, help="seconds in which a change must pay")] = 120.0
    unit: Annotated[
        str, typer.Option(metavar="speed-up|samples", help="of work: speed-up compares unlike jobs")
    ] = "speed-up"
    weight: Annotated[list[str] | None, typer.Option(metavar="JOB=X", help="worth of a job's work")] = None
    once: Annotated[bool, typer.Option("--once", help="decide once and end, as for cron")] = False
    job: JobOptions
    as_json: Json = False


def register_scavenge_run(app: typer.Typer) -> None:
    """Adds the command `scavenge run` to the group of `scavenge replay`.

    Args: `app` has the planner's commands.
    """
    group = next(each.typer_instance for each in app.registered_groups if each.name == "scavenge")
    assert group is not None
    commands.add_command(
        group,
        "run",
        ScavengeOptions,
        scavenge_run,
        about="Train on a SLURM site's idle nodes: jobs grow, shrink and wait as nodes come and go.",
        example="shardwright scavenge run --jobs jobs --partition spot --state idle --steps 10000",
    )


def scavenge_run(given: ScavengeOptions) -> None:
    """Decides until all jobs are done; exits with 1 where one was set aside.

    Args: `given` are the options of the command.
    Raises: BadInput where no partition is named, or where its jobs do not give way to others.
    """
    from planner.scavenge import plans_in
    from runtime import scavenge

    options = given.job.over_site()
    if not options.partition:
        raise BadInput(
            "is missing", where="--partition", allowed="the partition whose jobs give way to others"
        )
    asked = scavenge.Asked(
        jobs=str(absolute(given.jobs)),
        partition=options.partition,
        steps=given.steps,
        save_every=given.save_every,
        grace=given.grace,
        most=given.nodes,
        look_ahead_s=given.look_ahead,
        unit=commands.unit_of(given.unit),
        weights=commands.weights_of(given.weight, list(plans_in(given.jobs))),
    )
    out = terminal.Output(as_json=given.as_json)
    running = scavenge.Scavenger(
        asked, given.state, options, lambda line: out.note(f"{units.format_clock(time.time())} {line}")
    )
    try:
        tallies = running.run(given.every, once=given.once)
    except KeyboardInterrupt:
        said = (
            "interrupted; the jobs go on. The same command decides again, and `shardwright cancel` ends a job"
        )
        raise Interrupted(said) from None
    heads = ("job", "state", "nodes", "step", "")
    rows = [(row.job, row.state, str(row.nodes), str(row.step), row.reason) for row in tallies]
    out.result({"jobs": [asdict(row) for row in tallies]}, lambda: terminal.columns(rows, heads))
    if any(row.state == "aside" for row in tallies):
        raise typer.Exit(1)
