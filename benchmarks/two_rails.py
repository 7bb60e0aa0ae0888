"""Nodes of their own network on this machine: a namespace each, two cards, and links of so many Mbit/s.

Every node has the interfaces `rail0` and `rail1`, each on a bridge of its own in a namespace between them. Both ends
of each link are limited by a token bucket. It needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

RAILS = ("rail0", "rail1")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
BURST_BYTES = 4 * 1024  # more would hide what small sums take
QUEUE_MS = 400  # of a link, before it drops


def missing() -> str:
    """Returns why no nodes can be made here; "" where they can."""
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool, path=SEARCH) is None]
    if absent:
        return f"no {', '.join(absent)} here"
    if os.geteuid() != 0:
        return "namespaces need root"
    try:
        with nodes(1, 100):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no namespaces here: {error.stderr.strip()}"


def inside(node: str) -> list[str]:
    """Returns what put before a command has it run on a node."""
    return ["ip", "netns", "exec", node]


@contextmanager
def nodes(count: int, mbit: int) -> Iterator[list[str]]:
    """Makes nodes, and takes them away again.

    Args: each link carries `mbit` Mbit/s, one way.
    Yields: names of namespaces.
    """
    mark = uuid4().hex[:4]
    hub, names = f"sums-{mark}-hub", [f"sums-{mark}-{number}" for number in range(count)]
    made: list[str] = []
    try:
        for name in (hub, *names):
            _do("ip", "netns", "add", name)
            made.append(name)
            _do("ip", "-n", name, "link", "set", "lo", "up")
        for rail, face in enumerate(RAILS):
            _do("ip", "-n", hub, "link", "add", face, "type", "bridge")
            _do("ip", "-n", hub, "link", "set", face, "up")
            for number, name in enumerate(names):
                _wire(hub, name, face, f"p{rail}-{number}", f"10.98.{rail}.{number + 1}/24", mbit)
        yield names
    finally:
        for name in made:
            subprocess.run(
                ["ip", "netns", "del", name], env={"PATH": SEARCH}, capture_output=True, check=False
            )


def _wire(hub: str, node: str, face: str, port: str, address: str, mbit: int) -> None:
    _do("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", face, "netns", node)
    _do("ip", "-n", hub, "link", "set", port, "master", face, "up")
    _do("ip", "-n", node, "addr", "add", address, "dev", face)
    _do("ip", "-n", node, "link", "set", face, "up")
    for place, end in ((hub, port), (node, face)):
        limit = ("rate", f"{mbit}mbit", "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")
        _do("tc", "-n", place, "qdisc", "add", "dev", end, "root", "tbf", *limit)


def _do(*words: str) -> None:
    subprocess.run(words, env={"PATH": SEARCH}, capture_output=True, text=True, check=True)


def started(
    names: Sequence[str], command: Sequence[str], environment: dict[str, str]
) -> list[subprocess.Popen[str]]:
    """Starts a command on every node, with its number as the last word."""
    return [
        subprocess.Popen([*inside(name), *command, str(number)], env=environment, text=True)
        for number, name in enumerate(names)
    ]
