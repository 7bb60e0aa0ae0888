"""Sections on the decision: its runners-up, the frontier, the model's cuts, the proof, where it comes from, and advice.

Advice says what to try next, each only where the plan, its proof or its run gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.plan import Plan, StagePlan, told_shared, told_sums
from planner.report.contents import Contents
from planner.report.widgets import MOST_LISTED, facts, mesh, meter, page_table, scatter, section, strip
from planner.show import RIVAL_HEADS, RivalRow, escaped, folded, proof_list, rival_rows, verdict
from planner.units import format_bytes, format_duration, format_percent, format_rate, plural


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
    items = "".join(
        f"<li>{escaped(what)}" + (f"<br><code>{escaped(command)}</code>" if command else "") + "</li>"
        for what, command in advice(found)
    )
    return section("next", "What to try next", f'<ul class="plain next">{items}</ul>') if items else ""


def _shared(plan: Plan) -> list[str]:
    """Returns what replicas share, for the optimizer's line."""
    state = ["state shared among replicas"] if plan.shard_optimizer else []
    held = [f"replicas share {told}" for told in [told_shared(plan)] if told]
    return state + held + [f"gradients summed by {told}" for told in [told_sums(plan)] if told]


_GAP = 0.005  # below, another search is not worth its time
_IDLE = 0.10
_FULL, _EMPTY = 0.92, 0.5
_OFF = 0.15
_NEAR = 0.03


def advice(found: Contents) -> Iterator[tuple[str, str]]:
    """Yields what to try and why, each with a command or call.

    Returns: pairs of words; the second is empty where there is no command.
    """
    yield from _proof(found)
    yield from _costs(found)
    yield from _pipeline(found)
    yield from _memory(found)
    yield from _simpler(found)
    yield from _run(found)


def _proof(found: Contents) -> Iterator[tuple[str, str]]:
    proof, name = found.plan.certificate, found.plan.model.workload
    if proof is None:
        yield (
            "This plan has no certificate: it was written by hand or edited. Ask the solver for one that has.",
            f"shardwright plan {name} --cluster CLUSTER.yaml --batch {found.plan.batch.samples}",
        )
    elif proof.gap > _GAP:
        yield (
            f"The search ended with a gap of {proof.gap:.2%}: a plan that much faster may exist. Fewer families or a "
            "pinned decision let it close.",
            f"shardwright plan {name} ... --schedule {found.plan.schedule.family} --fix pipeline={found.plan.axes.pipeline}",
        )


def _costs(found: Contents) -> Iterator[tuple[str, str]]:
    if "roofline" in found.plan.provenance.profile:
        yield (
            "The costs are a roofline: operations and bytes at the device's peak, which real kernels do not reach. "
            "Measure one device of the cluster before you believe a time.",
            f"shardwright profile {found.plan.model.workload} --device cuda -o profile.yaml",
        )


def _pipeline(found: Contents) -> Iterator[tuple[str, str]]:
    plan = found.plan
    if plan.axes.pipeline > 1 and found.idle_share > _IDLE:
        yield (
            f"Workers idle for {found.idle_share:.0%} of the step. More micro-batches fill a pipeline: a larger batch, "
            f"or micro-batches smaller than {plan.batch.micro}, if they were profiled.",
            f"shardwright plan ... --batch {2 * plan.batch.samples}",
        )


def _memory(found: Contents) -> Iterator[tuple[str, str]]:
    if not found.plan.prediction.memory:
        return
    fullest = found.plan.prediction.memory[found.fullest]
    share = fullest.total / max(1, fullest.limit)
    room = f"{format_bytes(fullest.total)} of {format_bytes(fullest.limit)}"
    if share > _FULL:
        yield (
            f"Worker {found.fullest} is nearly full: {room}. Keep a margin for fragments (margin_bytes of the cluster file), "
            "or measure the peak before a long run.",
            "",
        )
    elif share < _EMPTY:
        yield (
            f"No device holds more than {room}. Larger micro-batches may be faster: profile them, and plan again.",
            f"shardwright profile {found.plan.model.workload} --micro {found.plan.batch.micro},{2 * found.plan.batch.micro}",
        )
    recomputed = sum(stage.recompute for stage in found.plan.stages)
    if recomputed:
        yield (
            f"{recomputed} of {len(found.plan.stages)} stages recompute their forward. What would more memory be worth?",
            f"plan.what_if(memory_gib={-(-2 * fullest.limit // 2**30)})",
        )


def _simpler(found: Contents) -> Iterator[tuple[str, str]]:
    own = found.plan.prediction.step_ns
    for row in rival_rows(found.plan):
        if row.step_ns is not None and own < row.step_ns <= own * (1 + _NEAR):
            which = ", ".join(part for part in (row.name, row.configuration) if part)
            yield (
                f"Hardly slower ({format_percent(row.step_ns / own - 1)}), and perhaps simpler to run: {which}.",
                "",
            )
            return


def _run(found: Contents) -> Iterator[tuple[str, str]]:
    if found.run is None:
        yield (
            "Nothing has been measured under this plan yet. A short run, laid beside this prediction, shows what the "
            "costs missed.",
            "shardwright launch plan.yaml --steps 20 --wait --run runs/try && shardwright report plan.yaml runs/try",
        )
        return
    compared = found.run.comparison
    if abs(compared.ratio - 1) <= _OFF:
        return
    worst = max(compared.events, key=lambda e: abs((e.measured_ns - e.predicted_ns) * e.times), default=None)
    where = "" if worst is None else (
        f" Most of it in {worst.stage}{worst.name}: {format_duration(worst.measured_ns)} each instead of {format_duration(worst.predicted_ns)}."
    )  # fmt: skip
    yield (
        f"The step took {compared.ratio:.2f} times what was predicted.{where} Profile on the machine that ran it, idle.",
        f"shardwright profile {found.plan.model.workload} -o profile.yaml",
    )
