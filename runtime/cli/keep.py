"""The commands that say what is kept: `prune` of the entries of weights, and `dedup` of the samples of a dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner import cli as commands
from planner import files, terminal
from planner.cli import Force, Json, WorkloadArguments
from planner.errors import BadInput
from planner.units import plural

if TYPE_CHECKING:
    from planner.workload import Workload
    from runtime.dedup import FoundNear

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SHOWN = 10  # pairs with other labels


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
        list[str] | None,
        typer.Option(metavar="GLOB", help="names to prune; else all with two dims of more than one entry"),
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


@dataclass(frozen=True, kw_only=True)
class DedupOptions(WorkloadArguments):
    """The options of the command `dedup`."""

    source: Annotated[
        str, typer.Argument(metavar="WORKLOAD|FOLDER", help="with dataset(); or pictures, a folder a label")
    ]
    hash: Annotated[str, typer.Option(metavar="phash|ahash|dhash", help="what makes 64 bits")] = "phash"
    threshold: Annotated[int, typer.Option(help="bits in which near samples differ, at most")] = 10
    curve: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="train on what thresholds keep, and on random ones")
    ] = None
    steps: Annotated[int, typer.Option(help="of each training of --curve")] = 100
    output: Annotated[Path, typer.Option("--output", "-o", help="index to write")] = Path("kept.npy")
    force: Force = False
    as_json: Json = False


def register_dedup(app: typer.Typer) -> None:
    """Adds the command `dedup` to the command line.

    Args: `app` gets the command.
    """
    about = "Find samples that are nearly alike, and write which ones to train on. Nothing is deleted."
    example = "shardwright dedup pictures/ -o kept.npy"
    commands.add_command(app, "dedup", DedupOptions, dedup, about=about, example=example)


def dedup(options: DedupOptions) -> None:
    """Writes the index of the samples to keep, and says what was found.

    Raises: BadInput where there are no pictures, or no such hash.
    """
    from runtime.dedup import HASHES, find, save_index

    if options.hash not in HASHES:
        raise BadInput(f"there is no hash '{options.hash}'", where="--hash", allowed=", ".join(HASHES))
    files.refuse_overwrite(options.output, options.force)
    workload, data = _source(options)
    with terminal.Report(f"reading {options.source}") as report:
        found = find(data, options.hash, options.threshold, lambda n: report.at(n / len(data)))
    save_index(options.output, found.kept, found.contents)
    facts: dict[str, Any] = {"samples": len(data), "kept": len(found.kept), "copies": found.copies}
    facts |= {"near": found.near, "threshold": options.threshold, "output": str(options.output)}
    facts |= {"other_labels": found.other_labels.tolist(), "curve": _curve(options, workload, found)}
    terminal.Output(as_json=options.as_json).result(facts, lambda: _found(facts, options.hash))


def _found(facts: dict[str, Any], kind: str) -> str:
    pairs, curve = facts["other_labels"], facts["curve"]
    lines = [
        f"{facts['kept']} of {facts['samples']} samples are kept: {facts['copies']} are copies, and {facts['near']} "
        f"differ from one of their label in at most {facts['threshold']} bits of {kind}"
    ]
    if pairs:
        lines += [f"{len(pairs)} pairs are as near and have other labels, which may be mistakes:"]
        lines += [f"  samples {a} and {b}" for a, b in pairs[:SHOWN]]
    if curve:
        rows = [[f"{x:.5g}" if isinstance(x, float) else x for x in row.values()] for row in curve]
        lines += ["", terminal.columns(rows, list(curve[0])), ""]
    written = f"index written to {facts['output']}"
    return "\n".join([*lines, f"{written}     next: shardwright launch PLAN --samples {facts['output']}"])


def _source(options: DedupOptions) -> tuple[Workload | None, Sequence[Any]]:
    from planner.workload import load

    folder = Path(options.source)
    if folder.is_dir() and not (folder / "model.json").exists():
        return None, _Pictures(folder)
    workload = load(options.source, options.arguments())
    data: Any = workload.dataset()
    if data is None or not hasattr(data, "__getitem__"):
        raise BadInput("has no dataset() with indices", where=workload.where, allowed="one, or pictures")
    return workload, data


class _Pictures(Sequence[Any]):
    """The pictures of a folder in the order of their paths, each with the name of its folder as label."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(x for x in folder.rglob("*") if x.suffix.lower() in PICTURES)
        if not self._paths:
            raise BadInput("holds no pictures", where=str(folder), allowed=", ".join(PICTURES))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> tuple[object, str]:
        path = self._paths[index]
        try:
            from PIL import Image  # which is needed for folders alone

            with Image.open(path) as picture:
                return picture.convert("RGB"), path.parent.name
        except ImportError:
            raise BadInput("pictures need Pillow", where="dedup", allowed="pip install pillow") from None
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot be read: {error}", where=str(path)) from None


def _curve(options: DedupOptions, workload: Workload | None, found: FoundNear) -> list[dict[str, Any]]:
    """Returns what a plan's model learns from what is kept, beside as many samples drawn at random."""
    if options.curve is None:
        return []
    if workload is None or "valid_dataset" not in workload.functions:
        raise BadInput("nothing to train on", where="--curve", allowed="a workload with valid_dataset()")
    import numpy as np

    from planner import plan as plans
    from runtime.dedup import kept_of, save_index
    from runtime.launch import launch_inline
    from runtime.runfolder import Paths, evaluations_of

    chosen, draw, rows = plans.load(options.curve), np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as folder:
        for threshold in sorted({0, options.threshold // 2, options.threshold}):
            kept = kept_of(found.contents, found.bits, found.labels, threshold).kept
            chance = np.sort(draw.choice(len(found.bits), len(kept), replace=False))
            row: dict[str, Any] = {"threshold": threshold, "kept": len(kept)}
            for name, indices in (("", kept), (" at random", chance)):
                run = Path(folder) / f"{threshold}{name}"
                save_index(index := run.with_suffix(".npy"), indices, found.contents)
                told: dict[str, Any] = {"samples": str(index), "eval_every": options.steps}
                launch_inline(chosen, run, steps=options.steps, workload=workload, **told)
                last = evaluations_of(Paths(run))[-1].values
                row |= {f"{value}{name}": x for value, x in last.items()}
            rows.append(row)
    return rows
