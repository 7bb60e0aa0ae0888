"""The command `prune`: which entries of trained weights are kept, written as masks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from planner import cli as commands
from planner import files, terminal
from planner.cli import Force, Json
from planner.errors import BadInput
from planner.units import plural


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """The options of the command `prune`."""

    weights: Annotated[
        Path, typer.Argument(metavar="RUN|WEIGHTS", help="a run folder, or safetensors: a file or a folder")
    ]
    keep: Annotated[float, typer.Option(metavar="SHARE", help="of the entries, those of largest magnitude")]
    by: Annotated[str, typer.Option(metavar="layer|global", help="the share of every tensor, or of all")] = (
        "layer"
    )
    only: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="names to prune; else all of two dims or more")
    ] = None
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="where to write")] = Path(
        "kept.safetensors"
    )
    force: Force = False
    as_json: Json = False


def register_prune(app: typer.Typer) -> None:
    """Adds the command `prune` to the command line.

    Args: `app` gets the command.
    """
    commands.add_command(
        app,
        "prune",
        PruneOptions,
        prune,
        about="Choose which entries of trained weights to keep, by magnitude; nothing is trained.",
        example="shardwright prune runs/mine --keep 0.1 -o kept.safetensors",
    )


def prune(options: PruneOptions) -> None:
    """Writes the masks of weights, and says what they keep.

    Raises: BadInput where the share means nothing, or the weights cannot be pruned.
    """
    from planner import kept
    from runtime import checkpoint

    if options.by not in ("layer", "global"):
        raise BadInput(f"there is no way '{options.by}'", where="--by", allowed="layer, global")
    files.refuse_overwrite(options.output, options.force)
    by: kept.By = "global" if options.by == "global" else "layer"
    masks = kept.prune(
        checkpoint.numbers(options.weights), options.keep, by=by, only=tuple(options.only or ())
    )
    kept.dump(masks, options.output)
    stay, whole = sum(masks.counts.values()), sum(masks.elements.values())
    data = {"kept": str(options.output), "digest": masks.digest, "entries": stay, "of": whole}
    said = (
        f"{stay:,} of {whole:,} entries of {plural(len(masks.indices), 'weight')} stay ({stay / whole:.1%})"
    )
    written = f"masks written to {options.output}     next: shardwright plan --kept {options.output}"
    terminal.Output(as_json=options.as_json).result(data, lambda: f"{said}\n{written}")
