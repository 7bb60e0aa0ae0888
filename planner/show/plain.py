"""Plans, profiles and clusters in a few lines of plain text, for `show` and for the end of other commands.

Small pieces of HTML for notebooks and the report: tables, paragraphs, folds. Everything users name is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import prod
from typing import TYPE_CHECKING

from planner.arrays import NS_PER_S
from planner.cluster import NOTABLE_SHARE, Cluster, total_devices
from planner.plan import Plan, StagePlan
from planner.profile import CostKey, LayerCost, Profile, kept_values
from planner.show.proof import plan_lines, shown_arguments
from planner.show.rivals import rivals_text
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from planner.milp import SearchProgress

_NAMED = 6  # layers of a list


def of_plan(plan: Plan) -> str:
    """Returns a plan in its three lines, with its stages and the plans that were priced beside it.

    Args: a plan without a certificate has no table of rivals.
    """
    return "\n\n".join(
        part for part in ("\n".join(plan_lines(plan)), _stages(plan), rivals_text(plan)) if part
    )


def _stages(plan: Plan) -> str:
    rows = []
    for index, (stage, times) in enumerate(zip(plan.stages, plan.times, strict=True)):
        workers = sorted({place[index] for place in plan.schedule.place})
        held = [memory.total - memory.margin for memory in map(plan.prediction.memory.__getitem__, workers)]
        rows.append(
            (
                index,
                ",".join(map(str, workers)),
                _span(stage),
                format_duration(times.forward_ns),
                format_duration(times.backward_ns),
                max(held, default=0),
                _again(stage),
            )
        )
    cut = plan.axes.spatial > 1
    shown = [
        (*row[:3], *([_space(stage)] if cut else []), *row[3:5], format_bytes(row[5]), row[6])
        for row, stage in zip(rows, plan.stages, strict=True)
    ]
    head = ("stage", "worker", "layers", *(["samples"] if cut else []), "forward", "backward")
    return columns(shown, (*head, "peak of worker", ""))


def _space(stage: StagePlan) -> str:
    """Returns how samples lie in a stage, from its first layer on."""
    parts = ["x".join(map(str, stage.spatial)) + " parts" if stage.spatial else "whole"]
    for turn in stage.regrid:
        grid = "shared whole" if turn.samples else "x".join(map(str, turn.spatial)) + " parts"
        parts.append(f"{grid} from {turn.before} on")
    if stage.gather_before:
        parts.append(f"whole from {stage.gather_before} on")
    return ", ".join(parts)


def _again(stage: StagePlan) -> str:
    if not stage.recompute_before:
        return "recompute" if stage.recompute else ""
    return f"recompute before {stage.recompute_before}"


def _span(stage: StagePlan) -> str:
    first, last, count = stage.layers[0], stage.layers[-1], len(stage.layers)
    return first if count == 1 else f"{first} .. {last} ({count})"


def of_profile(profile: Profile) -> str:
    graph = profile.graph
    keys = sorted({key._replace(signature="") for key in profile.costs})
    rows = [_totals(profile, key) for key in keys]
    head = (
        f"{profile.workload}{shown_arguments(profile.arguments)} on {profile.device} ({profile.source}): "
        f"{len(graph.layers)} layers, {len({x.signature for x in graph.layers})} distinct, "
        f"{sum(prod(x.shape) for x in graph.parameters):,} parameters"
    )
    heads = (
        "micro",
        "parts",
        "precision",
        "execution",
        "forward",
        "backward",
        "kept for backward",
        "layers without a row",
    )
    return "\n\n".join([head, columns(rows, heads), *_beside(profile), *_missing(profile)])


def _beside(profile: Profile) -> Iterator[str]:
    """Yields a sentence where the machine was busy with something else, and one on reading samples."""
    if profile.others > NOTABLE_SHARE:
        yield (
            f"Other processes took {profile.others:.0%} of this machine while it was measured, so that times may be "
            "off by more than their spread. Measure again when the machine is idle."
        )
    if (cost := profile.samples) is not None:
        yield (
            f"One process takes {format_duration(cost.cold_s * NS_PER_S)} to read a sample of the dataset "
            f"({format_bytes(cost.sample_bytes)}), {format_duration(cost.warm_s * NS_PER_S)} when it reads it again, and "
            f"{format_duration(cost.collate_s * NS_PER_S)} to join it to a batch."
        )


def _totals(profile: Profile, key: CostKey) -> tuple[object, ...]:
    rows = {x.name: profile.costs.get(key._replace(signature=x.signature)) for x in profile.graph.layers}
    known = {name: cost for name, cost in rows.items() if cost is not None}
    return (
        key.micro,
        "x".join(map(str, key.split)) or "whole",
        key.precision,
        key.execution,
        format_duration(1e9 * sum(cost.forward.median for cost in known.values())),
        format_duration(1e9 * sum(cost.backward.median for cost in known.values())),
        format_bytes(_kept(profile, known, key)),
        len(rows) - len(known) or "",
    )


def _kept(profile: Profile, known: Mapping[str, LayerCost], key: CostKey) -> int:
    """Returns the bytes kept for the backward pass. A value made by a layer without a row counts as the graph has it."""
    values = 0
    for name in kept_values(profile, tuple(known), key):
        value = profile.graph.value[name]
        priced = not value.producer or value.producer in known
        values += profile.value_bytes(name, key) if priced else value.bytes(key.micro)
    return values + sum(cost.own_saved_bytes for cost in known.values())


def _missing(profile: Profile) -> Iterator[str]:
    """Yields why layers have no row; the sums of the table are without them."""
    failed: dict[tuple[str, str], list[str]] = {}
    for key, why in sorted(profile.failures.items()):
        named = (x.name for x in profile.graph.layers if x.signature == key.signature)
        parts = f" in parts {'x'.join(map(str, key.split))}" if key.split else ""
        failed.setdefault((f"micro-batch {key.micro}{parts}", why), []).extend(named)
    for (setting, why), layers in failed.items():
        yield f"Without a row at {setting}: {_few(layers)}. {why}"
    lacking: dict[tuple[str, ...], list[str]] = {}
    for split in sorted({key.split for key in profile.costs if key.split}):
        told = {k.signature for k in (*profile.costs, *profile.failures) if k.split == split}
        whole = tuple(x.name for x in profile.graph.layers if x.signature not in told)
        lacking.setdefault(whole, []).append("x".join(map(str, split)))
    for names, splits in lacking.items():
        if names:
            yield (
                f"Without a row in parts {', '.join(splits)}: {_few(names)}. No rule computes them on parts of a sample, "
                "or nothing that they read is cut: they see whole samples, and the sums above are without them."
            )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def words(found: SearchProgress) -> list[str]:
    """Returns how far a search is in words for one line, what matters most first."""
    said = [f"{found.done:,} of {found.all:,} configurations"]
    said += ["nothing found yet" if found.best_ns is None else f"best {format_duration(found.best_ns)}"]
    if found.bound_ns is not None and found.gap is not None:
        said += [f"none below {format_duration(found.bound_ns)}", f"gap {format_percent(found.gap)}"]
    return said


def of_cluster(cluster: Cluster) -> str:
    rows = [
        (group.count, group.devices_per_node, group.device, format_bytes(group.limit_bytes))
        for group in cluster.nodes
    ]
    table = columns(rows, ("nodes", "devices a node", "device", "memory for plans"))
    links = [
        (name, format_duration(1e9 * link.latency_s), f"{format_bytes(link.bandwidth_bytes_per_s)}/s")
        for name, link in cluster.links
        if link is not None
    ]
    head = f"{cluster.name}: {total_devices(cluster)} devices"
    return "\n\n".join(
        [head, table, *([columns(links, ("link within", "latency", "bandwidth"))] if links else [])]
    )


class Markup(str):
    """Text that is HTML already; a table leaves it as it is."""


def escaped(value: object) -> str:
    """Returns a value as text that HTML shows as it is.

    Args: `Markup` is HTML already and comes back unchanged.
    """
    return value if isinstance(value, Markup) else escape(str(value), quote=True)


def table(
    heads: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    most: int | None = 40,
    caption: str = "",
    ours: int | None = None,
) -> str:
    """Returns a table for a notebook or a page. Columns of numbers, with or without a unit, stand right.

    Args: cells that are not `Markup` are escaped; rows beyond `most` are counted; a `caption` names a table of the
    page, which scrolls by itself; the row numbered `ours` is marked.
    """
    listed = [[cell if isinstance(cell, Markup) else str(cell) for cell in row] for row in rows]
    shown = listed[:most]
    right = [
        all(not row[i] or _NUMBER.fullmatch(row[i]) for row in shown) and bool(shown)
        for i in range(len(heads))
    ]
    head = "".join(
        f'<th scope="col"{_side(r, bool(caption))}>{escaped(name)}</th>'
        for name, r in zip(heads, right, strict=True)
    )
    body = "".join(
        f"<tr{' class=ours' if at == ours else ''}>"
        + "".join(
            f"<td{_side(r, bool(caption))}>{escaped(cell)}</td>" for cell, r in zip(row, right, strict=True)
        )
        + "</tr>"
        for at, row in enumerate(shown)
    )
    label = f' aria-label="{escaped(caption)}"' if caption else ""
    whole = f"<table{label}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    if caption:
        whole = f'<div class="scroll" tabindex="0" role="region"{label}>{whole}</div>'
    more = (
        f"<p>and {len(listed) - len(shown)} more rows: to_rows() has all</p>"
        if len(listed) > len(shown)
        else ""
    )
    return whole + more


def _side(right: bool, page: bool) -> str:
    """Returns the class that the page's style knows, or the alignment for a notebook, which has no styles."""
    if page:
        return ' class="n"' if right else ' class="w"'
    return ' align="right"' if right else ' align="left"'


_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?: ?[^\W\d]{1,4}| ?%|×)?")  # with a unit, or without


def block(*parts: str) -> str:
    """Returns pieces of HTML as one.

    Args: empty pieces are left out.
    """
    return f"<div>{''.join(part for part in parts if part)}</div>"


def paragraph(words: object) -> str:
    """Returns a paragraph of plain words.

    Args: any value; its text is escaped.
    """
    return f"<p>{escaped(words)}</p>"


def folded(summary: str, inside: str) -> str:
    """Returns HTML that opens when its summary is clicked.

    Args: `summary` is plain words, `inside` is HTML already.
    """
    return f"<details><summary>{escaped(summary)}</summary>{inside}</details>"
