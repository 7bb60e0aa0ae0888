"""torch's own orders, played by the same reference as ours: ours is never longer and holds no more."""

from __future__ import annotations

import warnings
from itertools import count

import pytest

from planner.schedule.action import Action, Kind, Schedule, parse_action
from planner.schedule.assemble import dealt, zigzag
from planner.schedule.families import generate
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


@pytest.mark.parametrize(("family", "name", "chunks"), PEERS)
def test_ours_of_the_same_family_is_never_longer_at_no_more_memory(
    family: str, name: str, chunks: int
) -> None:
    compared = 0
    for workers in (2, 4, 8):
        for micros in (workers // 2, workers, workers + 1, 2 * workers, 3 * workers - 1, 4 * workers):
            theirs = torch_order(name, workers, micros, chunks)
            if theirs is None:
                continue
            ours = generate(family, workers=workers, micros=micros, chunks=chunks)
            assert_whole(ours)
            assert span(ours, thirds) <= span(theirs, thirds)
            assert max(peaks(ours)) <= max(peaks(theirs))
            compared += 1
    assert compared >= 6
