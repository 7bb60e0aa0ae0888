"""`shardwright scavenge replay`: what a site's idle nodes would have been worth, from its log and jobs' plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner import terminal
from planner.cli.app import Json, add_command, whole_numbers
from planner.errors import BadInput
from planner.units import plural

if TYPE_CHECKING:
    from planner.scavenge import ElasticJob, IdleLog, Replayed

DAY_S = 86400.0
EXAMPLE = "shardwright scavenge replay sacct.txt --jobs gpt2-devices --at-once 10"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    log: Annotated[Path, typer.Argument(help="an event table, the text of sacct, or SWF", metavar="LOG")]
    jobs: Annotated[Path, typer.Option(help="a folder of `plan --devices`, or a folder of such folders")]
    at_once: Annotated[int, typer.Option(min=1, help="jobs at a time; those of --jobs are repeated")] = 10
    unit: Annotated[
        str, typer.Option(metavar="speed-up|samples", help="of work: speed-up compares unlike jobs")
    ] = "speed-up"
    weight: Annotated[list[str] | None, typer.Option(metavar="JOB=X", help="worth of a job's work")] = None
    look_ahead: Annotated[str, typer.Option(help="seconds in which a change must pay")] = "10,60,120,300,600"
    up_s: Annotated[float | None, typer.Option(min=0, help="pause of a job that starts or grows")] = None
    down_s: Annotated[float | None, typer.Option(min=0, help="pause of a job that shrinks")] = None
    again_s: Annotated[float, typer.Option(min=0, help="work done again when a node is taken")] = 0.0
    nodes: Annotated[int | None, typer.Option(min=1, help="the first so many nodes of the log")] = None
    days: Annotated[float | None, typer.Option(min=0, help="the first so many days of the log")] = None
    format: Annotated[
        str | None, typer.Option(metavar="events|sacct|swf", help="seen from the file when left out")
    ] = None
    processors: Annotated[int, typer.Option(min=1, help="of a node, for SWF")] = 1
    as_json: Json = False


def register_scavenge(app: typer.Typer) -> None:
    group = typer.Typer(
        name="scavenge",
        help="Train on nodes that nobody else uses.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    add_command(
        group,
        "replay",
        ReplayOptions,
        scavenge_replay,
        about="Say from a log what training on a site's idle nodes would have brought.",
        example=EXAMPLE,
    )
    app.add_typer(group, name="scavenge")


def scavenge_replay(given: ReplayOptions) -> None:
    from planner import scavenge

    ahead = whole_numbers(given.look_ahead, "--look-ahead")
    kind = next((known for known in scavenge.FORMATS if known == given.format), None)
    if given.format is not None and kind is None:
        raise BadInput(
            f"'{given.format}' is no format", where="--format", allowed=", ".join(scavenge.FORMATS)
        )
    jobs = scavenge.repeated(_jobs(given), given.at_once)
    log = scavenge.read_log(given.log, kind=kind, processors=given.processors)
    log = log.cut(nodes=given.nodes, seconds=None if given.days is None else given.days * DAY_S)
    if not log.spells:
        raise BadInput("no node is ever idle", where=str(given.log), allowed="a log with idle nodes")
    policies: dict[str, scavenge.Policy] = {"equal share": scavenge.equal_share}
    policies |= {f"knapsack, {seconds} s ahead": scavenge.planned(seconds) for seconds in ahead}
    with terminal.patient(f"replaying {given.log.name}"):
        found = {
            name: scavenge.replay(log, jobs, policy, again_s=given.again_s)
            for name, policy in policies.items()
        }
        ceiling = scavenge.replay(log, jobs, scavenge.planned(max(ahead)), free=True)
        found["ceiling: rescaling takes no time"] = ceiling
    terminal.Output(as_json=given.as_json).result(
        {"log": _log_data(log), "policies": {name: _data(row) for name, row in found.items()}},
        lambda: _text(log, jobs, found),
    )


def _jobs(given: ReplayOptions) -> list[ElasticJob]:
    from planner.scavenge import DOWN_S, UP_S, jobs_in

    unit, jobs = unit_of(given.unit), jobs_in(given.jobs)
    weights = weights_of(given.weight, [job.name for job in jobs])
    up_s = UP_S if given.up_s is None else given.up_s
    down_s = DOWN_S if given.down_s is None else given.down_s
    return [
        replace(
            job,
            curve=job.curve.in_units(unit),
            weight=weights.get(job.name, 1.0),
            up_s=up_s,
            down_s=down_s,
        )
        for job in jobs
    ]


def unit_of(text: str) -> Literal["speed-up", "samples"]:
    """Returns what jobs are compared by.

    Args: `text` is the value of `--unit`.
    Raises: BadInput for any other word.
    """
    if text == "speed-up":
        return "speed-up"
    if text == "samples":
        return "samples"
    raise BadInput(f"'{text}' is no unit", where="--unit", allowed="speed-up, samples")


def weights_of(words: Sequence[str] | None, jobs: Sequence[str]) -> dict[str, float]:
    """Returns the weights of jobs by name.

    Args: `words` are the values of `--weight`, such as `unet=2`; `jobs` are the names that there are.
    Raises: BadInput for a job that is not there, and for a weight that is not above 0.
    """
    texts = dict(text.rpartition("=")[::2] for text in words or [])
    if unknown := sorted(set(texts) - set(jobs)):
        allowed = ", ".join(f"{job}=2" for job in jobs)
        raise BadInput(f"'{unknown[0]}' is no job", where="--weight", allowed=allowed)
    return {job: _weight(text) for job, text in texts.items()}


def _weight(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise BadInput(f"'{text}' is no weight", where="--weight", allowed="a number above 0")
    return found


def _log_data(log: IdleLog) -> dict[str, object]:
    days = (log.end_s - log.begin_s) / DAY_S
    return {"nodes": len(log.nodes), "days": days, "average_idle": log.average, "spells": len(log.spells)}


def _data(row: Replayed) -> dict[str, object]:
    found = {name: value for name, value in asdict(row).items() if name != "spans"}
    return {"efficiency": row.efficiency, **found}


def _text(log: IdleLog, jobs: Sequence[ElasticJob], found: dict[str, Replayed]) -> str:
    rows = [
        (
            name,
            f"{row.efficiency:.3f}",
            f"{row.share(row.lost_to_rescaling):.1%}",
            f"{row.share(row.lost_to_preemption):.1%}",
            f"{row.rescales:,}",
            f"{row.preemptions:,}",
            f"{row.unused_node_s / log.idle_node_s:.1%}",
        )
        for name, row in found.items()
    ]
    heads = ("policy", "efficiency", "lost to rescaling", "to preemption", "rescales", "preempted", "unused")
    return "\n".join((*_facts(log, len(jobs)), "", terminal.columns(rows, heads), "", *_meaning()))


def _facts(log: IdleLog, jobs: int) -> list[str]:
    lengths = sorted(spell.end_s - spell.begin_s for spell in log.spells)
    days, share = (log.end_s - log.begin_s) / DAY_S, log.average / len(log.nodes)
    return [
        f"{plural(len(log.nodes), 'node')}, {days:.1f} days: {log.average:.1f} idle on average ({share:.1%}), in "
        f"{plural(len(lengths), 'spell')}; half of them last at most {lengths[(len(lengths) - 1) // 2] / 60:.1f} minutes",
        f"{plural(jobs, 'job')} at a time, that never end",
    ]


def _meaning() -> list[str]:
    return [
        "Efficiency is work over that of the same jobs on as many nodes of their own as were idle on average.",
        "A job loses work while it starts again: because it was given another size, or because nodes were taken.",
    ]
