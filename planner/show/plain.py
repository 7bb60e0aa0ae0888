"""Plans, profiles and clusters in a few lines of plain text, for `show` and for the end of other commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.cluster import Cluster, total_devices
from planner.model import ModelGraph
from planner.plan import Plan, Prediction, StagePlan
from planner.profile import CostKey, LayerCost, Profile, kept_values
from planner.show.proof import _certificate
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_rate

_NAMED = 6  # layers of a list


def of_plan(plan: Plan) -> str:
    parts = [decision(plan), "", _stages(plan), "", _certificate(plan)]
    return "\n".join(part for part in parts if part is not None)


def decision(plan: Plan) -> str:
    """The decision in one sentence."""
    axes, schedule, batch = plan.axes, plan.schedule, plan.batch
    split = [f"{axes.data} data-parallel groups" if axes.data > 1 else ""]
    split.append(f"{axes.pipeline} pipeline workers" if axes.pipeline > 1 else "")
    split.append(f"{axes.spatial} shards of each sample" if axes.spatial > 1 else "")
    how = " x ".join(part for part in split if part) or "one process"
    family = schedule.family + (f" with {schedule.pairs} pairs" if schedule.pairs > 1 else "")
    family += f" with {schedule.chunks} stages a worker" if schedule.chunks > 1 else ""
    recomputed = sum(stage.recompute for stage in plan.stages)
    extra = f", {recomputed} of {len(plan.stages)} stages recomputed" if recomputed else ""
    step = plan.prediction
    return (
        f"{plan.model.workload}{_arguments(plan.model.arguments)}: {how}; {family}, {batch.samples} samples a step as "
        f"{batch.micros} micro-batch{'es' if batch.micros > 1 else ''} of {batch.micro} a group{extra}. Predicted step {format_duration(step.step_ns)} "
        f"({_bar(step)}), {format_rate(plan.batch.samples / (step.step_ns / 1e9))} samples/s.{_rests(plan)}"
    )


def _arguments(arguments: Mapping[str, object]) -> str:
    return f" ({', '.join(f'{name}={value}' for name, value in arguments.items())})" if arguments else ""


def _rests(plan: Plan) -> str:
    return f" Times are as corrected by {plan.fitted.summary}." if plan.fitted else ""


def _bar(step: Prediction) -> str:
    if step.low_ns == step.high_ns:
        return "its costs carry no spread, hence no error bar"
    return f"{format_duration(step.low_ns)} to {format_duration(step.high_ns)}"


def _stages(plan: Plan) -> str:
    rows = []
    for index, (stage, times) in enumerate(zip(plan.stages, plan.times, strict=True)):
        workers = sorted({place[index] for place in plan.schedule.place})
        rows.append(
            (
                index,
                ",".join(map(str, workers)),
                _span(stage),
                format_duration(times.forward_ns),
                format_duration(times.backward_ns),
                max((plan.prediction.memory[worker].total for worker in workers), default=0),
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
    """How samples lie in a stage, from its first layer on."""
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
        f"{profile.workload}{_arguments(profile.arguments)} on {profile.device} ({profile.source}): "
        f"{len(graph.layers)} layers, {len({x.signature for x in graph.layers})} distinct, "
        f"{sum(_size(graph)):,} parameters"
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
    return "\n\n".join([head, columns(rows, heads), *_missing(profile)])


def _size(graph: ModelGraph) -> Iterable[int]:
    for parameter in graph.parameters:
        count = 1
        for length in parameter.shape:
            count *= length
        yield count


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
    """Of the layers that have a row; a Value made by one without counts as the graph has it."""
    values = 0
    for name in kept_values(profile, tuple(known), key):
        value = profile.graph.value[name]
        priced = not value.producer or value.producer in known
        values += profile.value_bytes(name, key) if priced else value.bytes(key.micro)
    return values + sum(cost.own_saved_bytes for cost in known.values())


def _missing(profile: Profile) -> Iterator[str]:
    """Why layers have no row; the sums above are without them."""
    failed: dict[tuple[str, str], list[str]] = {}
    for key, why in sorted(profile.failures.items()):
        named = (x.name for x in profile.graph.layers if x.signature == key.signature)
        failed.setdefault((_setting(key), why), []).extend(named)
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


def _setting(key: CostKey) -> str:
    return f"micro-batch {key.micro}" + (f" in parts {'x'.join(map(str, key.split))}" if key.split else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


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
