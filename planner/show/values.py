"""Views of the planner's values, one after the other: each as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import prod
from typing import TYPE_CHECKING, Protocol

from planner.cluster import PARTS, Cluster, Corrections, MemoryCorrection
from planner.model import ModelGraph, served
from planner.plan import Certificate, Plan, Prediction, stage_rows
from planner.profile import Profile
from planner.show import pictures, timelines
from planner.show.markup import block, folded, paragraph, table
from planner.show.plain import of_cluster, of_profile
from planner.show.proof import plan_lines, proof_list
from planner.show.rivals import RIVAL_HEADS, rival_rows
from planner.terminal import columns
from planner.timeline import COMPARED, Comparison, Timeline, compared_rows, in_words
from planner.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from planner.simulate import RunRecord


class HasGraph(Protocol):
    """A value that holds a model graph, such as a captured module."""

    @property
    def graph(self) -> ModelGraph: ...


class HasLines(Protocol):
    """A value that is a table: its heads, and its lines as text."""

    def heads(self) -> Sequence[str]: ...

    def lines(self) -> Sequence[Sequence[str]]: ...


_WIDE = 100  # columns of text where no terminal says


def timeline_text(found: Timeline) -> str:
    return timelines.terminal(found, width=_WIDE, colour=False)


def timeline_html(found: Timeline) -> str:
    steps = sorted(set(found.step.tolist()))
    one = found.of_step(steps[len(steps) // 2]) if len(steps) > 1 else found
    said = paragraph(f"step {steps[len(steps) // 2]} of {len(steps)}") if len(steps) > 1 else ""
    return block(said, pictures.timeline(one))


def plan_html(plan: Plan) -> str:
    """Draws a plan for a notebook.

    Returns: HTML with its three lines, its timeline and memory, and its stages, rivals and proof folded.
    """
    from planner.simulate import simulate_plan

    rows = stage_rows(plan)
    return block(
        *(paragraph(line.strip()) for line in plan_lines(plan)),
        pictures.timeline(simulate_plan(plan), "worker {}".format),
        pictures.plan_memory(plan.prediction.memory),
        folded(plural(len(rows), "stage"), table(tuple(rows[0]), (row.values() for row in _shown(rows)))),
        _proof_html(plan),
    )


def _proof_html(plan: Plan) -> str:
    proof, rows = proof_list(plan), rival_rows(plan)
    if proof is None:
        return ""
    bounds = table(("", "", ""), proof.bounds)
    space = table(("searched", proof.searched), [*proof.space, *proof.closing])
    rivals = folded("Why this plan", table(RIVAL_HEADS, (row.cells() for row in rows))) if rows else ""
    return rivals + folded("What was searched", bounds + space)


def _shown(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Returns rows as people read them: durations and bytes with units, long lists by their ends."""
    return [{name: _cell(name, value) for name, value in row.items()} for row in rows]


def _cell(name: str, value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(value) < 4 else f"{value[0]} … {value[-1]} ({len(value)})"
    if isinstance(value, bool):
        return "yes" if value else ""
    if name.endswith("_ns") and isinstance(value, int | float):
        return format_duration(value)
    return format_bytes(value) if name.endswith("_bytes") and isinstance(value, int | float) else value


def profile_html(found: Profile) -> str:
    head = of_profile(found).partition("\n")[0]
    rows = found.to_rows()
    heads = tuple(rows[0]) if rows else ("layer",)
    listed = table(heads, (row.values() for row in _shown(rows)))
    return block(
        paragraph(head),
        pictures.strip(found.graph, layer_ns(found)),
        folded(plural(len(rows), "row"), listed),
    )


def layer_ns(found: Profile) -> dict[str, float]:
    """Returns the time of forward and backward of each layer at the least setting of whole samples.

    Returns: nanoseconds by layer; empty where nothing was profiled.
    """
    key = min(found.settings, default=None)
    if key is None:
        return {}
    costs = {layer.name: found.cost(layer.name, key) for layer in found.graph.layers}
    return {name: 1e9 * (cost.forward.median + cost.backward.median) for name, cost in costs.items()}


def cluster_html(found: Cluster) -> str:
    head = of_cluster(found).partition("\n")[0]
    rows = found.to_rows()
    links = [
        (name, format_duration(1e9 * link.latency_s), f"{format_bytes(link.bandwidth_bytes_per_s)}/s")
        for name, link in found.links
        if link
    ]
    listed = table(tuple(rows[0]), (row.values() for row in _shown(rows)))
    return block(
        paragraph(head), listed, table(("link within", "latency", "bandwidth"), links) if links else ""
    )


def graph_text(found: ModelGraph) -> str:
    rows = _shown(found.to_rows())
    shown = rows if len(rows) <= 40 else [*rows[:20], *rows[-20:]]
    named = [(row["layer"], row["parameters"], row["flops"], row["reads"], row["makes"]) for row in shown]
    return f"{_graph_head(found)}\n\n{columns(named, ('layer', 'parameters', 'flops', 'reads', 'makes'))}"


def _graph_head(found: ModelGraph) -> str:
    size = sum(prod(parameter.shape) for parameter in found.parameters)
    tied = sum(len(parameter.users) > 1 for parameter in found.parameters)
    shared = f", {tied} of them tied" if tied else ""
    return f"{len(found.layers)} layers, {len(found.parameters)} parameters of {size:,} elements{shared}; {served(found)}"


def graph_html(found: ModelGraph) -> str:
    rows = _shown(found.to_rows())
    listed = table(tuple(rows[0]), (row.values() for row in rows))
    return block(
        paragraph(_graph_head(found)), pictures.strip(found), folded(plural(len(rows), "layer"), listed)
    )


def comparison_text(found: Comparison) -> str:
    return f"{in_words(found)}\n\n{columns(compared_rows(found), COMPARED)}"


def comparison_html(found: Comparison) -> str:
    return block(paragraph(in_words(found)), table(COMPARED, compared_rows(found)))


def run_text(found: RunRecord) -> str:
    return "\n".join(filter(None, (_run_head(found), found.machine, comparison_text(found.comparison))))


def _run_head(found: RunRecord) -> str:
    losses = [found.losses[step] for step in sorted(found.losses)]
    said = f"; loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last" if losses else ""
    return f"{found.folder}: {found.state}, {len(losses)} steps{said}"


def run_html(found: RunRecord) -> str:
    step = found.measured.of_step(found.typical_step)
    return block(
        paragraph(" ".join(filter(None, (_run_head(found), found.machine)))),
        paragraph(f"measured, step {found.typical_step}"),
        pictures.timeline(step),
        paragraph("predicted"),
        pictures.timeline(found.predicted, "worker {}".format),
        comparison_html(found.comparison),
    )


def captured_text(found: HasGraph) -> str:
    return graph_text(found.graph)


def captured_html(found: HasGraph) -> str:
    return graph_html(found.graph)


def lines_text(found: HasLines) -> str:
    return columns(found.lines(), found.heads())


def runs_text(found: HasLines) -> str:
    return lines_text(found) if found.lines() else "no runs"


def lines_html(found: HasLines) -> str:
    return table(found.heads(), found.lines())


def preformatted(found: object) -> str:
    """Returns the text of a value as HTML, with its lines and columns as they are.

    Args: `found` is shown by its `repr`.
    """
    return f"<pre>{escape(repr(found))}</pre>"


def of_prediction(found: Prediction) -> str:
    """Returns a prediction: the step with its error bar, and the memory of every worker."""
    ends = f" ({format_duration(found.low_ns)} to {format_duration(found.high_ns)})"
    rows = [
        (worker, *(format_bytes(getattr(part, name)) for name in _HELD), format_bytes(part.limit))
        for worker, part in enumerate(found.memory)
    ]
    head = f"{format_duration(found.step_ns)} a step{ends if found.low_ns < found.high_ns else ''}"
    return f"{head}\n\n{columns(rows, ('worker', *_HELD, 'limit'))}"


_HELD = ("parameters", "gradients", "optimizer", "activations", "buffers", "margin")


def of_certificate(found: Certificate) -> str:
    """Returns a certificate: the step, its lower bound and the gap, and how much was searched."""
    lines = [
        f"step {format_duration(found.objective_ns)}, lower bound {format_duration(found.bound_ns)}: gap "
        f"{100 * found.gap:.2f} %"
    ]
    if (met := found.searched) is not None:
        lines.append(
            f"{met.configurations:,} configurations: {met.solved:,} solved, {met.ruled_out:,} ruled out by a bound, "
            f"{met.open:,} left open"
        )
    return "\n".join(lines)


def corrections_text(found: Corrections) -> str:
    """Returns what runs have shown of costs, and the error that is left."""
    names = (*dict.fromkeys(PARTS.values()), "hop", "sum")
    rows = [
        (
            name,
            format_duration(row.start_s * 1e9),
            f"{row.factor:.4g}",
            f"{row.spread:.1%}",
            str(row.samples),
        )
        for name in names
        if (row := getattr(found, name)) is not None
    ]
    listed = columns(rows, ("time", "starts at", "factor", "spread", "from"))
    memory = "" if found.memory is None else f"\n{_memory_corrected(found.memory)}"
    return f"steps are then off by about {found.step_spread:.1%}; by {found.summary}\n\n{listed}{memory}"


def _memory_corrected(found: MemoryCorrection) -> str:
    start = f"{format_bytes(found.start_bytes)} + " if found.start_bytes else ""
    return (
        f"a device's peak is {start}{found.factor:.4g} times the predicted one, up to {found.spread:.1%} more"
    )
