"""The place where the ranks of a run meet: a file of the run folder, or, where that was asked for, a socket.

    file            nobody but the run's user can reach it; needs a file system that all ranks share and that has locks
    tcp             at the address of the first rank's host name; only the number of the port goes through a file
    tcp:INTERFACE   at the address of that interface, such as ib0
    torchrun        at the store that torchrun has made

A socket is bound to that one address. Whoever can reach it can read and change what ranks tell each other
there, since the store of torch.distributed asks nobody who they are.

Also here: code of a model does not learn from torch.distributed that ranks have met.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Literal

from planner.errors import BadInput
from runtime.runfolder import FILE, TORCHRUN, write_whole

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store

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


def hide_from_models() -> None:
    """Lets the code of models find torch.distributed as it is where one process trains: not initialised.

    From then on `is_initialized()`, `get_rank()` and their like tell a model nothing of the ranks of this process, nor
    do they in the backward pass or while a model is captured. Everybody else is told as ever: ranks, callbacks, datasets
    and optimizers. To be called before this process meets others; a second call changes nothing.
    """
    from torch.distributed import distributed_c10d

    class World(distributed_c10d._World):
        """The groups of this process, of which a model sees none."""

        @property
        def default_pg(self) -> ProcessGroup | None:
            return None if _asked_by_a_model(sys._getframe(1)) else self._default_pg

        @default_pg.setter
        def default_pg(self, group: ProcessGroup | None) -> None:
            self._default_pg = group  # type: ignore[assignment]  # torch says None of what begins so

    known = distributed_c10d._world
    if type(known).__qualname__ != World.__qualname__:
        distributed_c10d._world = World()
        vars(distributed_c10d._world).update(vars(known))


def _asked_by_a_model(caller: FrameType) -> bool:
    """Returns whether code of a model asks.

    Such code is called by a capture or a stage, with nothing else of ours between. A thread that autograd has made for
    a device knows of no stage; where a hook of ours asks there, the hook is found first. What somebody has put around a
    function of torch.distributed asks for whoever calls it.
    Raises: BadInput where a model starts torch.distributed, which would replace what the ranks have.
    """
    frame: FrameType | None = caller
    starts, theirs = False, ""
    while frame is not None:
        code, last = frame.f_code, frame
        who = _whose(code.co_filename)
        starts |= not theirs and code.co_name == "init_process_group"
        if who == "a model's" and not theirs:
            return False
        if who == "a model's":
            break
        if who == "ours":
            return False
        if who == "theirs":
            theirs = "" if _stands_in(code) else theirs or f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    else:
        if not theirs or last.f_code.co_name in _BEGINNINGS:
            return False
    if starts:
        raise BadInput(
            "forward() starts torch.distributed, which the ranks of a run use",
            where=theirs,
            allowed="nothing of torch.distributed in a model, whose ranks are the plan's decision",
        )
    return True


def _stands_in(code: CodeType) -> bool:
    """Returns whether somebody has put this code in the place of a function of torch.distributed."""
    import torch.distributed

    # By `type`, since what torch keeps there of earlier versions warns of any attribute that is read.
    known = (x for x in vars(torch.distributed).values() if type(x) is FunctionType)
    return any(x.__code__ is code for x in known)


_RUN_MODELS = (  # where the code of a model is called; elsewhere callbacks, datasets and optimizers are
    "planner/capture/",
    "runtime/draws/",
    "runtime/layout/",
    "runtime/rank/evaluation.py",
    "runtime/spatial/",
    "runtime/stage/",
)
_BEGINNINGS = (
    "<module>",
    "_run_module_as_main",
    "_bootstrap",
)  # functions that a program or a thread begins with


@cache
def _whose(file: str) -> Literal["a model's", "ours", "theirs", "nobody's"]:
    """Returns whose code a file is: "a model's" is ours that runs a model, "nobody's" what runs for whoever calls it."""
    import torch

    root, library = Path(__file__).parents[2], f"{Path(torch.__file__).parent}/"
    if file.startswith(f"{library}nn/"):
        return "theirs"
    if file.startswith(tuple(str(root / each) for each in _RUN_MODELS)):
        return "a model's"
    if file.startswith((f"{root / 'planner' / 'workload'}/", "<", library)):
        return "nobody's"
    if file.startswith((f"{root / 'planner'}/", f"{root / 'runtime'}/")):
        return "ours"
    python = f"{Path(socket.__file__).parent}/"
    return "theirs" if not file.startswith(python) or "site-packages" in file else "nobody's"
