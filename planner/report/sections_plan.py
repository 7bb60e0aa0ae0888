"""Sections on the decision: its runners-up, the frontier, the model's cuts, the proof, and where it comes from."""

from __future__ import annotations

from planner.advice import advice
from planner.plan import Plan, StagePlan, told_shared, told_sums
from planner.report.contents import Contents
from planner.report.widgets import MOST_LISTED, chart, facts, mesh, meter, page_table, scatter, section, strip
from planner.show import RIVAL_HEADS, RivalRow, compare, escaped, folded, proof_list, rival_rows, verdict
from planner.simulate import RunRecord
from planner.units import format_bytes, format_duration, format_rate, plural


def frontier(found: Contents) -> str:
    front = found.frontier
    if front is None or not front.rows:
        return ""
    rows = [
        (
            format_duration(row.step_ns), format_rate(row.samples_per_s), f"{row.devices:,}", format_bytes(row.peak_bytes), f"{row.gap:.2%}",
            escaped(f"{row.plan.schedule.family}, {mesh(row.plan)}, micro-batch {row.plan.batch.micro}"),
        )
        for row in front.rows
    ]  # fmt: skip
    parts = [
        "<p>Plans that nothing equals with less: each is proved on its own. What else would the same job cost?</p>"
    ]
    by_memory, by_devices = front.front("memory"), front.front("devices")
    if len(by_memory) > 1:
        parts.append(
            f"<h3>Time against memory a device</h3>{scatter(by_memory, lambda r: r.peak_bytes, 'peak of the fullest device', format_bytes)}"
        )
    if len(by_devices) > 1:
        parts.append(
            f"<h3>Time against devices</h3>{scatter(by_devices, lambda r: r.devices, 'devices', lambda n: f'{n:,.0f}')}"
        )
    ours = next(
        (
            i
            for i, row in enumerate(front.rows)
            if row.plan.schedule == found.plan.schedule and row.plan.axes == found.plan.axes
        ),
        None,
    )
    heads = ("step", "samples/s", "devices", "peak", "gap", "plan")
    parts.append(page_table(heads, rows, caption="The frontier", ours=ours))
    return section("frontier", "The frontier", *parts)


def beside(found: Contents) -> str:
    """Returns the section that holds the plan against another one.

    Returns: the empty text where there is no other.
    """
    if found.beside is None:
        return ""
    both = compare(found.beside.plan, found.plan)
    _, *heads = both.heads()
    rows = [tuple(escaped(cell) for cell in line) for line in both.lines()]
    rows += _measured_beside(found.beside.run, found.run)
    told = "The other over the same stretch of time, a row a worker"
    return section(
        "beside",
        "Beside another",
        f"<p>{escaped(both.summary())}</p>",
        page_table(
            ("", *(f"{name}: {head}" for name, head in zip(("other", "this"), heads, strict=True))),
            rows,
            caption="Side by side",
        ),
        f'<p class="soft">{told}; steps of both charts move together.</p>',
        chart("other", told),
    )


def _measured_beside(other: RunRecord | None, own: RunRecord | None) -> list[tuple[str, ...]]:
    found = [None if run is None else run.comparison for run in (other, own)]
    if not any(found):
        return []
    steps = (format_duration(each.measured_step_ns) if each else "not run" for each in found)
    ratios = (f"{each.ratio:.2f}" if each else "" for each in found)
    return [("measured step", *steps), ("times the prediction", *ratios)]


def rivals(found: Contents) -> str:
    """Returns the section on the plans that were priced beside this one.

    Returns: the empty text where there are none.
    """
    listed = rival_rows(found.plan)
    if len(listed) < 2:
        return ""
    most = max(row.step_ns or 0 for row in listed)
    rows = [_rival(row, most) for row in listed]
    ours = next((at for at, row in enumerate(listed) if row.kind == "chosen"), None)
    heads = ("plan, and why it loses", *RIVAL_HEADS[2:8])
    return section(
        "rivals",
        "The runners-up, and why they lose",
        "<p class=soft>Priced by the same model: what one would do without a planner, and the best of other schedules.</p>",
        page_table(heads, rows, caption="Runners-up", ours=ours),
    )


def _rival(row: RivalRow, most: int) -> tuple[str, ...]:
    told = "; ".join(escaped(part) for part in (row.configuration, row.mark) if part)
    named = escaped(row.name) + (f"<small>{told}</small>" if told else "")
    bar = "" if row.step_ns is None else meter(row.step_ns / max(most, 1), other=row.kind != "chosen")
    return (named, f"{row.step}{bar}", *row.cells()[3:8])


def model(found: Contents) -> str:
    plan = found.plan
    priced = found.layer_ns is not None
    said = (
        "Bars are forward and backward of each layer, of whole samples; "
        if priced
        else "Every layer is one bar (with --profile as high as it takes long); "
    )
    rows = [_stage(plan, index, stage) for index, stage in enumerate(plan.stages)]
    listed = page_table(
        ("stage", "workers", "layers", "forward", "backward", "sends on", ""),
        rows,
        caption="Stages",
    )
    return section(
        "model",
        "The model and its cuts",
        f'<p class="soft">{said}numbers are stages, dashed lines the cuts, arcs what skips over them.</p>',
        f"<figure>{strip(plan, found.layer_ns, found.graph)}</figure>",
        listed if len(rows) <= MOST_LISTED else folded(f"All {len(rows)} stages", listed),
    )


def _stage(plan: Plan, index: int, stage: StagePlan) -> tuple[str, ...]:
    times = plan.times[index]
    workers = sorted({row[index] for row in plan.schedule.place})
    names = "".join(f"<li>{escaped(name)}</li>" for name in stage.layers)
    first, last = escaped(stage.layers[0]), escaped(stage.layers[-1])
    span = first if len(stage.layers) == 1 else f"{first} … {last}"
    if len(stage.layers) > 2:
        span = (
            f"<details><summary>{span} ({len(stage.layers)})</summary><ul class=plain>{names}</ul></details>"
        )
    before = f" before {escaped(stage.recompute_before)}" if stage.recompute_before else ""
    extra = [*([f"recomputed{before}"] if stage.recompute else [])]
    if stage.spatial:
        extra.append(f"each sample in {'×'.join(map(str, stage.spatial))} parts")
        extra += [
            f"samples shared from {escaped(turn.before)} on"
            if turn.samples
            else f"in {'×'.join(map(str, turn.spatial))} from {escaped(turn.before)} on"
            for turn in stage.regrid
        ]
        extra += [f"whole from {escaped(stage.gather_before)} on"] if stage.gather_before else []
    sent = [hop for hop in plan.hops if hop.sender == index and hop.direction == "act"]
    sends = [
        f"to {hop.receiver}: {format_bytes(hop.bytes)}, {plural(len(hop.values), 'value')}, {format_duration(hop.ns)}"
        for hop in sorted(sent, key=lambda hop: hop.receiver)
    ]
    return (
        str(index), ", ".join(map(str, workers)), span, format_duration(times.forward_ns), format_duration(times.backward_ns),
        "<br>".join(sends), ", ".join(extra),
    )  # fmt: skip


def certificate(found: Contents) -> str:
    """Returns the section on the proof.

    Returns: HTML with its bounds, what was searched, and what it assumes.
    """
    proof, said = proof_list(found.plan), f"<p>{escaped(verdict(found.plan))}.</p>"
    if proof is None:
        return section("proof", "The certificate", said)
    searched = facts((name, escaped(words)) for name, words in proof.space)
    return section(
        "proof",
        "The certificate",
        said,
        facts((name, f"{time}: {escaped(words)}") for name, time, words in proof.bounds),
        f"<h3>Searched: {escaped(proof.searched)}</h3>{searched}",
        facts((name, escaped(words)) for name, words in proof.closing),
    )


def provenance(found: Contents) -> str:
    plan = found.plan
    arguments = ", ".join(f"{name}={value}" for name, value in plan.model.arguments.items())
    rows = [
        ("workload", f"<code>{escaped(plan.model.workload)}</code> {escaped(arguments)}"),
        ("fingerprint", f"<code>{escaped(plan.model.fingerprint)}</code>"),
        ("costs", escaped(plan.provenance.profile)),
        *([("corrected by", escaped(plan.fitted.summary))] if plan.fitted is not None else []),
        ("cluster", escaped(plan.provenance.cluster)),
        ("precision", escaped(f"{plan.precision}, {plan.execution}")),
        (
            "optimizer",
            ", ".join([escaped(plan.optimizer), *_shared(plan)]),
        ),
        ("order", f"{escaped(plan.schedule.family)}, update {plan.schedule.update}"),
        *((f"{name}", escaped(version)) for name, version in plan.provenance.versions.items()),
    ]
    if found.run is not None:
        rows.append(("run", f"<code>{escaped(found.run.folder)}</code>"))
    return section("provenance", "Where it comes from", facts(rows))


def next_steps(found: Contents) -> str:
    told = advice(found.plan, found.sources, run=found.run, idle=found.idle_share, fullest=found.fullest)
    items = "".join(
        f"<li>{escaped(what)}" + (f"<br><code>{escaped(command)}</code>" if command else "") + "</li>"
        for what, command in told
    )
    return section("next", "What to try next", f'<ul class="plain next">{items}</ul>') if items else ""


def _shared(plan: Plan) -> list[str]:
    """Returns what replicas share, for the optimizer's line."""
    state = ["state shared among replicas"] if plan.shard_optimizer else []
    held = [f"replicas share {told}" for told in [told_shared(plan)] if told]
    return state + held + [f"gradients summed by {told}" for told in [told_sums(plan)] if told]
