"""The options of `launch --slurm`, and what the command does with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import terminal, units
from planner.errors import BadInput
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
    if not ask:
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
