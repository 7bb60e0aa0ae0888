"""Warm processes for tests: torch is imported and each model captured once, in a server that workers are forked from.

Workers serve many jobs. A job with a run folder is given to workers that know its model: where none has been forked
since the server captured it, new ones are.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import NamedTuple

JobArguments = dict[str, object]
ModelKey = tuple[str, tuple[tuple[str, object], ...], int]


class Done(NamedTuple):
    value: object
    error: str  # empty where the job returned


class _Worker(NamedTuple):
    pid: int
    pipe: Connection


class Pool:
    """`run("package.module:function", argument)` calls function(rank, ranks, rendezvous, **arguments) on each."""

    def __init__(self, preload: Sequence[str], python: str | Path = sys.executable) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pool-")
        self._listener = Listener(str(Path(self._folder.name) / "pool"))
        self._server = subprocess.Popen(
            [str(python), "-m", "tests.pool", str(self._listener.address), *preload],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline(), "no server: it said why on standard error"
        self._commands = self._listener.accept()
        self._workers: list[_Worker] = []
        self._known: set[ModelKey] = set()

    def run(self, job: str, ranks: int, timeout_s: float = 120.0, **arguments: object) -> list[object]:
        """What each rank returned; the first error is raised, and the workers it may have hung are replaced."""
        self._teach(arguments.get("folder"))
        if ranks > len(self._workers):
            self._workers += self._forked(ranks - len(self._workers))
        workers = self._workers[:ranks]
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = str(Path(folder) / "store")
            for rank, worker in enumerate(workers):
                worker.pipe.send((job, rank, ranks, rendezvous, arguments))
            done = self._collect(workers, timeout_s)
        errors = [each.error if each else "" for each in done]
        if any(errors) or None in done:
            self._end(ranks)
            first = next((error for error in errors if error), f"no answer within {timeout_s} s")
            raise RuntimeError(first)
        return [each.value for each in done if each is not None]

    def _teach(self, folder: object) -> None:
        key = model_of_run(folder)
        if key is not None and key not in self._known:
            self._known.add(key)
            self._commands.send(key)
            self._end(len(self._workers))

    def _forked(self, count: int) -> list[_Worker]:
        self._commands.send(count)
        pipes = [self._listener.accept() for _ in range(count)]
        return [_Worker(pipe.recv(), pipe) for pipe in pipes]

    def _collect(self, workers: Sequence[_Worker], timeout_s: float) -> list[Done | None]:
        """In the order of ranks; after the first error the others get a moment only."""
        found: list[Done | None] = [None] * len(workers)
        waiting: list[object] = [worker.pipe for worker in workers]
        pipes = [worker.pipe for worker in workers]
        while waiting:
            ready = wait(waiting, timeout_s)  # type: ignore[arg-type]
            if not ready:
                break
            for pipe in ready:
                waiting.remove(pipe)
                try:
                    done = Done(*pipe.recv())  # type: ignore[union-attr]
                except EOFError:
                    done = Done(None, "the worker died")
                found[pipes.index(pipe)] = done  # type: ignore[arg-type]
                if done.error:
                    timeout_s = 0.2
        return found

    def _end(self, count: int) -> None:
        for worker in self._workers[:count]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.pipe.close()
        self._workers = self._workers[count:]

    def close(self) -> None:
        self._end(len(self._workers))
        self._commands.close()
        self._server.kill()
        self._server.communicate()
        self._listener.close()
        self._folder.cleanup()


def model_of_run(folder: object) -> ModelKey | None:
    from planner.plan import yaml as plan_yaml
    from runtime.runfolder import Paths

    if not isinstance(folder, str) or not Paths(Path(folder)).plan.exists():
        return None
    plan = plan_yaml.load(Paths(Path(folder)).plan)
    return plan.model.workload, tuple(sorted(plan.model.arguments.items())), plan.batch.micro


def serve(address: str, preload: Sequence[str]) -> None:
    """Forks as many workers as it is told, and captures the models that it is told."""
    for name in preload:
        importlib.import_module(name)
    import torch

    from tests.captures import captured_of
    from tests.seeding import spare_absent_devices

    spare_absent_devices()
    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    os.dup2(2, 1)  # what models and jobs print
    with contextlib.suppress(EOFError), Client(address) as commands:
        while True:
            told = commands.recv()
            if not isinstance(told, int):
                with contextlib.suppress(Exception):  # the job meets it again, and says so
                    captured_of(told[0], dict(told[1]), told[2])
                continue
            gc.freeze()  # a worker that looks for garbage need not copy what it shares
            for _ in range(told):
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    commands.close()
                    _work(Client(address))


def _work(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)  # before there is a second thread: torch makes its pool anew in a forked process
    pipe.send(os.getpid())
    while True:
        try:
            job, rank, ranks, rendezvous, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((_function(job)(rank, ranks, Path(rendezvous), **arguments), ""))
        except BaseException:
            pipe.send((None, traceback.format_exc()))


def _function(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
