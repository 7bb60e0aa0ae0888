"""All ranks stop after the same step, whoever is ahead, and none waits for one that has stopped."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import pytest

from runtime.train import Agreed
from runtime.train.stop import NO_STOP

STEPS = 60


def ring(ranks: int, told_after_s: dict[int, float], path: Path, seed: int) -> list[int]:
    """The last step of every rank; in a step each waits for the one before it, and takes a time that is drawn."""
    stops = [Agreed(path, rank, ranks) for rank in range(ranks)]
    sent = [[threading.Event() for _ in range(STEPS)] for _ in range(ranks)]
    last = [0] * ranks

    def train(rank: int) -> None:
        draw = Random(seed * ranks + rank)
        for step in range(1, STEPS):
            if stops[rank].before(step):
                return
            time.sleep(draw.random() * 0.004)
            sent[rank][step].set()
            assert sent[(rank - 1) % ranks][step].wait(20), f"rank {rank} waits for ever in step {step}"
            last[rank] = step

    threads: list[threading.Thread] = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    threads += [threading.Timer(after, stops[rank].vote) for rank, after in told_after_s.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return last


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_are_told_at_different_times_stop_after_one_step(seed: int, tmp_path: Path) -> None:
    draw = Random(seed)
    last = ring(4, {rank: draw.random() * 0.05 for rank in range(4)}, tmp_path / "votes", seed)
    assert len(set(last)) == 1, last
    assert last[0] < STEPS - 1


def test_nobody_stops_who_was_not_told(tmp_path: Path) -> None:
    assert ring(3, {}, tmp_path / "votes", 0) == [STEPS - 1] * 3
    assert not NO_STOP.before(10**9)
