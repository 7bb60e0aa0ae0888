"""A Python that starts at once: what the package imports is loaded in one server, and programs are forked from it.

`WarmPython(folder)` starts the server, unless another process of the test run has done so, and fills `folder/bin` with
`python` and the commands of the package. Each hands its arguments, environment, folder and streams to the server and
ends as the program does that is forked there, by the same status or signal; signals are handed on, and the program
dies with it. What such a program starts by `sys.executable` is forked as well. A rank is forked as ever; a model that
another process of the run has captured is read from `tests.captures`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypedDict

COMMANDS = {"shardwright": "main", "plan": "plan_main", "launch": "launch_main"}
LOADED = (
    "shardwright",
    "runtime.train.training",
    "runtime.local.supervise",
    "runtime.launch",
    "planner.measure.rows",
    "planner.measure.timing",
    "planner.milp.question",
    "runtime.spatial",
    "tests.captures",
)
OWNER = "SHARDWRIGHT_TEST_OWNER"  # of the environment: the process whose end is that of the test run
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
FLAGS = ("-P", "-W", "-u")  # before a module, code or a file
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys
words = sys.argv[1:]
while words and words[0] in {flags}:
    del words[: 2 if words[0] == "-W" else 1]
named = os.path.basename(sys.argv[0]) == "python"
if named and (not words or words[0].startswith("-") and words[0] not in ("-c", "-m")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])  # knows all flags
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
for number in {signals}:
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
request = {{"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "parent": os.getppid()}}
words = json.dumps(request).encode()
socket.send_fds(server, [len(words).to_bytes(4, "big")], [0, 1, 2])
server.sendall(words)
ended = server.recv(2)
if ended[:1] == b"k":
    signal.signal(ended[1], signal.SIG_DFL) if ended[1] != signal.SIGKILL else None
    os.kill(os.getpid(), ended[1])
os._exit(ended[1] if ended else 1)
"""


class WarmPython:
    """The programs of a folder, and the server behind them: it ends with the process that owns the test run."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        owner = os.environ.get(OWNER, str(os.getpid()))
        with (folder / "warm.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.bin.exists():
                self._start(folder, owner)

    def _start(self, folder: Path, owner: str) -> None:
        """Starts the server as nobody's child, since whoever comes first may end before the others."""
        words = [sys.executable, "-m", "tests.warm_python", str(folder), owner]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, cwd=Path(__file__).parents[1], env=environment, stdout=subprocess.DEVNULL)
        assert (folder / "ready").exists(), f"no warm process; see {folder}/warm.log"
        numbers = tuple(map(int, HANDED_ON))
        self.bin.mkdir()
        for name in ("python", *COMMANDS):
            client = self.bin / name
            address = str(folder / "warm.sock")
            client.write_text(
                CLIENT.format(python=sys.executable, address=address, signals=numbers, flags=FLAGS)
            )
            client.chmod(0o755)


def start(folder: Path, owner: int) -> None:
    """Returns when the server of a folder takes programs, or has ended: it is a child of nobody by then."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        with (folder / "warm.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        serve(folder, os.pidfd_open(owner), writer)
        os._exit(0)
    os.close(writer)
    os.read(reader, 1)


def serve(folder: Path, owner: int, ready: int) -> None:
    _load()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "warm.sock"))
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.executable = str(folder / "bin" / "python")
    del sys.path[0]  # of `-m`; an editable install may have put the same folder further back
    gc.collect()
    gc.freeze()
    (folder / "ready").touch()
    os.close(ready)
    while listener in select.select([listener, owner], [], [])[0]:
        client, _ = listener.accept()
        with client:
            if os.fork() == 0:
                listener.close()
                os._exit(_hold(client))


def _load() -> None:
    """What any program of the package imports sooner or later, some of it only when a model is captured."""
    import torch

    from planner.capture import capture
    from planner.workload import workload

    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    for module in LOADED:
        importlib.import_module(module)
    capture(workload.load("mlp", {}))


def _hold(client: socket.socket) -> int:
    """Between the executable and its program: tells each what becomes of the other."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    words = b""
    while len(words) < int.from_bytes(size, "big"):
        words += client.recv(65536)
    program = os.fork()
    if program == 0:
        client.close()
        os._exit(_be(json.loads(words), streams))
    for stream in streams:
        os.close(stream)
    code = followed(client, program)
    with contextlib.suppress(OSError):
        client.sendall(b"e" + bytes([code]) if code >= 0 else b"k" + bytes([-code]))
    return 0


def followed(client: socket.socket, program: int) -> int:
    """How a child ends, as `os.waitstatus_to_exitcode` has it. It gets the signals that its executable hands on, and is
    killed where that has gone.
    """
    with open(os.pidfd_open(program), closefd=True, mode="rb", buffering=0) as end:
        while end not in select.select([client, end], [], [])[0]:
            try:
                word = client.recv(1)
            except OSError:
                word = b""
            os.kill(program, word[0] if word else signal.SIGKILL)
            if not word:
                break
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    return code


class _Request(TypedDict):
    argv: list[str]
    env: dict[str, str]
    cwd: str
    parent: int


def _be(request: _Request, streams: Sequence[int]) -> int:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    own, parent, getppid = os.getpid(), request["parent"], os.getppid
    # of the executable, whom this process stands for
    os.getppid = lambda: parent if os.getpid() == own else getppid()
    status = _status(_run, request["argv"])
    _status(threading._shutdown)
    _status(atexit._run_exitfuncs)
    for written in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            written.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _status(act: Callable[..., object], *arguments: object) -> int:
    """As the interpreter ends a program: a status, or less than nothing by a signal."""
    try:
        act(*arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exc()
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run(argv: list[str]) -> None:
    name, words = Path(argv[0]).name, argv[1:]
    importlib.import_module("tests.captures").share()
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if name in COMMANDS:
        sys.argv = argv
        sys.exit(getattr(importlib.import_module("shardwright"), COMMANDS[name])())
    safe = False
    while words and words[0] in FLAGS:
        flag = words.pop(0)
        if flag == "-P":
            safe = True
        elif flag == "-W":
            warnings.simplefilter(words.pop(0))  # type: ignore[arg-type]
        else:
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    what = words.pop(0)
    if what == "-m":
        sys.path[:0] = [] if safe else [os.getcwd()]
        sys.argv = words
        sys.modules.pop(words[0], None)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.path[:0] = [] if safe else [""]
        sys.argv = ["-c", *words[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(main))
    else:
        sys.path[:0] = [] if safe else [str(Path(what).resolve().parent)]
        sys.argv = [what, *words]
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    start(Path(sys.argv[1]), int(sys.argv[2]))
