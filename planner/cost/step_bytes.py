"""Says what a stage holds throughout a step beside its state, and what its buffers and losses take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from planner.model import ModelGraph, Value
from planner.profile import CostKey, Profile
from planner.schedule import Schedule


def losses_held(schedule: Schedule) -> int:
    """Returns how many losses a pipe holds until the step ends: one a micro-batch, in the pipe with the most.

    Args: `schedule` tells the pipe of every micro-batch.
    """
    return max(Counter(schedule.pipe_of).values(), default=0)


def copies_of_statistics(holders: int, *, recompute: bool) -> int:
    """Returns how many copies of running statistics a stage of `holders` ranks holds.

    Args: more than one holder keeps the statistics from before the step and adds up what the step brings. To
        `recompute` takes one more copy, since a forward that is done again must leave no trace.
    """
    return 2 * (holders > 1) + recompute


def remembered_bytes(graph: ModelGraph, layers: Sequence[str]) -> int:
    """Returns the bytes of buffers that one micro-batch copies for layers that recompute, until its backward is over.

    Copied are the buffers that the layers both write and read, since a kernel may have saved them again.

    Args: `layers` are names.
    """
    names = set(layers)
    return sum(row.bytes for row in graph.buffers if row.remembered and names.intersection(row.users))


def step_bytes(profile: Profile, layers: Sequence[str], key: CostKey, *, losses: int, copies: int) -> int:
    """Returns what a stage holds throughout a step beside its state, however many micro-batches are in flight.

    Args: `losses` and `copies` are counts, from `losses_held` and `copies_of_statistics`. Buffers that the forward
        also reads have no such copies, but `remembered_bytes`.
    """
    graph, names = profile.graph, set(layers)
    statistics = [row for row in graph.buffers if row.mutated and not row.remembered]
    copied = sum(row.bytes for row in statistics if names.intersection(row.users))
    return copies * copied + losses * total_bytes(profile, told_values(graph, layers), key)


def told_values(graph: ModelGraph, layers: Sequence[str]) -> list[Value]:
    """Returns the loss and what it counted, if the stage has the last layer.

    Args: `layers` are names.
    """
    last = graph.layers[-1]
    return [graph.value[name] for name in last.outputs] if last.name in layers else []


def total_bytes(profile: Profile, values: Iterable[Value], key: CostKey) -> int:
    """Returns the bytes of some Values together, in the precision of a setting.

    Args: `key` is the setting, whatever its signature.
    """
    return sum(profile.value_bytes(value.name, key) for value in values)
