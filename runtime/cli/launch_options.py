"""The options of the command `launch`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo

from planner import terminal
from planner.cli import Json, PlanFile
from runtime.cli import slurm as slurm_options

PANELS = {
    "Where": ("local", "inline", "on_slurm", "device", "rendezvous", "run", "trust", "wait"),
    "Training": (
        "steps",
        "seed",
        "weights",
        "kept",
        "clip_norm",
        "clip_by",
        "ema",
        "grad_norm",
        "profile_step",
    ),
    "Evaluation": ("eval_every", "best_by", "keep_best", "patience"),
    "Data": ("data_workers", "pin_memory", "drop_last"),
    "Islands": ("islands", "rounds", "inner_steps", "shards", "outer"),
    "Checkpoints and failures": ("save_every", "keep", "keep_every", "copies", "restarts", "failures"),
}
_NOT_OF_A_RUN = (
    *("local", "inline", "on_slurm", "trust", "wait", "dry_run", "check", "print_", "image", "prepare"),
    *("elastic", "profile", "cluster", "fix", "as_json", "run"),
    *("islands", "rounds", "inner_steps", "shards", "outer"),
)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of the command `launch`."""

    plan: PlanFile
    script: Annotated[
        list[str] | None,
        typer.Argument(
            help="after --: a script of your own and its arguments, on every rank", metavar="[-- SCRIPT ARGS]"
        ),
    ] = None
    local: Annotated[bool, typer.Option("--local", help="every rank a process on this machine")] = False
    inline: Annotated[bool, typer.Option("--inline", help="the same training in one process")] = False
    on_slurm: Annotated[
        bool, typer.Option("--slurm", help="as a job; chosen by itself where there is a SLURM")
    ] = False
    steps: Annotated[int, typer.Option(help="training steps")] = 10
    seed: Annotated[int, typer.Option(help="of weights, samples and dropout")] = 0
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|RUN", help="safetensors, or a run with its optimizer state; else build()'s own"
        ),
    ] = None
    kept: Annotated[
        Path | None, typer.Option(metavar="FILE", help="masks of pruned weights, from `prune`")
    ] = None
    clip_norm: Annotated[float | None, typer.Option(help="limit of the gradients' global norm")] = None
    clip_by: Annotated[
        str,
        typer.Option(help="whose norm that is: step, or previous, so that no update waits for all gradients"),
    ] = "step"
    ema: Annotated[
        float | None, typer.Option(help="decay of an average of the weights, which is what is evaluated")
    ] = None
    grad_norm: Annotated[
        bool, typer.Option("--grad-norm", help="record the gradients' norm, also unclipped")
    ] = False
    profile_step: Annotated[
        int, typer.Option(metavar="STEP", help="record this step with torch.profiler on every rank; 0: none")
    ] = 0
    eval_every: Annotated[int, typer.Option(help="steps between evaluations of valid_dataset(); 0: none")] = 0
    best_by: Annotated[
        str, typer.Option(metavar="NAME[:max]", help="value of an evaluation that tells what is best")
    ] = "loss"
    keep_best: Annotated[bool, typer.Option("--keep-best", help="keep the best one's checkpoint")] = False
    patience: Annotated[int, typer.Option(help="evaluations without a better one, then stop; 0: never")] = 0
    data_workers: Annotated[
        str,
        typer.Option(
            metavar="N|auto", help="processes of a rank that read samples; auto: as many as hide it"
        ),
    ] = "0"
    pin_memory: Annotated[
        bool | None, typer.Option("--pin-memory/--no-pin-memory", help="of batches; by default under cuda")
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            metavar="ram[:STEPS]|none", help="keep samples in the nodes' memory, in windows of STEPS"
        ),
    ] = None
    samples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="train on these alone: an index from `dedup`")
    ] = None
    drop_last: Annotated[bool, typer.Option("--drop-last", help="end epochs with a whole step")] = False
    islands: Annotated[
        int | None,
        typer.Option(metavar="N", help="train by N runs that meet once a round in the run folder alone"),
    ] = None
    rounds: Annotated[
        int | None, typer.Option(help="of islands: weights are added up at the end of each")
    ] = None
    inner_steps: Annotated[
        int | None, typer.Option(help="steps of a shard in a round; --dry-run advises how many")
    ] = None
    shards: Annotated[
        int | None,
        typer.Option(help="of the samples, each with its own optimizer state; by default N"),
    ] = None
    outer: Annotated[
        str,
        typer.Option(
            metavar="sgd[:RATE[:MOMENTUM]]", help="step on the mean change of a round; by default the mean"
        ),
    ] = ""
    save_every: Annotated[int, typer.Option(help="steps between checkpoints; 0: one at the end")] = 0
    keep: Annotated[int, typer.Option(help="complete checkpoints that stay")] = 2
    keep_every: Annotated[
        int, typer.Option(metavar="STEPS", help="checkpoints of these multiples stay for ever")
    ] = 0
    copies: Annotated[
        str | None,
        typer.Option("--checkpoints", metavar="URL", help="copy each checkpoint there: a path of fsspec"),
    ] = None
    restarts: Annotated[
        int | None,
        typer.Option(help="tries after a failure that leave no new checkpoint; 0 here, 3 in a job"),
    ] = None
    failures: Annotated[
        float | None,
        typer.Option("--failure-every", help="hours; chooses --save-every by what a checkpoint costs"),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda; by default what the plan's costs are of, where it is there"),
    ] = None
    rendezvous: Annotated[
        str, typer.Option(metavar="HOW", help="where ranks meet: file, tcp or tcp:INTERFACE")
    ] = "file"
    run: Annotated[Path | None, typer.Option(metavar="FOLDER", help="run folder; an old one is resumed")] = (
        None
    )
    trust: slurm_options.Trust = False
    wait: Annotated[bool, typer.Option("--wait", help="return when the run has ended, with its status")] = (
        False
    )
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the batch script and do nothing")] = False
    print_: Annotated[
        str | None,
        typer.Option(
            "--print", metavar="HOW", help="print what torchrun, k8s, skypilot or slurm starts it by"
        ),
    ] = None
    image: Annotated[str, typer.Option(help="with --print: the container image")] = ""
    prepare: Annotated[bool, typer.Option("--prepare", help="make the run folder and start nothing")] = False
    check: Annotated[bool, typer.Option("--check", help="ask SLURM about the script, queue nothing")] = False
    job: slurm_options.JobOptions
    elastic: slurm_options.ElasticNodes = None
    profile: slurm_options.Profile = None
    cluster: slurm_options.Machines = None
    fix: slurm_options.Fix = None
    as_json: Json = False

    @property
    def out(self) -> terminal.Output:
        return terminal.Output(as_json=self.as_json)

    @property
    def preparing(self) -> tuple[str, ...]:
        """Returns the words of the command that makes the same run folder and starts nothing."""
        words = ["shardwright", "launch", str(self.plan), "--local", "--prepare", "--trust"]
        hints = get_type_hints(LaunchOptions, include_extras=True)
        for field in fields(self):
            value, options = getattr(self, field.name), getattr(hints[field.name], "__metadata__", ())
            given = next((each for each in options if isinstance(each, OptionInfo)), None)
            if given is None or field.name in _NOT_OF_A_RUN or value == field.default:
                continue
            said = [given.default, *(given.param_decls or ())]  # where Typer puts a name depends on its place
            plain = f"--{field.name.replace('_', '-')}"
            name = next((word for word in said if isinstance(word, str) and word.startswith("--")), plain)
            if isinstance(value, bool):
                words.append(name.split("/")[0 if value else -1])
            else:
                words.append(f"{name}={value}")
        return (*words, *(("--", *self.script) if self.script else ()))

    @property
    def of_slurm(self) -> dict[str, object]:
        """Returns all options that only a job has."""
        return vars(self.job) | self.named("elastic", "dry_run", "check")

    @property
    def planning(self) -> dict[str, object]:
        """Returns the options that `--elastic` plans from."""
        return self.named("profile", "cluster", "fix")

    def named(self, *names: str) -> dict[str, Any]:
        """Returns the values of some options by name.

        Args: `names` are fields.
        """
        return {name: getattr(self, name) for name in names}
