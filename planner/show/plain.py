"""Plans, profiles and clusters in a few lines of plain text, for `show` and for the end of other commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from planner.arrays import NS_PER_S
from planner.cluster import NOTABLE_SHARE, Cluster, total_devices
from planner.group import ring_sent
from planner.layout import GroupLayout, LocalGraph, path
from planner.model import ModelGraph
from planner.plan import Plan, StagePlan, graph_on_group
from planner.profile import CostKey, LayerCost, Profile, kept_values
from planner.show.proof import plan_lines, shown_arguments
from planner.show.rivals import rivals_text
from planner.spatial import GETITEM
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from planner.limits import SearchProgress

_NAMED = 6  # layers of a list


def of_plan(plan: Plan, layouts: ModelGraph | None = None) -> str:
    """Returns a plan in its three lines, with its stages and the plans that were priced beside it.

    Args: a plan without a certificate has no table of rivals; with `layouts`, the model of a plan with a cut, there is
        a table of its operations instead.
    """
    if layouts is not None:
        return layouts_text(plan, layouts)
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
    head = (
        "stage",
        "worker",
        "layers",
        *(["in parts"] if any(x.cut for x in plan.stages) else ["samples"] if cut else []),
        "forward",
        "backward",
    )
    return columns(shown, (*head, "peak of worker", ""))


def _space(stage: StagePlan) -> str:
    """Returns how samples lie in a stage, from its first layer on, or which layers have tensors in parts."""
    if stage.cut:
        return ", ".join(f"{line.layers} by {'+'.join(filter(None, line.factors))}" for line in stage.cut)
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
    heads: tuple[str, ...] = ("micro", "parts", "precision", "execution", "forward", "backward", "known to")
    heads += ("kept for backward", "layers without a row")
    told = [i for i in range(len(heads)) if any(row[i] != "" for row in rows)]
    table = columns([[row[i] for i in told] for row in rows], [heads[i] for i in told])
    return "\n\n".join([head, table, *_beside(profile), *_missing(profile)])


def _beside(profile: Profile) -> Iterator[str]:
    """Yields that the machine was busy with something else, and what reading samples takes, where either is so."""
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
    times = [time for cost in known.values() for time in (cost.forward, cost.backward)]
    spread = sum(x.spread for x in times) / (sum(x.median for x in times) or 1.0)
    return (
        key.micro,
        "x".join(map(str, key.split)) or "whole",
        key.precision,
        key.execution,
        format_duration(1e9 * sum(cost.forward.median for cost in known.values())),
        format_duration(1e9 * sum(cost.backward.median for cost in known.values())),
        f"±{format_percent(spread)}" if spread else "",
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


def of_stage(found: StagePlan) -> str:
    more = [word for word in (_space(found) if found.spatial else "", _again(found)) if word]
    return f"{_span(found)}{''.join(f', {word}' for word in more)}"


def words(found: SearchProgress) -> list[str]:
    """Returns how far a search is in words for one line, what matters most first."""
    said = [f"{found.done:,} of {found.all:,} configurations"]
    said += ["nothing found yet" if found.best_ns is None else f"best {format_duration(found.best_ns)}"]
    if found.bound_ns is not None and found.slower is not None:
        said.append(f"none below {format_duration(found.bound_ns)}")
        said.append(f"at most {format_percent(found.slower)} slower than the best")
    return said


def other_device(profiled: str, machines: Cluster) -> str:
    """Returns a note for costs of a device that no machine has."""
    there = ", ".join(sorted({group.device for group in machines.nodes}))
    return (
        f"profiled on {profiled}, planned for {there}: slower devices are priced by the ratio of their peak rates, "
        "faster ones as the profiled one"
    )


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


def layout_rows(plan: Plan, graph: ModelGraph) -> list[dict[str, object]]:
    """Returns how every operation of a plan's model lies on its group: a row an operation, as data.

    Args: `graph` is the model of the plan, with its operations.
    Returns: the factor along each axis, how the result lies, and what is sent for it, in elements.
    """
    found, stage_of = graph_on_group(plan, graph), {x: i for i, s in enumerate(plan.stages) for x in s.layers}
    rows, seen = [], set[tuple[str, GroupLayout, int]]()
    for done in found.placed:
        operation, steps, sent = done.operation, list[str](), [0.0, 0.0]
        if operation.operation == GETITEM:
            continue
        ways = [(x, found.layouts[x][0], done.inputs[argument]) for argument, x in done.reads()]
        ways += [(operation.name, a, b) for a, b in _resolved(found, operation.name)]
        for name, source, target in ways:
            key = name, target, stage_of.get(operation.layer, 0)
            if source == target or key in seen:
                continue
            seen.add(key)
            trained = name in found.trained
            passages = path(source, target, found.mesh, trained=trained)
            steps += [f"{step.forward}/{step.backward}" if trained else step.forward for step in passages]
            for step in passages:
                sent = [a + b for a, b in zip(sent, step.sent(found.mesh, trained=trained), strict=True)]
        if any(round_ := ring_sent(done, found.mesh)):
            steps, sent = [*steps, "ring"], [a + b for a, b in zip(sent, round_, strict=True)]
        rows.append(
            {
                "layer": operation.layer,
                "operation": operation.operation,
                "factors": [factor or "alike" for factor in done.factors],
                "makes": found.layouts[operation.name][0].text(),
                "conversions": steps,
                "forward": sent[0],
                "backward": sent[1],
            }
        )
    return rows


def _resolved(found: LocalGraph, name: str) -> Iterator[tuple[GroupLayout, GroupLayout]]:
    """Yields the layouts of addends that are summed up as soon as they are made, before and after."""
    if name in found.made:
        yield from zip(found.made[name], found.layouts[name], strict=True)


def plan_data(plan: Plan, layouts: ModelGraph) -> dict[str, object]:
    """Returns `layout_rows` under a name."""
    return {"operations": layout_rows(plan, layouts)}


def layouts_text(plan: Plan, graph: ModelGraph) -> str:
    """Returns `layout_rows` as a table, with bytes of fp32 in the place of elements.

    Args: those of `layout_rows`.
    """
    rows = layout_rows(plan, graph)
    shown = [
        (
            row["layer"],
            str(row["operation"]).removeprefix("aten."),
            "+".join(row["factors"]),  # type: ignore[arg-type]
            row["makes"],
            ", ".join(row["conversions"]),  # type: ignore[arg-type]
            _sent(row["forward"]),
            _sent(row["backward"]),
        )
        for row in rows
    ]
    head = ("layer", "operation", "takes", "makes", "converts", "forward", "backward")
    total = [sum(float(str(row[way])) for row in rows) for way in ("forward", "backward")]
    micro = f"a rank sends {_sent(total[0])} forward and {_sent(total[1])} backward, a micro-batch in fp32"
    return f"{columns(shown, head)}\n\n{micro}"


def _sent(elements: object) -> str:
    return format_bytes(round(4 * float(str(elements)))) if elements else ""
