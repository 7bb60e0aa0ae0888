"""Warm processes for tests: torch is imported once, in a server that the workers are forked from."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

JobArguments = dict[str, object]


class Done(NamedTuple):
    value: object
    error: str  # empty where the job returned


class _Worker(NamedTuple):
    process: multiprocessing.process.BaseProcess
    pipe: Connection


class Pool:
    """`run("package.module:function", argument)` calls function(rank, ranks, rendezvous, **arguments) on each."""

    def __init__(self, preload: Sequence[str]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._workers: list[_Worker] = []

    def run(self, job: str, ranks: int, timeout_s: float = 120.0, **arguments: object) -> list[object]:
        """What each rank returned; the first error is raised, and the workers it may have hung are replaced."""
        while len(self._workers) < ranks:
            self._workers.append(self._start())
        workers = self._workers[:ranks]
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = str(Path(folder) / "store")
            for rank, worker in enumerate(workers):
                worker.pipe.send((job, rank, ranks, rendezvous, arguments))
            done = self._collect(workers, timeout_s)
        errors = [each.error if each else "" for each in done]
        if any(errors) or None in done:
            self._replace(ranks)
            first = next((error for error in errors if error), f"no answer within {timeout_s} s")
            raise RuntimeError(first)
        return [each.value for each in done if each is not None]

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

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _replace(self, count: int) -> None:
        for worker in self._workers[:count]:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers = self._workers[count:]

    def close(self) -> None:
        self._replace(len(self._workers))


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            job, rank, ranks, rendezvous, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((_function(job)(rank, ranks, Path(rendezvous), **arguments), ""))
        except BaseException:
            pipe.send((None, traceback.format_exc()))


def _function(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found
