"""`shardwright export`: a plan in the words of another trainer; and its way back, the baseline of `shardwright plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal
from planner.cli.app import Force, Json, Out, PlanFile, add_command
from planner.cli.inspect import right_plan
from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.export import Baseline, Settings
    from planner.milp import PricedPins, Question
    from planner.plan import Plan

NAMES = "torchtitan, megatron, deepspeed, accelerate, fsdp2 or torchrun"
MOST_BYTES = 1 << 17


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    plan: PlanFile
    to: Annotated[str, typer.Option(metavar="TRAINER", help=NAMES)]
    output: Out = None
    force: Force = False
    as_json: Json = False


def register_export(app: typer.Typer) -> None:
    add_command(
        app,
        "export",
        ExportOptions,
        export,
        about="Write a plan as the settings of another trainer, or name what that cannot state.",
        example="shardwright export plan.yaml --to torchtitan -o plan_settings.py",
    )


def export(given: ExportOptions) -> None:
    from planner import export as trainers

    if given.output is not None:
        files.refuse_overwrite(given.output, given.force)
    text = trainers.export(right_plan(given.plan), given.to, str(given.plan))
    if given.output is not None:
        files.write_whole(given.output, text)
    about = trainers.TRAINERS[given.to].about
    data = {"to": given.to, "text": text, "file": None if given.output is None else str(given.output)}
    out = terminal.Output(as_json=given.as_json)
    if given.output is None:
        out.file(data, text.rstrip("\n"))
    else:
        out.result(data, lambda: f"{about}, written to {given.output}")


@dataclass(frozen=True, kw_only=True)
class Baselined:
    """Options of a command whose plan is compared with somebody's present settings."""

    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"your present settings, of {NAMES}: compared with the plan"),
    ] = None

    @property
    def present(self) -> Settings | None:
        """Returns the settings in the file; None where there is none."""
        return None if self.baseline is None else _settings(self.baseline)

    def refuse_baseline(self, *, single: bool) -> None:
        """Refuses a file that cannot be read, and settings beside several plans.

        Args: `single` says whether one plan is asked for.
        """
        if self.present is not None and not single:
            said = "--baseline is compared with one plan"
            raise BadInput(said, where="--baseline", allowed="one batch, and no --frontier")

    def with_present(self, micros: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the micro-batches to profile: that of the present settings too."""
        now = self.present
        return tuple(sorted({*micros, *([now.micro] if now is not None and now.micro else [])}))

    def priced(self, question: Question) -> Present | None:
        """Returns what the settings take; None where there are none.

        Args: `question` is what the plan will answer.
        """
        return None if self.baseline is None else present(question, self.baseline)


@dataclass(frozen=True, kw_only=True)
class Present:
    """Somebody's present settings with what they take."""

    settings: Baseline
    price: PricedPins

    def compared(self, plan: Plan) -> tuple[dict[str, object], list[str]]:
        """Returns how a plan compares with the settings, as data and as lines.

        Args: `plan` answers the question that the settings were priced for.
        """
        from planner.export import comparison

        told, price = self.settings, self.price
        line = comparison(
            present_ns=price.step_ns,
            missing_bytes=price.missing_bytes,
            planned_ns=plan.prediction.step_ns,
            devices=(told.devices, len(plan.places)),
        )
        data = {"file": told.where, "step_ns": price.step_ns, "missing_bytes": price.missing_bytes}
        return {**data, "notes": list(told.notes)}, [line, *(f"  {note}" for note in told.notes)]


def _settings(file: Path) -> Settings:
    """Returns the settings in a file; BadInput where it is of no trainer that is known."""
    from planner.export import read_settings

    return read_settings(files.read_text(file, max_bytes=MOST_BYTES), str(file))


def present(question: Question, file: Path) -> Present:
    """Returns what somebody's present settings take.

    Args: `question` is what a plan will answer; `file` has the settings.
    Raises: BadInput where they do not fit the model, the batch or the machines.
    """
    from planner import export as trainers
    from planner import milp
    from planner.cluster import total_devices

    told, where = _settings(file), str(file)
    whole = trainers.completed(
        told,
        batch=question.batch,
        devices=total_devices(question.cluster),
        layers=[layer.name for layer in question.profile.graph.layers],
        where=where,
    )
    precision = told.precision if told.precision is not None else question.precision
    known = sorted({key.precision for key in question.profile.settings})
    if precision is not None and precision not in known:
        said = f"trains in {precision}, which was not profiled"
        allowed = f"settings for {' or '.join(known)}, or `shardwright profile --precision {precision}`"
        raise BadInput(f"cannot be priced: {said}", where=where, allowed=allowed)
    asked = replace(question, fix=whole.fix, schedules=None, precision=precision, execution=told.execution)
    try:
        instance = asked.instance()
    except BadInput as error:
        raise BadInput(f"cannot be priced: {error.what}", where=where, allowed=error.allowed) from None
    price = milp.price_pins(instance, whole.order)
    if price is None:
        allowed = f"micro-batches of {', '.join(map(str, instance.micros()))} samples, and whole nodes"
        said = f"micro-batches of {whole.settings.micro} on {whole.devices} devices cannot be priced"
        raise BadInput(said, where=where, allowed=allowed)
    return Present(settings=whole, price=price)
