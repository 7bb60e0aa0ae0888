"""The options of the command `plan`, and the panels of its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli.app import Force, Json
from planner.cli.export import Baselined
from planner.cli.profile import WorkloadArguments

if TYPE_CHECKING:
    from planner.explore import Goal

EXAMPLE = (
    "shardwright plan gpt2 --cluster h100x8 --nodes 2 --batch 64 -o gpt2-plan.yaml. "
    "With --frontier, --devices 8,16,32 or --batch auto the output is a folder of plans, and a table."
)


# Told in the help, which imports nothing of the solver; a test holds them against what there is.
FAMILY_NAMES = (
    "1f1b, gpipe, overlap, interleaved, interleaved-zb, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe-v, wave, chimera, "
    "chimera-zb, listed"
)
PIN_NAMES = (
    "data, pipeline, spatial, gather, regrid, micro, schedule, pairs, chunks, recompute, shard, ema, "
    "update, cuts, stages, devices, out_of_order, sums, weights, group, cut"
)
PANELS = {
    "Machines": ("cluster", "nodes", "devices", "calibration", "replan_from"),
    "Model and costs": ("profile", "set_", "config", "kept", "precision", "execution"),
    "What to decide": ("batch", "schedule", "fix", "effort", "baseline"),
    "Answer": ("frontier", "explain", "proof", "output", "progress", "force", "as_json"),
}


@dataclass(frozen=True, kw_only=True)
class PlanOptions(WorkloadArguments, Baselined):
    workload: Annotated[str | None, typer.Argument(help="may be left out with --profile")] = None
    cluster: Annotated[
        Path,
        typer.Option(metavar="FILE|NAME", help="a cluster.yaml, or a name of `shardwright list clusters`"),
    ]
    nodes: Annotated[int | None, typer.Option(metavar="N", help="so many nodes of that kind")] = None
    batch: Annotated[
        str, typer.Option(metavar="N|N,N|auto", help="global batch, in samples; auto tries several")
    ]
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="from `shardwright profile`; one for each type of device; made here when left out",
        ),
    ] = None
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help=f"families to choose from, of {FAMILY_NAMES}")
    ] = None
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=f"pin a decision, such as pipeline=4 (`shardwright list pins`); keys: {PIN_NAMES}",
        ),
    ] = None
    devices: Annotated[
        str | None, typer.Option(metavar="N|N,N", help="at most so many devices; several are compared")
    ] = None
    kept: Annotated[
        str | None,
        typer.Option(metavar="FILE|F|F,F", help="of pruned weights: masks, or the share kept"),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(metavar="fp32|bf16|fp16", help="as profiled; made here, bf16 where a GPU has it"),
    ] = None
    execution: Annotated[
        str | None, typer.Option(metavar="eager|compiled", help="as profiled; made here, eager")
    ] = None
    calibration: Annotated[Path | None, typer.Option(help="corrections from `shardwright calibrate`")] = None
    replan_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="correct costs by what this run took")
    ] = None
    effort: Annotated[
        str,
        typer.Option(metavar="quick|normal|full", help="how hard to search; Ctrl-C keeps the best so far"),
    ] = "normal"
    frontier: Annotated[
        bool, typer.Option("--frontier", help="every plan that is best in time and memory or devices")
    ] = False
    explain: Annotated[bool, typer.Option("--explain", help="why this plan and no other")] = False
    proof: Annotated[bool, typer.Option("--proof", help="what was searched, and what is proved")] = False
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE|FOLDER", help="where to write")
    ] = None
    progress: Annotated[
        bool, typer.Option("--progress", help="say how far it is, also where there is no terminal")
    ] = False
    force: Force = False
    as_json: Json = False

    @property
    def out(self) -> terminal.Output:
        return terminal.Output(as_json=self.as_json)

    @property
    def named(self) -> str:
        """Returns what is planned, in a word."""
        return Path(self.workload or next(iter(self.profile or ()), "")).stem

    @property
    def families(self) -> list[str] | None:
        return self.schedule.split(",") if self.schedule is not None else None

    def place(self, workload: str, goal: Goal) -> Path:
        """Returns where the answer goes, a file or a folder.

        Raises: BadInput where it cannot be written.
        """
        suffix = ".yaml" if goal.single else ""
        path = self.output or Path(f"{Path(workload).stem}-{goal.what}{suffix}")
        refuse = files.refuse_overwrite if goal.single else files.refuse_folder
        refuse(path, self.force)
        return path
