"""The place where the ranks of a run meet: a file of the run folder, or, where that was asked for, a socket.

    file            nobody but the run's user can reach it; needs a file system that all ranks share and that has locks
    tcp             at the address of the first rank's host name; only the number of the port goes through a file
    tcp:INTERFACE   at the address of that interface, such as ib0
    torchrun        at the store that torchrun has made

A socket is bound to that one address. Whoever can reach it can read and change what ranks tell each other
there, since the store of torch.distributed asks nobody who they are.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import BadInput
from runtime.runfolder import FILE, TORCHRUN, write_whole

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PATIENCE_S = 300.0
POLL_S = 0.05
SIOCGIFADDR = 0x8915  # from linux/sockios.h
MOST_OF_A_NAME = 15  # bytes, from linux/if.h


def store(how: str, path: Path, rank: int, size: int) -> Store | None:
    """Opens the store over which ranks meet; the first rank of a socket waits for nobody.

    Args: `how` is one of those above; `path` is a file in the run folder; `size` counts the ranks.
    Returns: None for "torchrun", where torch.distributed finds the store by itself.
    Raises: TimeoutError where the first rank does not say where it is.
    """
    from torch._C._distributed_c10d import FileStore

    if how == TORCHRUN:
        return None
    if how == FILE:
        return FileStore(str(path), size)
    return _open(how, path, size) if rank == 0 else _reach(path, size)


def address(how: str) -> str:
    """Returns the address at which the first rank listens.

    Args: `how` is "tcp" or "tcp:INTERFACE".
    Raises: BadInput where the host or the interface has no address that others reach.
    """
    _, _, interface = how.partition(":")
    if interface:
        return _address_of(interface)
    name = socket.gethostname()
    try:
        found = socket.gethostbyname(name)
    except OSError:
        found = ""
    if not found or found.startswith("127."):
        there = f"is {found} to itself" if found else "has no address"
        raise BadInput(
            f"{name} {there}", where="rendezvous", allowed="tcp:INTERFACE, one that all ranks reach"
        )
    return found


def _address_of(interface: str, where: str = "rendezvous") -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            row = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError:
            there = ", ".join(name for _, name in socket.if_nameindex())
            raise BadInput(
                f"{socket.gethostname()} has no address at '{interface}'", where=where, allowed=there
            ) from None
    return socket.inet_ntoa(row[20:24])


def check_cards(cards: Sequence[str]) -> None:
    """Raises BadInput where this host has no address at the interface of a network card that a plan lists."""
    for interface in cards:
        if len(interface.encode()) > MOST_OF_A_NAME:
            raise BadInput(f"'{interface}' names no interface", where="cards", allowed="15 letters at most")
        _address_of(interface, "cards")


def _open(how: str, path: Path, size: int) -> Store:
    from torch._C._distributed_c10d import TCPStore

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address(how), 0))
    listener.listen(size)
    host, port = listener.getsockname()
    made = TCPStore(
        host,
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=PATIENCE_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    write_whole(path, json.dumps({"host": host, "port": port}))
    return made


def _reach(path: Path, size: int) -> Store:
    from torch._C._distributed_c10d import TCPStore

    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"rank 0 has not said in {path} where it is to be met")
        time.sleep(POLL_S)
    found = json.loads(path.read_text())
    return TCPStore(
        found["host"], found["port"], size, is_master=False, timeout=timedelta(seconds=PATIENCE_S)
    )
