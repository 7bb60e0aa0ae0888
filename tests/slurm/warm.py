"""Tasks that start at once: torch is imported, and a plan's model captured, in one process that tasks are forked from.

`Warm` starts that process and writes an executable to be given as the interpreter of the ranks. The executable hands
its arguments, environment and streams to the server, which forks a task into the namespaces of the executable, that
is, onto its node. Signals are handed on; the task dies with the executable, which SLURM knows and may kill.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.warm_python import followed

PR_SET_PDEATHSIG = 1
NAMESPACES = 0x00020000 | 0x04000000 | 0x20000000 | 0x40000000  # mount, host name, processes, network
LIBC = ctypes.CDLL(None, use_errno=True)

CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}).encode()
socket.send_fds(server, [len(words).to_bytes(4, "big")], [0, 1, 2])
server.sendall(words)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
answer = server.recv(1)
sys.exit(answer[0] if answer else 1)
"""


class Warm:
    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "warm.sock")
        self.python = folder / "warm-python"
        self.python.write_text(CLIENT.format(python=sys.executable, address=self._address))
        self.python.chmod(0o755)
        with (folder / "warm.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.slurm.warm", self._address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), f"no warm process; see {folder}/warm.log"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def serve(address: str) -> None:
    for module in ("runtime.train.script", "runtime.slurm.task", "runtime.probe.main", "tests.runtime.jobs"):
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        with client:
            try:
                request, streams = _asked(client)
            except (OSError, EOFError):  # SLURM has ended it meanwhile
                continue
            with contextlib.suppress(Exception):  # the task meets it again, and says so
                _capture(request["argv"][-1])
            gc.freeze()  # a task that looks for garbage need not copy what it shares
            if os.fork() == 0:
                listener.close()
                os._exit(_hold(client, streams, request))
            for stream in streams:
                os.close(stream)


def _asked(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    words = b""
    while not size or len(words) < int.from_bytes(size, "big"):
        if not (more := client.recv(65536)):
            for stream in streams:
                os.close(stream)
            raise EOFError
        words += more
    return json.loads(words), streams


def _capture(folder: str) -> None:
    from planner.plan import yaml as plan_yaml
    from tests.captures import captured_of

    plan = plan_yaml.load(Path(folder) / "plan.yaml")
    captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)


def _hold(client: socket.socket, streams: list[int], request: dict[str, object]) -> int:
    """Between the executable and its task: this process keeps outside, the task is forked inside."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with open(os.pidfd_open(pid), closefd=True, mode="rb", buffering=0) as there:
        if LIBC.setns(there.fileno(), NAMESPACES):
            return 1
    task = os.fork()
    if task == 0:
        os._exit(_be_the_task(client, streams, request))
    for stream in streams:
        os.close(stream)
    return _wait(client, task)


def _wait(client: socket.socket, task: int) -> int:
    code = followed(client, task)
    with contextlib.suppress(OSError):
        client.sendall(bytes([code if code >= 0 else 128 - code]))
    return 0


def _be_the_task(client: socket.socket, streams: list[int], request: dict[str, object]) -> int:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    environment, folder, words = request["env"], request["cwd"], request["argv"]
    assert isinstance(environment, dict) and isinstance(folder, str) and isinstance(words, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    assert words[:2] == ["-P", "-m"], words
    try:
        return _run(words[2], words[3:])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(module: str, words: list[str]) -> int:
    from planner.plan import plan
    from runtime.train import Model
    from tests.captures import captured_of

    def of(plan: plan.Plan, workload: object = None) -> Model:
        return Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))

    Model.of = of  # type: ignore[method-assign, assignment]
    return importlib.import_module(module).main(*words) or 0


if __name__ == "__main__":
    serve(*sys.argv[1:])
