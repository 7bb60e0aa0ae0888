"""The commands that look at a run or at the machines: status, logs, cancel, doctor, probe and rehearse."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli import Force, Json, PlanFile, RunFolder
from planner.errors import BadInput
from planner.files import absolute
from planner.shown import one_line, printable
from runtime.cli.shared_work import islands_in, lines_of_islands, status_of_islands
from runtime.cli.slurm import Trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planner.plan import Plan
    from runtime.infer import InferFolder
    from runtime.probe import Found


def register_runs(app: typer.Typer) -> None:
    """Adds status, logs, cancel, doctor and probe to the command line.

    Args: `app` gets the commands.
    """
    app.command("status", epilog="Example: shardwright status runs/gpt2-plan-20260101-120000")(status)
    app.command("logs", epilog="Example: shardwright logs runs/gpt2-plan-20260101-120000 -f --rank 3")(logs)
    app.command("cancel", epilog="Example: shardwright cancel runs/gpt2-plan-20260101-120000")(cancel)
    app.command("doctor", epilog="Example: shardwright doctor")(doctor)
    app.command("probe", epilog="Example: shardwright probe --local -o cluster.yaml")(probe)


def trusted(plan: Plan, file: Path, *, trust: bool) -> None:
    """Asks before a workload runs that lies neither in the current folder nor in the plan's.

    Args: `file` holds the plan; with `trust`, nobody is asked.
    Raises: BadInput where the answer is no, or there is no terminal to ask on.
    """
    from planner.workload import outside

    found = None if trust else outside(plan.model.workload, (Path.cwd(), file.parent))
    if found is None:
        return
    what = f"the plan's workload {one_line(str(found))} lies outside of this folder and the plan's"
    if sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(f"{what}; run its code?", err=True):
        return
    raise BadInput(what, where=str(file), allowed="--trust to run its code, or a workload beside the plan")


def say_if_crowded(plan: Plan, device: str, out: terminal.Output) -> None:
    """Says before a run on this machine that it will be slower than its plan: other work, or too few cores.

    Args: `device` is that of the ranks; `out` takes the note.
    """
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if device == "cpu" and len(plan.places) > cores:
        out.note(f"{len(plan.places)} ranks share {cores} cores: steps will take longer than planned")
    elif device == "cpu" and load + len(plan.places) > cores + 1:
        out.note(
            f"this machine is busy (load {load:.1f} on {cores} cores): steps will take longer than planned"
        )


def place(url: str | None) -> str:
    """Returns where copies of checkpoints go, for processes that stand in other folders.

    Args: `url` is a path of fsspec, or None.
    """
    return "" if url is None else url if ":" in url else str(absolute(Path(url)))


def status(run: RunFolder, as_json: Json = False) -> None:
    """Say where a run stands: its state and why, step, loss, speed beside the plan's, time left; or an inference, or islands."""
    from runtime import launch as launching

    if (islands := islands_in(run)) is not None:
        status_of_islands(islands, terminal.Output(as_json=as_json))
        return
    if inferred := _inferred(run):
        from runtime import infer

        state = infer.status_of(inferred)
        data = asdict(state) | {"state": state.state}
        terminal.Output(as_json=as_json).result(data, lambda: infer.status_text(state))
        return
    found = launching.of(run)
    terminal.Output(as_json=as_json).result(asdict(found), lambda: launching.status_text(found))


def _inferred(folder: Path) -> InferFolder | None:
    """Returns the tasks of an inference where the folder is theirs, or that of the output beside them."""
    from runtime.infer import InferFolder

    found = (InferFolder(folder), InferFolder.beside(str(folder)))
    return next((each for each in found if each.job.exists()), None)


def logs(
    run: RunFolder,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the run has ended")] = False,
    rank: Annotated[int | None, typer.Option(help="of this rank alone")] = None,
    as_json: Json = False,
) -> None:
    """Print what the ranks and the job of a run have written."""
    from runtime import launch as launching

    lines: Iterator[tuple[str, str]]
    if (inferred := _inferred(run)) is not None:
        from runtime import infer

        if rank is not None:
            raise BadInput("an inference has no ranks", where="--rank")
        lines = launching.followed(
            lambda: sorted(inferred.logs.glob("*")),
            lambda: follow and not as_json and infer.status_of(inferred).state == "unfinished",
        )
    elif (islands := islands_in(run)) is not None:
        lines = lines_of_islands(islands, rank, follow=follow and not as_json)
    else:
        lines = launching.lines_of(run, rank, follow=follow and not as_json)
    if as_json:
        rows = [{"file": file, "line": line} for file, line in lines]
        terminal.Output(as_json=True).result({"run": str(run), "lines": rows}, str)
        return
    for file, line in lines:
        terminal.say(printable(line if rank is not None else f"{file}: {line}"), sys.stdout)


def cancel(run: RunFolder, as_json: Json = False) -> None:
    """End a run; it can be resumed from its last complete checkpoint."""
    from runtime import launch as launching

    if (islands := islands_in(run)) is not None:
        islands.paths.cancelled.touch()
    else:
        launching.cancel(run)
    terminal.Output(as_json=as_json).result({"run": str(run), "cancelled": True}, lambda: f"{run}: cancelled")


def doctor(as_json: Json = False) -> None:
    """Say what is installed here, what is missing, and what to type."""
    from runtime.cli import doctor as checks

    found = checks.findings(Path.cwd())
    table = terminal.columns(
        [(f.what, f.state, f.detail + (f"; try: {f.remedy}" if f.remedy else "")) for f in found],
        ("what", "is", "in detail"),
    )
    data = {"well": checks.well(found), "findings": [asdict(finding) for finding in found]}
    terminal.Output(as_json=as_json).result(data, lambda: table)
    if not checks.well(found):
        raise typer.Exit(1)


def probe(
    local: Annotated[bool, typer.Option("--local", help="processes of this machine")] = False,
    on_slurm: Annotated[bool, typer.Option("--slurm", help="nodes of SLURM; waits for them")] = False,
    nodes: Annotated[int, typer.Option(help="with --slurm: nodes to measure")] = 2,
    ranks: Annotated[
        int | None, typer.Option(help="processes a node, each as a device; one a GPU when left out, else 2")
    ] = None,
    srun: Annotated[
        list[str] | None, typer.Option("--srun", metavar="KEY=VALUE", help="further options of srun")
    ] = None,
    cards: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME", help="with --slurm: interfaces of each node that parts of one sum go over"
        ),
    ] = "",
    count: Annotated[int | None, typer.Option(help="nodes that the cluster has in all")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="where to write")] = Path(
        "cluster.yaml"
    ),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure devices and links, and write them as a cluster.yaml."""
    if local and on_slurm:
        raise BadInput("--local and --slurm exclude each other")
    if nodes < 1 or (ranks is not None and ranks < 1) or (on_slurm and ranks == nodes == 1):
        raise BadInput("one process has nobody to talk to", where="--ranks", allowed="2 or more")
    faces = tuple(filter(None, (name.strip() for name in cards.split(","))))
    if faces and not on_slurm:
        raise BadInput("cards are between nodes", where="--cards", allowed="with --slurm")
    files.refuse_overwrite(output, force)
    from planner import cluster as clusters
    from runtime import probe

    ranks = ranks or (probe.gpus() if not on_slurm else 0) or 2
    found = _probed(output, ranks, nodes if on_slurm else 0, srun or [], faces)
    size = count or (nodes if on_slurm else 1)
    made = probe.cluster_of(found, output.stem, size, list(clusters.CATALOGUE))
    text = clusters.dump(made)
    files.write_whole(output, text)
    out = terminal.Output(as_json=as_json)
    for row in probe.slow(found):
        out.note(f"slow: {row}")
    for row in probe.shared(found):
        out.note(row)
    out.result({"cluster": str(output), "found": asdict(found)}, lambda: f"{text}\nwritten to {output}")


def _probed(output: Path, ranks: int, nodes: int, srun: list[str], cards: tuple[str, ...]) -> Found:
    """Probes this machine, or nodes of SLURM where `nodes` is not 0."""
    import tempfile

    from runtime import probe, slurm

    # Beside the file to be written, since nodes may not share this machine's place for temporary ones.
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=absolute(output).parent) as folder:
        if not nodes:
            return probe.local(Path(folder), ranks)
        words = [f"--{key}={value}" for key, value in slurm.pairs(srun, "--srun").items()]
        return probe.by_srun(Path(folder), nodes, ranks, words, cards=cards)


def register_rehearse(app: typer.Typer) -> None:
    """Adds rehearse to the command line.

    Args: `app` gets the command.
    """
    app.command("rehearse", epilog="Example: shardwright rehearse plan.yaml --device cuda")(rehearse)


def rehearse(
    plan: PlanFile,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    steps: Annotated[int, typer.Option(help="timed steps of every rank")] = 3,
    threads: Annotated[int, typer.Option(help="of a rank, on the host")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="also train two steps by the plan here, against one process")
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run each distinct rank of a plan alone on one device: its real time and memory, beside the prediction."""
    from planner import plan as plans
    from runtime import launch as launching
    from runtime import rehearse
    from runtime.rehearse import rehearse as run

    chosen = plans.load(plan)
    trusted(chosen, plan, trust=trust)
    found = run(chosen, device=device, steps=steps, threads=threads)
    checked = launching.checked(chosen) if check else None
    data, parts = rehearse.as_dict(found), [rehearse.text(found)]
    if checked is not None:
        data["check"] = asdict(checked) | {"agree": checked.agree}
        parts.append(launching.check_text(checked))
    terminal.Output(as_json=as_json).result(data, lambda: "\n\n".join(parts))
    if checked is not None and not checked.agree:
        raise typer.Exit(1)
