"""torch's own orders, played by the same reference as ours: ours is never longer and holds no more, whether messages
cost nothing or take their time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

import pytest

from planner.schedule import Action, Costs, Kind, Limits, Schedule, generate, relistings
from planner.schedule.actions import parse_action
from planner.schedule.build import dealt, zigzag
from planner.schedule.listing.task import nominal
from tests.planner.schedule.slots import assert_whole, peaks, span, thirds

PEERS = [
    ("gpipe", "GPipe", 1),
    ("1f1b", "1F1B", 1),
    ("interleaved", "Interleaved1F1B", 2),
    ("interleaved", "Interleaved1F1B", 3),
    ("interleaved", "LoopedBFS", 2),
    ("interleaved-zb", "InterleavedZeroBubble", 2),
    ("interleaved-zb", "InterleavedZeroBubble", 3),
    ("zb-v", "ZBVZeroBubble", 2),
    ("dualpipe-v", "DualPipeV", 2),
]


def torch_order(name: str, workers: int, micros: int, chunks: int) -> Schedule | None:
    """None where torch refuses the numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

        try:
            rows = get_schedule_ops(name, workers, micros, num_stages_per_rank=chunks)
        except ValueError:
            return None
    place = zigzag(workers, 2) if name in ("ZBVZeroBubble", "DualPipeV") else dealt(workers, chunks)
    parts = [[str(part) for op in row if op is not None for part in op.sub_actions or (op,)] for row in rows]
    sums = "REDUCE_GRAD"  # where torch sums gradients; no compute
    orders = [[parse_action(part) for part in row if not part.endswith(sums)] for row in parts]
    if name == "1F1B":
        orders[-1] = _from_zero(orders[-1])
    return Schedule(family=name, place=place, pipe_of=(0,) * micros, orders=tuple(map(tuple, orders)))


def _from_zero(order: list[Action]) -> list[Action]:
    """torch 2.13 prints the last rank's forwards from 1 and never names 0; their turns are right."""
    turn = count()
    return [a._replace(micro=next(turn)) if a.kind is Kind.F else a for a in order]


def cases(name: str, chunks: int, micros_of: Callable[[int], Iterable[int]]) -> Iterator[Schedule]:
    """What torch makes of the numbers that it does not refuse."""
    for workers in (2, 4, 8):
        for micros in micros_of(workers):
            theirs = torch_order(name, workers, micros, chunks)
            if theirs is not None:
                yield theirs


@pytest.mark.parametrize(("family", "name", "chunks"), PEERS)
def test_ours_of_the_same_family_is_never_longer_at_no_more_memory(
    family: str, name: str, chunks: int
) -> None:
    compared = 0
    for theirs in cases(name, chunks, lambda d: (d // 2, d, d + 1, 2 * d, 3 * d - 1, 4 * d)):
        ours = generate(family, workers=theirs.workers, micros=theirs.micros, chunks=chunks)
        assert_whole(ours)
        assert span(ours, thirds) <= span(theirs, thirds)
        assert max(peaks(ours)) <= max(peaks(theirs))
        compared += 1
    assert compared >= 6


@pytest.mark.parametrize(("family", "name", "chunks"), PEERS)
def test_nor_where_messages_take_time_and_ours_is_listed_for_it(family: str, name: str, chunks: int) -> None:
    compared = 0
    for theirs in cases(name, chunks, lambda d: (d, d + 1, 2 * d, 3 * d - 1)):
        ours = generate(family, workers=theirs.workers, micros=theirs.micros, chunks=chunks)
        room = max(peaks(theirs))
        for hop in (1, 2, 8):
            costs = in_twentieths(theirs.stages, hop)
            anew = relistings(ours, costs, Limits(memory=(room,) * theirs.workers))[0][1]
            assert_whole(anew)
            assert max(peaks(anew)) <= room
            times = partial(cost_of, costs)
            assert span(anew, times, costs.hops) <= span(theirs, times, costs.hops)
            compared += 1
    assert compared >= 9


def in_twentieths(stages: int, hop: int) -> Costs:
    """F = I = W = 20, B = 40, and `hop` for a message."""
    one, two = (20,) * stages, (40,) * stages
    return Costs(forward=one, backward=two, input_grad=one, weight_grad=one, hops=nominal(stages, hop).hops)


def cost_of(costs: Costs, action: Action) -> int:
    return costs.of(action.kind)[action.stage]
