"""Sections on what happens: the decision at a glance, the step over time, the run, the memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.plan import Plan, coordinates, ranks_of_worker, world_size
from planner.report.contents import Contents
from planner.report.widgets import (
    MEMORY_PARTS,
    MOST_LISTED,
    chart,
    memory_bar,
    mesh,
    page_table,
    section,
    sparkline,
)
from planner.show import error_bar, escaped, folded, plan_lines
from planner.simulate import RunRecord
from planner.timeline import COLLECTIVE, COMPARED, SEND, compared_rows, in_words
from planner.units import format_bytes, format_duration, format_percent, format_rate, plural


def head(found: Contents) -> str:
    """Returns the head of the page.

    Returns: HTML with the three lines that say what the plan is, and its numbers at a glance.
    """
    lines = "<br>".join(escaped(line.strip()) for line in plan_lines(found.plan))
    return f'<h1>{escaped(found.plan.model.workload)}</h1><p class="lead">{lines}</p>{_tiles(found)}'


def _tiles(found: Contents) -> str:
    plan, proof = found.plan, found.plan.certificate
    tiles = [
        ("Predicted step", format_duration(plan.prediction.step_ns), error_bar(plan)),
        ("Throughput", format_rate(plan.batch.samples / (plan.prediction.step_ns / 1e9)), "samples/s"),
        ("Devices", f"{world_size(plan.axes):,}", mesh(plan)),
        _idle(found),
    ]
    if plan.prediction.memory:
        fullest = plan.prediction.memory[found.fullest]
        share = fullest.total / max(1, fullest.limit)
        tiles.append(
            (
                "Fullest device",
                format_percent(share),
                f"{format_bytes(fullest.total)} of {format_bytes(fullest.limit)}",
            )
        )
    tiles.append(
        ("Gap", f"{100 * proof.gap:.2f} %", "to the bound of the search")
        if proof
        else ("Gap", "none", "not proved")
    )
    if found.run is not None:
        ratio = found.run.comparison
        busy = ", on a busy machine" if found.run.machine else ""
        said = f"{ratio.ratio:.2f} times the prediction{busy}"
        tiles.insert(0, ("Measured step", format_duration(ratio.measured_step_ns), said))
    cells = "".join(
        f"<div><dt>{escaped(a)}</dt><dd>{escaped(b)}<small>{escaped(c)}</small></dd></div>"
        for a, b, c in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _idle(found: Contents) -> tuple[str, str, str]:
    if found.run is None:
        return "Idle", f"{found.idle_share:.1%}", "of the workers' time, bubbles and waits"
    compared = found.run.comparison
    share = compared.measured_idle_ns / max(1.0, compared.measured_step_ns)
    return "Idle", f"{share:.1%}", f"of the ranks' time; {found.idle_share:.1%} predicted"


def timeline(found: Contents) -> str:
    both = found.measured is not None
    lead = "One step, a row a worker" + (
        ": measured above, predicted below. Measured is the step of median length, of the replica that ended last."
        if both
        else ", as predicted."
    )
    buttons = "".join(
        f'<button type="button" data-act="{act}" aria-label="{label}">{sign}</button>'
        for act, label, sign in (
            ("in", "Zoom in", "+"), ("out", "Zoom out", "−"), ("left", "Earlier", "←"), ("right", "Later", "→"),
        )
    )  # fmt: skip
    told = f"Timeline of {plural(found.plan.axes.pipeline, 'worker')} over {format_duration(found.predicted.span_ns)}; the table below has the same in numbers"
    return section(
        "time",
        "The step over time",
        f'<p class="soft">{lead}</p>',
        f'<div class="bar">{buttons}<button type="button" data-act="all">Whole step</button>'
        f"{_trace_buttons(found)}</div>",
        chart("timeline", told),
        _legend(found),
        '<p class="hint" id="keys">Drag to move, Ctrl or Shift and wheel to zoom, double-click to zoom in. With the chart focused: '
        "arrows go from event to event and from worker to worker, Shift and an arrow moves, + and − zoom, 0 shows all.</p>",
        "<noscript><p>The chart needs JavaScript, which is in this file; the table has its figures.</p></noscript>",
        folded("The same as a table", _workers(found)),
    )


MOST_OF_A_TRACE = 40_000  # events; a megabyte of the page


def _trace_buttons(found: Contents) -> str:
    if found.most_of_a_trace > MOST_OF_A_TRACE:
        command = found.sources.report("--trace=trace.json")
        return f'<span class="hint">The trace is large: <code>{escaped(command)}</code> writes it.</span>'
    return (
        '<button type="button" data-act="trace">Download trace</button><button type="button" data-act="perfetto" '
        'title="In a new tab; the trace stays in your browser">Open in Perfetto</button>'
    )


def _legend(found: Contents) -> str:
    kinds = found.predicted.counts
    shades = [
        ("forward", "light", True),
        ("backward", "strong", "B" in kinds),
        ("input half", "strong", "I" in kinds),
        ("weight half", "middle", "I" in kinds),
    ]
    items = [
        (f"--pipe{hue}-{shade}", word + named)
        for hue, named in _hues(found.plan)
        for word, shade, shown in shades
        if shown
    ]
    items += [("--pipe0-light", "recompute, with a dark foot")] if "R" in kinds else []
    items.append(("--update", "update"))
    items += [("--wire", "message, below the bar")] if SEND in kinds else []
    items += [("--sum", "gradient sum, below the bar")] if COLLECTIVE in kinds else []
    items.append(("--idle", "idle (bubble)"))
    return (
        '<ul class="key">'
        + "".join(f'<li><i style="background:var({c})"></i>{escaped(w)}</li>' for c, w in items)
        + "</ul>"
    )


def _hues(plan: Plan) -> list[tuple[int, str]]:
    """Returns a colour for each pipe or, where there is one pipe, for each turn that it takes through the workers."""
    pipes, turns = len(plan.schedule.place), -(-len(plan.stages) // plan.axes.pipeline)
    word, count = ("pipe", pipes) if pipes > 1 else ("turn", turns)
    return [(hue, f" ({word} {hue})" if count > 1 else "") for hue in range(min(4, count))]


def _workers(found: Contents) -> str:
    rows = []
    edges = found.predicted.rows
    for worker, (busy, events) in enumerate(zip(found.busy_ns, edges, strict=True)):
        stages = sorted({s for row in found.plan.schedule.place for s, w in enumerate(row) if w == worker})
        idle = max(0.0, 1 - busy / max(1, found.step_ns))
        rows.append(
            (str(worker), ", ".join(map(str, stages)), format_duration(busy), f"{idle:.1%}", f"{events:,}")
        )
    return page_table(
        ("worker", "stages", "busy", "idle", "events"),
        rows,
        caption="Workers of one step",
    )


def measured(found: Contents, run: RunRecord) -> str:
    compared = run.comparison
    rows = compared_rows(compared)
    said = f"Over {plural(len(run.steps), 'step')} after the warm-up, {in_words(compared)}. The run is {run.state}."
    listed = page_table(COMPARED, rows, caption="Measured and predicted")
    parts = [f"<p><strong>{escaped(run.machine)}</strong></p>"] if run.machine else []
    parts.append(f"<p>{escaped(said)}</p>")
    parts += [*_steps(run), *_late(found, run)]
    if len(run.losses) > 1:
        losses = dict(sorted(run.losses.items()))
        told = f"Loss {losses[min(losses)]:.4f} at first, {losses[max(losses)]:.4f} at last"
        drawn = sparkline(losses, told, "{:.4f}".format)
        parts.append(f"<h3>Loss</h3>{drawn}<p class=soft>{escaped(told)}.</p>")
    parts.append(listed if len(rows) <= MOST_LISTED else folded(f"All {len(rows)} kinds of event", listed))
    return section("run", "Measured and predicted", *parts)


def _steps(run: RunRecord) -> Iterator[str]:
    """Yields the times of steps and how far they spread."""
    lengths = run.measured.step_lengths()
    steps = [lengths[step] for step in run.steps]
    if len(steps) > 1:
        low, middle, high = (format_duration(float(np.quantile(steps, share))) for share in (0.05, 0.5, 0.95))
        told = f"Step times from {format_duration(min(steps))} to {format_duration(max(steps))}"
        spread = f"Half of them took {middle} or less, and nine of ten between {low} and {high}."
        drawn = sparkline({step: lengths[step] for step in run.steps}, told, format_duration)
        yield f"<h3>Step times</h3>{drawn}<p class=soft>{escaped(told)}. {escaped(spread)}</p>"


_NOTABLE = 0.05  # of the time of the other ranks of a worker


def _late(found: Contents, run: RunRecord) -> Iterator[str]:
    """Yields the ranks by steps, and which ranks are slower than the others that do the same."""
    if found.busy_shares is None or not found.busy_shares[0]:
        return
    ranks, steps, shares = found.busy_shares
    after = np.array([step in set(run.steps) for step in steps])
    middles = dict(zip(ranks, np.nanmedian(shares[:, after], axis=1).tolist(), strict=True))
    rows = []
    for rank in ranks:
        worker = coordinates(run.plan.axes, rank).pipeline
        others = [
            middles[each]
            for each in ranks_of_worker(run.plan.axes, worker)
            if each in middles and each != rank
        ]
        beside = middles[rank] / float(np.median(others)) if others and np.median(others) else None
        rows.append((beside or 0.0, rank, worker, middles[rank], beside))
    slow = sorted((row for row in rows if row[0] > 1 + _NOTABLE), reverse=True)[:MOST_LISTED]
    told = f"Ranks by steps: how long each of {plural(len(ranks), 'rank')} was busy, against its prediction"
    yield "<h3>Ranks by steps</h3><p class=soft>How long each rank computed in each step, against its prediction. The redder, the later.</p>"
    yield chart("late", told)
    if slow:
        cells = [
            (str(r), str(w), f"{share:.2f}", f"+{100 * (b or 1) - 100:.0f} %") for _, r, w, share, b in slow
        ]
        heads = ("straggler", "worker", "of the prediction", "against ranks that do the same")
        yield page_table(heads, cells, caption="Stragglers")
    elif run.plan.axes.data * run.plan.axes.spatial > 1:
        yield "<p class=soft>No rank is more than 5 % slower than the others that do the same.</p>"


def memory_section(found: Contents) -> str:
    said = found.plan.prediction.memory
    rows = [
        (
            str(worker),
            memory_bar(each),
            format_bytes(each.total),
            format_bytes(each.limit),
            format_percent(each.total / max(1, each.limit)),
        )
        for worker, each in enumerate(said)
    ]
    key = "".join(f'<li><i style="background:var({shade})"></i>{name}</li>' for name, shade in MEMORY_PARTS)
    listed = page_table(
        ("worker", "what holds it at the peak", "peak", "limit", ""),
        rows,
        caption="Memory of each worker",
    )
    fullest = ""
    if said:
        each = said[found.fullest]
        fullest = f"<p>Fullest is worker {found.fullest}: {format_bytes(each.total)} of {format_bytes(each.limit)}.</p>{memory_bar(each)}"
    return section(
        "memory",
        "Memory against the limit",
        fullest,
        f'<ul class="key">{key}</ul>',
        listed if len(rows) <= MOST_LISTED else folded(f"All {len(rows)} workers", listed),
        _memory_over_time(found),
    )


def _memory_over_time(found: Contents) -> str:
    if found.memory_lines is None:
        why = (
            "the profile's sizes do not lead to this plan's"
            if found.profile is not None
            else "that needs the sizes in the profile: give it with --profile"
        )
        return f'<p class="soft">Over time: not drawn, {why}.</p>'
    return (
        "<h3>Over time</h3><p class=soft>What a worker holds while the step above runs, the margin aside; the same stretch of time.</p>"
        '<figure id="memory-chart"><div class="bar"><label>Show <select></select></label></div>'
        '<div class="stage"><canvas role="img" aria-label="Bytes in use over time against the limit"></canvas></div>'
        '<p class="said" role="status"></p></figure>'
        "<h3>All workers</h3><p class=soft>How full each worker is over the whole step. Red is at the limit.</p>"
        + chart("filled", "Workers by time: how full each is")
    )
