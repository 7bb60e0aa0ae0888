"""Every text about a plan's certificate, three lines, and the list of the proof.

`plan_lines` is what `plan` prints, and `proof_text` what `--proof` adds; `rivals.py` makes the table of `--explain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from planner.plan import MOST_NEAR, Certificate, Plan, SearchSpace, told_shared, told_sums, world_size
from planner.show.rivals import error_of, layouts_told, on_hosts, paired, rival_rows, together
from planner.units import format_duration, format_percent, format_rate, number_word, plural

BY_HAND = "not proved: this plan was written by hand"


def plan_lines(plan: Plan) -> list[str]:
    """Returns the three lines: what a plan takes, what it is, and how good it is known to be.

    Further lines say what the model itself does not allow, and what processes of hosts take beside the plan.
    """
    space = plan.certificate.space if plan.certificate is not None else None
    limits = [f"  only {limit}" for limit in space.limits] if space is not None else []
    return [first_line(plan), f"  {how(plan)}", *on_hosts(plan), *limits, f"  {verdict(plan)}"]


def first_line(plan: Plan) -> str:
    """Returns the model, its step with the error bar, and the rate of samples.

    Example: "gpt2 (tiny): 33.45 ms a step (29.3 to 37.6), 239 samples/s on 2 devices".
    """
    step = plan.prediction
    rate = format_rate(plan.batch.samples / max(step.step_ns / 1e9, 1e-9))
    took = f"{format_duration(step.step_ns)} a step ({error_bar(plan)})"
    model = plan.model.workload + shown_arguments(plan.model.arguments)
    model += f" in {plan.precision}" if plan.precision != "fp32" else ""
    model += f", weights in {plan.weights}" if plan.weights != "same" else ""
    return f"{model}: {took}, {rate} samples/s on {plural(world_size(plan.axes), 'device')}"


def error_bar(plan: Plan) -> str:
    """Returns both ends of the error bar; a unit that all share with the step is not repeated.

    Example: "29.3 to 37.6".
    """
    step = plan.prediction
    if step.low_ns == step.high_ns:
        return "no error bar: its costs carry no spread"
    low, high = format_duration(step.low_ns), format_duration(step.high_ns)
    unit = format_duration(step.step_ns).rpartition(" ")[2]
    if {low.rpartition(" ")[2], high.rpartition(" ")[2]} == {unit}:
        low, high = low.rpartition(" ")[0], high.rpartition(" ")[0]
    return f"{low} to {high}"


def how(plan: Plan) -> str:
    """Returns what a plan is in one line: its degrees, schedule and micro-batches, and what it does for memory.

    Example: "2 replicas, no pipeline, 2 micro-batches of 2".
    """
    axes, schedule, batch = plan.axes, plan.schedule, plan.batch
    parts = [f"{axes.data} replicas" if axes.data > 1 else "", _pipeline(plan), together(plan)]
    least = f"{min(batch.shares)} to " if batch.shares else ""
    parts.append(f"{least}{plural(batch.micros, 'micro-batch', 'micro-batches')} of {batch.micro}")
    recomputed, extra = sum(stage.recompute for stage in plan.stages), list[str]()
    if schedule.chunks > 1 and axes.pipeline == 1 and axes.data * axes.spatial > 1:
        extra.append("gradients are summed while the backward pass runs")
    if recomputed:
        extra.append(f"{recomputed} of {plural(len(plan.stages), 'stage')} recompute")
    extra += ["optimizer state is sharded"] if plan.shard_optimizer else []
    extra += [f"replicas share {told}"] if (told := told_shared(plan)) else []
    extra += [f"gradients are summed by {told}"] if (told := told_sums(plan)) else []
    extra += ["updates overlap with the next step"] if schedule.update == "rolling" else []
    return "; ".join([", ".join(filter(None, parts)), *extra])


def _pipeline(plan: Plan) -> str:
    schedule, workers = plan.schedule, plan.axes.pipeline
    if workers == 1:
        return f"no pipeline ({schedule.chunks} stages in turn)" if schedule.chunks > 1 else "no pipeline"
    parts = [schedule.family]
    parts += [plural(schedule.pairs, "pair")] if paired(schedule.family) else []
    parts += [f"{schedule.chunks} stages a worker"] if schedule.chunks > 1 else []
    parts += ["rescheduled for these costs"] if schedule.settings.get("relisted") else []
    return f"pipeline of {workers} workers ({', '.join(parts)})"


def shown_arguments(arguments: Mapping[str, object]) -> str:
    """Returns arguments in brackets; words speak for themselves, numbers stand behind their name.

    Example: {"size": "tiny", "layers": 3} gives " (tiny, layers=3)".
    """
    words = (value if isinstance(value, str) else f"{name}={value}" for name, value in arguments.items())
    return f" ({', '.join(words)})" if arguments else ""


def verdict(plan: Plan) -> str:
    """Returns what is known about better plans; where the costs carry an error, the line says so.

    Args: a plan without a certificate counts as written by hand.
    """
    proof = plan.certificate
    if proof is None:
        return BY_HAND
    proved = proof.bound_ns >= proof.objective_ns
    if proved and _is_only(proof):
        return "the only plan the pins allow"
    total = None if proof.searched is None else plural(proof.searched.configurations, "configuration")
    if proved:
        said = f"proved fastest of {total} for these costs" if total else "proved fastest for these costs"
    else:
        slower = format_percent(proof.objective_ns / max(proof.bound_ns, 1) - 1)
        said = f"at most {slower} slower than the best" + (f" of {total}" if total else " plan")
    if proof.searched is None:
        said += " (a file of version 1: what was searched is not recorded)"
    elif not proved:
        said += f" ({proof.searched.open:,} not {'finished' if proof.stage == 'proved' else 'looked into'})"
    return said + _within(plan)


def _is_only(proof: Certificate) -> bool:
    """Returns whether the pins leave one configuration and one cut of it."""
    if proof.searched is None or proof.space is None or proof.chosen is None:
        return False
    chosen = proof.chosen.configuration
    one_stage = chosen is not None and chosen.pipeline * chosen.chunks == 1
    return proof.searched.configurations == 1 and ("stages" in proof.space.fixed or one_stage)


def _within(plan: Plan) -> str:
    """Returns the end of the line: how many other plans the errors of the costs do not tell from this one."""
    error, others = error_of(plan), [row for row in rival_rows(plan) if row.near]
    few = len(others)
    capped = (
        plan.certificate is not None
        and sum(rival.kind == "near" for rival in plan.certificate.rivals) == MOST_NEAR
    )
    many = f"{'at least ' if capped else ''}{plural(few, 'other')}"
    if not error:
        return f"; {many} {'takes' if few == 1 else 'take'} as long" if few else ""
    if not few:
        return f", known to {format_percent(error)}"
    return f"; {many} {'lies' if few == 1 else 'lie'} within the error of the costs ({format_percent(error)})"


class ProofList(NamedTuple):
    """The rows that `--proof` prints, for any page to lay out."""

    bounds: list[tuple[str, str, str]]  # name, time, what it says
    searched: str
    space: list[tuple[str, str]]
    closing: list[tuple[str, str]]


def proof_list(plan: Plan) -> ProofList | None:
    """Collects the bounds of a plan and the space they are about.

    Returns: None where the plan has no certificate.
    """
    proof = plan.certificate
    if proof is None:
        return None
    costs = f"simulated, with the costs of {plan.provenance.profile}"
    costs += f", corrected by {plan.fitted.summary}" if plan.fitted is not None else ""
    below = f"no plan {'of the search space below' if proof.space else 'that was searched'} is faster"
    bounds = [
        ("step", format_duration(proof.objective_ns), costs),
        ("lower bound", format_duration(proof.bound_ns), f"{below}: gap {100 * proof.gap:.2f} %"),
    ]
    if (own := proof.own_order_bound_ns) is not None:
        words = f"no plan of it whose family keeps its own order is faster: gap {100 * (1 - own / proof.objective_ns):.2f} %"
        bounds.append(("own orders", format_duration(own), words))
    if proof.order_free_bound_ns:
        words = "no order of the same actions on the same workers is faster than this"
        bounds.append(("any order", format_duration(proof.order_free_bound_ns), words))
    searched = "not recorded: the plan file is of version 1"
    if (met := proof.searched) is not None:
        searched = (
            f"{plural(met.configurations, 'configuration')}; {met.solved:,} solved, {met.ruled_out:,} ruled out by a "
            f"bound, {met.open:,} left open"
        )
    space = [] if proof.space is None else list(_space(proof.space, 0 if met is None else met.rescheduled))
    asked = proof.space is not None and "cut" in proof.space.fixed
    left = ["other layouts of tensors" if asked else "tensor parallelism"]
    left += [] if plan.batch.shares else ["uneven shares of the batch"]
    paced = "replicas run at the speed of the slowest"
    closing = [("Not searched", f"{', '.join(left)} (docs/scope.md)"), ("Assumed", paced)]
    return ProofList(bounds, searched, space, closing if proof.space else closing[1:])


def _space(space: SearchSpace, rescheduled: int) -> Iterator[tuple[str, str]]:
    if space.fixed:
        yield "pinned", ", ".join(f"{key}={value}" for key, value in space.fixed.items())
    for limit in space.limits:
        yield "model", f"only {limit}"
    workers = plural(space.most_workers, "worker")
    yield "machines", f"every number of replicas and pipeline workers on whole nodes, up to {workers}"
    yield "schedules", _schedules(space, rescheduled)
    yield "stages", _stages(space)
    yield "cuts", _cuts(space)
    if space.grids:
        yield "samples", _samples(space)
    yield from layouts_told(space)
    yield "recomputation", _recomputation(space)
    state = "state sharded over replicas"
    either = f"{state} where memory or time asks for it, in all stages alike"
    yield "optimizer", either if len(space.shard) > 1 else state if any(space.shard) else "state not sharded"
    if space.held:
        yield "replicas", f"share {' or '.join(space.held)}: all, those in one node, or any number of a few"


def _schedules(space: SearchSpace, rescheduled: int) -> str:
    said = ", ".join(space.families) if len(space.families) <= 3 else f"{len(space.families)} families"
    said += ", in its own order" if len(space.families) == 1 else ", each in its own order"
    if rescheduled:
        said += f", and {plural(rescheduled, 'order')} rescheduled for these costs"
    return f"{said}; at most {space.most_actions:,} actions"


def _stages(space: SearchSpace) -> str:
    parts = ["one per worker, or as many as a family asks for"]
    if space.free_chunks:
        parts.append(f"the {number_word(space.free_chunks)} smallest numbers where a family allows any")
    if space.parts == "one_worker":
        most = "" if space.most_forwards is None else f", if it has at most {space.most_forwards:,} forwards"
        parts.append(f"several on a worker without a pipeline{most}")
    if space.parts == "none":
        parts.append("a single one without a pipeline")
    if space.equal_parts:
        parts.append("where updates come at use only stages of about equal work or equal bytes")
    return "; ".join(parts)


def _cuts(space: SearchSpace) -> str:
    which = "every boundary" if space.cuts == "all" else "boundaries where each stage feeds the next"
    orders = space.layer_orders
    said = f"{which}, in the model's order of layers"
    match orders.searched:
        case "all":
            return f"{said} and in all {plural(orders.others, 'other order')}, on whole samples"
        case "too_many":
            return f"{said}; the layers have too many other orders to be compared"
        case "balanced" if not orders.others:
            return (
                f"{said}; other orders were compared at the depths of the best plans, and none was searched"
            )
        case "balanced":
            others = plural(orders.others, "other order")
            return f"{said} and in {others} of balanced stages; the bound is about {orders.proved} of them"
        case _:
            return said


def _samples(space: SearchSpace) -> str:
    grids = ", ".join("x".join(map(str, grid)) for grid in space.grids)
    turns = f"one of at most {space.grid_changes}" if space.grid_changes else "any"
    ends = f"one of at most {space.gathers}" if space.gathers else "any"
    return (
        f"whole or in shards of {grids}; the grid may change before {turns} of the layers, and samples may be whole "
        f"again, or shared in the last stage, from {ends} on"
    )


def _recomputation(space: SearchSpace) -> str:
    only = "only where memory requires it"
    whole = " on whole samples" if space.grids else ""
    return {
        "none": "none",
        "all": "every stage",
        "whole_stages": f"{only}: whole stages",
        "first_layers": f"{only}: as few first layers of a stage as possible{whole}, whole stages where a worker has "
        "several",
    }[space.recompute]


def proof_text(plan: Plan) -> str:
    """Writes the list that `--proof` prints.

    Returns: one line where the plan has no certificate.
    """
    found = proof_list(plan)
    if found is None:
        return BY_HAND
    wide = max(len(name) for name, _ in (*found.space, ("", ""))) + 2
    lines = [f"{name:<15} {time:<10} {said}" for name, time, said in found.bounds]
    lines += ["", f"Searched: {found.searched}"]
    lines += [f"  {name:<{wide}}{said}" for name, said in found.space]
    return "\n".join([*lines, *(f"{name}: {said}" for name, said in found.closing)])


def proof_data(plan: Plan) -> dict[str, object] | None:
    """Returns the certificate as `--json` prints it.

    Returns: its values with `gap` and the line made from them, `verdict`; None without a certificate.
    """
    proof = plan.certificate
    if proof is None:
        return None
    return {**proof.model_dump(mode="json"), "gap": proof.gap, "verdict": verdict(plan)}
