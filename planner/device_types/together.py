"""Puts profiles of one model on several types of devices together.

Times of the whole are the least of all types, so that a bound made of them holds on any device. Bytes are the most, so
that what fits them fits every device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.errors import BadInput
from planner.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds

_TIMES = ("forward", "backward", "input_grad", "weight_grad")
_BYTES = ("own_saved_bytes", "held_bytes", "workspace_bytes", "walked_bytes", "owing_bytes")
_STATE = (
    "state_bytes_per_parameter",
    "state_bytes_per_tensor",
    "largest_bytes_per_parameter",
    "other_bytes_per_parameter",
)


def together(profiles: Sequence[Profile], devices: Collection[str]) -> Profile:
    """Returns profiles of one model as one, for a cluster.

    Args: `profiles` are of one type of device each; `devices` are the types of the cluster.
    Returns: the only profile that there is, or that counts, as it is.
    Raises: BadInput where they are of several models, two are of one type, or a type has none.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return first
    by_type: dict[str, Profile] = {}
    for own in profiles:
        _check(own, first, by_type)
        by_type[own.device] = own
    for device in sorted(set(devices) - by_type.keys()):
        raise BadInput(
            f"there is no profile of {device}, and there are some of {', '.join(by_type)}",
            where="--profile",
            allowed=f"one more: on such a device, `{_command(first, device)}`",
        )
    used = {device: own for device, own in by_type.items() if device in devices}
    if len(used) == 1:
        return next(iter(used.values()))
    return _least(used or by_type)


def _check(own: Profile, first: Profile, before: Mapping[str, Profile]) -> None:
    where = f"the profile of {own.device}"
    if own.graph.fingerprint != first.graph.fingerprint:
        raise BadInput(
            f"is of model {own.graph.fingerprint}, and that of {first.device} is of {first.graph.fingerprint}",
            where=where,
            allowed="profiles of the same model with the same settings",
        )
    if own.device in before:
        raise BadInput("is given twice", where=where, allowed="one profile for each type of device")
    if own.optimizer.name != first.optimizer.name:
        raise BadInput(
            f"has the optimizer {own.optimizer.name}, and that of {first.device} has {first.optimizer.name}",
            where=where,
            allowed="the same optimizer",
        )


def _command(first: Profile, device: str) -> str:
    """Returns the command that makes the profile of a type of device."""
    words = ["shardwright", "profile", first.workload]
    words += [f"--set {name}={value}" for name, value in first.arguments.items()]
    micros = sorted({key.micro for key in first.settings})
    how = "cuda" if first.source == "measured" else f"roofline:{device}"
    words += [f"--device {how}", f"--micro {','.join(map(str, micros))}"]
    words += [f"--precision {first.settings[0].precision}", f"-o {device}.yaml"]
    return " ".join(words)


def _least(types: Mapping[str, Profile]) -> Profile:
    """Returns the profile with the least time and the most bytes of each row that all types have.

    Raises: BadInput where they have no setting in common.
    """
    every = list(types.values())
    first = every[0]
    common = [key for key in first.costs if all(key in own.costs for own in every)]
    rows = {key: _row([own.costs[key] for own in every]) for key in common}
    failures = {key: why for own in every for key, why in own.failures.items()}
    found = replace(
        first,
        device="+".join(types),
        source="measured" if all(own.source == "measured" for own in every) else "roofline",
        costs=rows,
        failures=failures,
        optimizer=_optimizer([own.optimizer for own in every]),
        others=max(own.others for own in every),
        types={device: _of(own, common) for device, own in types.items()},
    )
    if not found.settings:
        raise BadInput(
            f"the profiles of {', '.join(types)} have no setting in common",
            where="--profile",
            allowed="the same --micro and --precision for all",
        )
    return found


def _of(own: Profile, common: Collection[CostKey]) -> Profile:
    return replace(own, costs={key: own.costs[key] for key in common})


def _row(rows: Sequence[LayerCost]) -> LayerCost:
    first = rows[0]
    named: dict[str, Any] = {name: _fastest([getattr(row, name) for row in rows]) for name in _TIMES}
    named |= {name: max(getattr(row, name) for row in rows) for name in _BYTES}
    forwards = [row.forward_workspace_bytes for row in rows if row.forward_workspace_bytes is not None]
    outputs = tuple(map(max, zip(*(row.output_bytes for row in rows), strict=False)))
    return replace(
        first,
        kept_inputs=tuple(sorted({i for row in rows for i in row.kept_inputs})),
        kept_outputs=tuple(sorted({i for row in rows for i in row.kept_outputs})),
        output_bytes=outputs if all(row.output_bytes for row in rows) else (),
        aliases=tuple(pair for pair in first.aliases if all(pair in row.aliases for row in rows)),
        forward_workspace_bytes=max(forwards) if len(forwards) == len(rows) else None,
        walks=any(row.walks for row in rows),
        **named,
    )


def _fastest(seconds: Sequence[Seconds]) -> Seconds:
    """Returns the least time, with the widest spread."""
    return Seconds(median=min(s.median for s in seconds), spread=max(s.spread for s in seconds))


def _optimizer(rows: Sequence[OptimizerCost]) -> OptimizerCost:
    first = rows[0]
    known = {row.by_element for row in rows}
    return replace(
        first,
        seconds_per_parameter=_fastest([row.seconds_per_parameter for row in rows]),
        gather_seconds_per_parameter=min(row.gather_s for row in rows),
        scatter_seconds_per_parameter=min(row.scatter_s for row in rows),
        by_element=True if known == {True} else first.by_element if len(known) == 1 else None,
        joint=any(row.joint for row in rows),
        **{name: max(getattr(row, name) for row in rows) for name in _STATE},
    )
