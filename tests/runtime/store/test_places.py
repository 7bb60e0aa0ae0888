"""Who needs what, what is exchanged for it, and what memory there is, without any process."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from runtime.data import Stream
from runtime.store.exchange import Pieces, rounds_of
from runtime.store.layout import SamplePlaces
from runtime.store.memory import free_bytes
from runtime.store.opening import _window_bytes
from runtime.store.routes import Reader, SampleRoutes, row_length


def drawn(seed: int) -> tuple[SampleRoutes, np.ndarray, int]:
    """Ranks on some nodes, each reading some micro-batches of its replica, and the bytes of samples."""
    draw = Random(seed)
    nodes, replicas, micros = draw.randint(1, 5), draw.randint(1, 4), draw.randint(1, 3)
    readers = [
        Reader(
            rank,
            draw.randrange(nodes),
            0,
            draw.randrange(replicas) * micros,
            tuple(sorted(draw.sample(range(micros), draw.randint(1, micros)))),
            (),
        )
        for rank in range(draw.randint(1, 7))
    ]
    samples, micro = draw.randint(1, 40), draw.randint(1, 3)
    stream = Stream(seed=seed, length=samples)
    routes = SampleRoutes(tuple(readers), samples, micro, micro * micros * replicas, stream)
    return routes, np.array([draw.randint(0, 9) for _ in range(samples)]), draw.randint(1, 4)


@pytest.mark.parametrize("seed", range(40))
def test_every_sample_that_a_rank_reads_is_in_its_nodes_part_or_window(seed: int) -> None:
    routes, sizes, steps = drawn(seed)
    start = Random(seed).randrange(50)
    content = [bytes([i % 251] * int(n)) for i, n in enumerate(sizes)]
    places = {node: SamplePlaces(routes, node, sizes, start, steps) for node in routes.nodes}
    parts = {node: b"".join(content[i] for i in places[node].own) for node in routes.nodes}
    for window in range(3):
        for here, node in enumerate(routes.nodes):
            memory = bytearray(_window_bytes(routes, node, sizes, steps))
            routed = places[node].routed(window)
            for owner, pieces in zip(routes.nodes, routed.receives, strict=True):
                sent = places[owner].routed(window).sends[here]
                assert (sent.bytes, places[owner].routed(window).rounds) == (pieces.bytes, routed.rounds)
                stream = bytearray(sent.bytes)
                source = parts[owner]

                def send(at: int, to: int, n: int, into: bytearray = stream, of: bytes = source) -> None:
                    into[to : to + n] = of[at : at + n]

                def receive(
                    at: int, to: int, n: int, of: bytearray = stream, into: bytearray = memory
                ) -> None:
                    into[at : at + n] = of[to : to + n]

                for first in range(0, sent.bytes, 7):
                    piece = bytearray(min(7, sent.bytes - first))
                    sent.each(first, first + len(piece), lambda at, to, n: send(at, first + to, n))  # noqa: B023
                for first in range(0, sent.bytes, 5):
                    end = min(first + 5, sent.bytes)
                    pieces.each(first, end, lambda at, to, n: receive(at, first + to, n))  # noqa: B023
            check_window(places[node], window, bytes(memory), parts[node], content)


def check_window(places: SamplePlaces, window: int, memory: bytes, part: bytes, content: list[bytes]) -> None:
    node_readers = next(iter([places.routes.on(places.node)]))
    first = places.start + window * places.steps * places.routes.step_samples
    for reader in node_readers:
        for step in range(places.steps):
            for micro in reader.micros:
                at = first + step * places.routes.step_samples + (reader.first + micro) * places.routes.micro
                for position in range(at, at + places.routes.micro):
                    ((_, index),) = places.routes.stream.span(position, position + 1)
                    if index in places.own:
                        assert part[places.in_part(index)] == content[index]
                    elif at < first + places.steps * places.routes.step_samples:
                        assert memory[places.in_window(window, index)] == content[index]


def test_rounds_are_of_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.store.exchange.ROUND_BYTES", 12)
    assert [rounds_of(table) for table in ([], [[0]], [[0, 6], [1, 0]], [[0, 7], [1, 0]])] == [0, 0, 1, 2]
    assert Pieces.of(np.zeros(0, np.int64), np.zeros(0, np.int64)).bytes == 0


def test_a_rank_comes_back_from_its_row() -> None:
    for region in ((), ((0, 4), (2, 9))):
        reader = Reader(3, 1, 12345, 4, (0, 2), region)
        assert Reader.of_row(reader.row(row_length(5))) == reader


def test_memory_is_what_the_host_and_its_limits_leave(tmp_path: Path) -> None:
    info, group = tmp_path / "meminfo", tmp_path / "cgroup"
    info.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    group.mkdir()
    assert free_bytes(info, group) == 921600
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("7\n")
    assert free_bytes(info, group) == 921600
    (group / "memory.max").write_text("107\n")
    assert free_bytes(info, group) == 90
