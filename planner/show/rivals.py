"""The table of plans that were priced beside a plan: one row a configuration, made from the certificate's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from planner.plan import (
    UNSEEN,
    Certificate,
    Plan,
    PlannedConfiguration,
    Rival,
    RivalKind,
    SearchSpace,
    awaited_ns,
    is_cut,
    mesh_of,
    readers,
    reading_ns,
)
from planner.schedule import FAMILIES
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_percent, numbered, plural

MOST_READERS = 4096  # of a rank, as `launch` takes them
_ZERO_BUBBLE = ("zb-h1", "zb-h2", "zb-v")
_KINDS = {
    "data_parallel": "data parallel",
    "fsdp": "FSDP",
    "equal_stages": "equal stages (1f1b)",
    "one_device": "one device",
    "spatial": "shards over most devices",
}


def error_of(plan: Plan) -> float:
    """Returns the longer half of the error bar.

    Returns: a share of the step, 0 where the costs carry no spread.
    """
    step = plan.prediction
    return max(step.high_ns - step.step_ns, step.step_ns - step.low_ns) / max(step.step_ns, 1)


class RivalRow(NamedTuple):
    """One plan of the table that `--explain` prints, as people read it."""

    name: str
    configuration: str
    step: str
    slower: str
    idle: str
    sums: str
    messages: str
    peak: str
    mark: str
    kind: RivalKind
    step_ns: int | None
    near: bool  # the errors of the costs do not tell it from the plan

    def cells(self) -> tuple[str, ...]:
        """Returns the columns of `RIVAL_HEADS`."""
        return self[:9]


RIVAL_HEADS = ("plan", "configuration", "step", "slower", "idle", "sums", "messages", "peak memory", "")
_UNDER = ("configuration", "idle", "sums", "messages", "")  # below their row in a narrow terminal


def rival_rows(plan: Plan) -> list[RivalRow]:
    """Returns the plan and those that were priced beside it: data parallelism, then the fastest first.

    Each configuration and step is told once.

    Args: a plan without a certificate has no rows.
    """
    proof = plan.certificate
    if proof is None:
        return []
    chosen = proof.chosen
    own = [] if chosen is None else [_row(plan, chosen, "this plan" + _same(proof, chosen))]
    seen = set() if chosen is None else {(chosen.configuration, chosen.step_ns)}
    others = []
    for rival in proof.rivals:
        key = (rival.configuration, rival.step_ns)
        if rival.step_ns is None or key not in seen:
            seen.add(key)
            others.append(_row(plan, rival, _name(rival)))
    never = max((row.step_ns or 0 for row in others), default=0) + 1
    others.sort(key=lambda row: never if row.step_ns is None else row.step_ns)
    return [*own, *sorted(others, key=lambda row: row.kind != "data_parallel")]


def _same(proof: Certificate, chosen: Rival) -> str:
    """Returns the plain name of the plan itself in brackets, empty where it has none."""
    names = (
        _KINDS[rival.kind]
        for rival in proof.rivals
        if rival.kind in _KINDS
        and (rival.configuration, rival.step_ns) == (chosen.configuration, chosen.step_ns)
    )
    return f" ({found})" if (found := next(names, "")) else ""


def _name(rival: Rival) -> str:
    if rival.kind in _KINDS or rival.configuration is None:
        return _KINDS.get(rival.kind, "a plan")
    family = rival.configuration.family
    return f"zero bubble ({family})" if family in _ZERO_BUBBLE else family


def _row(plan: Plan, rival: Rival, name: str) -> RivalRow:
    own = plan.prediction
    configuration = "" if rival.configuration is None else _beside(plan, rival)
    if rival.step_ns is None:
        lacks = f"does not fit: {format_bytes(rival.missing_bytes)} short on a device"
        mark = (
            lacks
            if rival.missing_bytes
            else "none for this batch, these devices and the micro-batches profiled"
        )
        return RivalRow(name, configuration, "", "", "", "", "", "", mark, rival.kind, None, False)
    near = rival.kind != "chosen" and own.step_ns <= rival.step_ns <= own.high_ns
    mark = ""
    if near:
        mark = "within the error" if own.high_ns > own.step_ns else "takes as long"
    elif rival.step_ns < own.step_ns:
        mark = "faster, but not what was asked for"
    slower = "" if rival.kind == "chosen" else _against(rival.step_ns / max(own.step_ns, 1) - 1)
    return RivalRow(
        name,
        configuration,
        format_duration(rival.step_ns),
        slower,
        format_percent(rival.idle),
        _sums(rival),
        format_percent(rival.messages),
        format_bytes(rival.peak_bytes),
        mark,
        rival.kind,
        rival.step_ns,
        near,
    )


def _sums(rival: Rival) -> str:
    """Returns what a step waits for gradient sums; where units are summed and gathered, passes wait for them."""
    told = rival.configuration is not None and rival.configuration.held and not rival.sums
    return "in passes" if told else format_percent(rival.sums)


def _against(share: float) -> str:
    """Returns how much longer a step takes than the plan's, with its sign.

    Example: _against(0.25) is "+25.0 %".
    """
    said = format_percent(share)
    return said if said[0] in "-<" or not share else f"+{said}"


def _beside(plan: Plan, rival: Rival) -> str:
    """Returns a configuration as it reads beside the plan's own.

    A micro-batch is told where it is another, a family where no name tells it.
    """
    found = rival.configuration
    assert found is not None
    family = rival.kind in ("chosen", "data_parallel", "spatial")
    return configuration_text(found, family=family, micro=found.micro != plan.batch.micro)


def configuration_text(found: PlannedConfiguration, *, family: bool = True, micro: bool = True) -> str:
    """Returns a configuration in words.

    Args: `family` and `micro` say whether its family and its micro-batch are told.
    Example: "1f1b, 2 replicas, 4 workers, micro-batches of 2, rescheduled".
    """
    words = [found.family] if family else []
    words += [f"{found.data} replicas"] if found.data > 1 else []
    words += [f"{found.pipeline} workers"] if found.pipeline > 1 else []
    words += [plural(found.pairs, "pair")] if paired(found.family) else []
    words += [f"{found.chunks} stages a worker"] if found.chunks > 1 else []
    words += [f"{'x'.join(map(str, found.grid))} shards"] if found.grid else []
    words += [f"{'x'.join(map(str, found.then))} from layer {found.then_from} on"] if found.then else []
    whole = "samples shared" if found.shared else "whole samples"
    words += [f"{whole} from layer {found.whole_from} on"] if found.whole_from else []
    words += [f"micro-batches of {found.micro}"] if micro else []
    again = {"none": "", "where_needed": "recompute where needed", "all": "recompute"}[found.recompute]
    some = f"recompute in {numbered('stage', found.recomputed)}" if found.recomputed else ""
    words += [word for word in (again, some) if word]
    words += ["optimizer state sharded"] if found.shard else []
    words += [f"{found.held} shared by {found.ranks}"] if found.held else []
    words += ["first stage on the last devices"] if found.mirrored else []
    words += ["pipeline innermost"] if found.innermost == "pipeline" else []
    words += ["rescheduled"] if found.rescheduled else []
    return ", ".join(words)


def paired(family: str) -> bool:
    """Returns whether a family has pipes in pairs, as Chimera has.

    Args: a name that is no family's has none.
    """
    return family in FAMILIES and FAMILIES[family].paired


def rivals_text(plan: Plan) -> str:
    """Writes the table that `--explain` prints.

    Returns: the empty text where nothing was priced beside the plan.
    """
    rows = rival_rows(plan)
    return columns([row.cells() for row in rows], RIVAL_HEADS, under=_UNDER) if rows else ""


def on_hosts(plan: Plan) -> list[str]:
    """Returns the memory of the fullest worker and what its process keeps, and what reading samples adds to a step.

    Args: `plan` may be for other devices, and say nothing of its samples.
    """
    read_ns = reading_ns(plan)
    slow = read_ns > UNSEEN * plan.prediction.step_ns
    read = (
        [f"  reading samples takes a rank {format_duration(read_ns)} a step; see --data-workers"]
        if slow
        else []
    )
    fullest = max(plan.prediction.memory, key=lambda memory: memory.total, default=None)
    if fullest is None or not fullest.margin or not plan.provenance.profile.startswith("cpu"):
        return read
    held, margin = format_bytes(fullest.total - fullest.margin), format_bytes(fullest.margin)
    return [
        f"  a rank holds up to {held}; {margin} of its host's memory are kept for the process around it",
        *read,
    ]


def reading_text(plan: Plan) -> str:
    """Returns what reading samples adds to a step, and how many readers would hide it; empty where it hides.

    Args: `plan` says nothing where reading was not measured.
    """
    step_ns, read_ns = plan.prediction.step_ns, reading_ns(plan)
    if plan.data is None or read_ns <= UNSEEN * step_ns:
        return ""
    each = f"{format_duration(plan.data.each_ns)} a sample, {format_duration(read_ns)} a step and rank"
    hidden = plural(readers(plan, MOST_READERS), "reader")
    return (
        f"Reading samples takes {each}. A rank that reads alone has steps of {format_duration(awaited_ns(plan, 0))}; "
        f"{hidden} a rank would hide it, and `--data-workers auto` takes as many as there are cores."
    )


def together(plan: Plan) -> str:
    """Returns what the ranks of a group share of each micro-batch, in words; "" where each rank works alone."""
    if is_cut(plan):
        return f"tensors in parts on groups of {'x'.join(map(str, mesh_of(plan)))}"
    grid = next((stage.spatial for stage in plan.stages if stage.spatial), ())
    return f"each sample in {'x'.join(map(str, grid))} shards" if plan.axes.spatial > 1 else ""


def layouts_told(space: SearchSpace) -> Iterator[tuple[str, str]]:
    """Yields what a proof covers of layouts of tensors in parts, where they were looked for."""
    counts = Counter("x".join(map(str, mesh)) for mesh in space.layouts)
    said = ", ".join(f"{count} on groups of {mesh}" for mesh, count in counts.items())
    if said:
        yield (
            "layouts",
            f"{said}: the best of the search for layouts, one for all blocks; the proof covers no others",
        )
