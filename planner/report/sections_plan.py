"""Sections on the decision: its runners-up, the frontier, the model's cuts, the proof, where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from planner.plan import Hop, Plan, Rival, StagePlan
from planner.report.advice import advice
from planner.report.contents import Contents
from planner.report.widgets import scatter, strip
from planner.show import MOST_LISTED, details, facts, mesh, meter, page_table, plural, section, text, why_lost
from planner.units import format_bytes, format_duration, format_rate


def frontier(found: Contents) -> str:
    front = found.frontier
    if front is None or not front.rows:
        return ""
    rows = [
        (
            format_duration(row.step_ns), format_rate(row.samples_per_s), f"{row.devices:,}", format_bytes(row.peak_bytes), f"{row.gap:.2%}",
            text(f"{row.plan.schedule.family}, {mesh(row.plan)}, micro-batch {row.plan.batch.micro}"),
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
    parts.append(page_table(heads, rows, numbers=(0, 1, 2, 3, 4), caption="The frontier", ours=ours))
    return section("frontier", "The frontier", *parts)


def rivals(found: Contents) -> str:
    proof, own = found.plan.certificate, found.plan.prediction.step_ns
    if proof is None or not proof.rivals:
        return ""
    most = max([own, *(r.step_ns for r in proof.rivals if r.step_ns is not None)])
    rows = [("this plan", f"{format_duration(own)}{meter(own / most)}", "1.00")]
    rows += [_rival(found.plan, rival, most) for rival in proof.rivals]
    return section(
        "rivals",
        "The runners-up, and why they lose",
        "<p class=soft>Priced by the same model: what one would do without a planner, and the best of other schedules.</p>",
        page_table(("plan, and why it loses", "step", "×"), rows, numbers=(2,), caption="Runners-up", ours=0),
    )


def _rival(plan: Plan, rival: Rival, most: int) -> tuple[str, str, str]:
    named = f"{text(rival.name)}<small>{text(why_lost(plan, rival))}</small>"
    if rival.step_ns is None:
        return named, "does not fit", ""
    bar = meter(rival.step_ns / most, other=True)
    return (
        named,
        f"{format_duration(rival.step_ns)}{bar}",
        f"{rival.step_ns / max(1, plan.prediction.step_ns):.2f}",
    )


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
        numbers=(3, 4),
        caption="Stages",
    )
    return section(
        "model",
        "The model and its cuts",
        f'<p class="soft">{said}numbers are stages, dashed lines the cuts, arcs what skips over them.</p>',
        f"<figure>{strip(plan, found.layer_ns, found.graph)}</figure>",
        listed if len(rows) <= MOST_LISTED else details(f"All {len(rows)} stages", listed),
    )


def _stage(plan: Plan, index: int, stage: StagePlan) -> tuple[str, ...]:
    times = plan.times[index]
    workers = sorted({row[index] for row in plan.schedule.place})
    names = "".join(f"<li>{text(name)}</li>" for name in stage.layers)
    first, last = text(stage.layers[0]), text(stage.layers[-1])
    span = first if len(stage.layers) == 1 else f"{first} … {last}"
    if len(stage.layers) > 2:
        span = (
            f"<details><summary>{span} ({len(stage.layers)})</summary><ul class=plain>{names}</ul></details>"
        )
    before = f" before {text(stage.recompute_before)}" if stage.recompute_before else ""
    extra = [*([f"recomputed{before}"] if stage.recompute else [])]
    if stage.spatial:
        extra.append(f"each sample in {'×'.join(map(str, stage.spatial))} parts")
        extra += [
            f"samples shared from {text(turn.before)} on"
            if turn.samples
            else f"in {'×'.join(map(str, turn.spatial))} from {text(turn.before)} on"
            for turn in stage.regrid
        ]
        extra += [f"whole from {text(stage.gather_before)} on"] if stage.gather_before else []
    sent = [hop for hop in plan.hops if hop.sender == index and hop.direction == "act"]
    return (
        str(index), ", ".join(map(str, workers)), span, format_duration(times.forward_ns), format_duration(times.backward_ns),
        "<br>".join(_sends(sent)), ", ".join(extra),
    )  # fmt: skip


def _sends(hops: Sequence[Hop]) -> list[str]:
    found = []
    for receiver, group in groupby(sorted(hops, key=lambda hop: hop.receiver), key=lambda hop: hop.receiver):
        for hop in group:
            found.append(
                f"to {receiver}: {format_bytes(hop.bytes)}, {plural(len(hop.values), 'value')}, {format_duration(hop.ns)}"
            )
    return found


def certificate(found: Contents) -> str:
    proof = found.plan.certificate
    if proof is None:
        return section("proof", "The certificate", "<p>None: this plan was not found by the solver.</p>")
    rests = "".join(f"<li>{text(part.strip())}</li>" for part in proof.scope.split(";") if part.strip())
    free = _free(proof.objective_ns, proof.free_bound_ns)
    return section(
        "proof",
        "The certificate",
        facts(
            [
                ("this plan", format_duration(proof.objective_ns)),
                (
                    "bound of the search",
                    f"{format_duration(proof.bound_ns)}: no plan of the space searched is faster. <b>Gap {proof.gap:.2%}</b>",
                ),
                ("bound of any order", free),
            ]
        ),
        f"<h3>What the first gap rests on</h3><ul class=plain>{rests}<li>the costs given: {text(found.plan.provenance.profile)}; "
        "a proof is about these costs, not about the machine</li></ul>",
    )


def _free(objective_ns: int, bound_ns: int) -> str:
    if not bound_ns:
        return "not reckoned"
    gap = max(0.0, 1 - bound_ns / max(1, objective_ns))
    return (
        f"{format_duration(bound_ns)}: no order whatever of these actions on these workers is faster. <b>Gap {gap:.2%}</b>, what a better order "
        "could still win"
    )


def provenance(found: Contents) -> str:
    plan = found.plan
    arguments = ", ".join(f"{name}={value}" for name, value in plan.model.arguments.items())
    rows = [
        ("workload", f"<code>{text(plan.model.workload)}</code> {text(arguments)}"),
        ("fingerprint", f"<code>{text(plan.model.fingerprint)}</code>"),
        ("costs", text(plan.provenance.profile)),
        *([("corrected by", text(plan.fitted.summary))] if plan.fitted is not None else []),
        ("cluster", text(plan.provenance.cluster)),
        ("precision", text(f"{plan.precision}, {plan.execution}")),
        (
            "optimizer",
            text(plan.optimizer) + (", state shared among replicas" if plan.shard_optimizer else ""),
        ),
        ("order", f"{text(plan.schedule.family)}, update {plan.schedule.update}"),
        *((f"{name}", text(version)) for name, version in plan.provenance.versions.items()),
    ]
    if found.run is not None:
        rows.append(("run", f"<code>{text(found.run.folder)}</code>"))
    return section("provenance", "Where it comes from", facts(rows))


def next_steps(found: Contents) -> str:
    items = "".join(
        f"<li>{text(what)}" + (f"<br><code>{text(command)}</code>" if command else "") + "</li>"
        for what, command in advice(found)
    )
    return section("next", "What to try next", f'<ul class="plain next">{items}</ul>') if items else ""
