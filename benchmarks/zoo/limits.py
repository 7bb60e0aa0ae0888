"""Judges cases in processes that may die: a server imports the libraries once and forks a process for each case.

with server() as judged:
    verdict = judged("timm", "test_vit", seconds=120)
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

import torch

from benchmarks.zoo import FAMILIES
from benchmarks.zoo.check import Finding, Verdict, check
from benchmarks.zoo.parts import Make

Judged = Callable[..., Verdict]
MEMORY_BYTES = 8 << 30  # of a case, beyond what the server has mapped


@contextmanager
def server() -> Iterator[Judged]:
    """Yields a function that judges a case by the names of its family and of itself, within so many seconds."""
    command = [sys.executable, "-m", "benchmarks.zoo.limits"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asks, answers = process.stdin, process.stdout
        assert asks is not None and answers is not None

        def judged(family: str, case: str, *, seconds: float, plans: bool = True) -> Verdict:
            asks.write(json.dumps([family, case, seconds, plans]) + "\n")
            asks.flush()
            return verdict_of(json.loads(answers.readline()))

        yield judged
        asks.close()


def verdict_of(facts: dict[str, object]) -> Verdict:
    """Returns the verdict that `asdict` has written."""
    findings = tuple(Finding(**each) for each in facts.pop("findings"))  # type: ignore[attr-defined]
    return Verdict(findings=findings, **facts)  # type: ignore[arg-type]


def serve(asks: IO[str], answers: IO[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries
    known: dict[str, dict[str, Make]] = {}
    for line in asks:
        family, case, seconds, plans = json.loads(line)
        if family not in known:
            known[family] = FAMILIES[family].cases()
        answers.write(_forked(known[family][case], case, seconds, plans, FAMILIES[family].ranks) + "\n")
        answers.flush()


def _forked(make: Make, case: str, seconds: float, plans: bool = True, ranks: bool = False) -> str:
    """Returns the verdict as JSON; of a process that died or took too long, that it did."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _alone(make, case, plans, ranks, write)
    os.close(write)
    said = _said(read, seconds)
    if said is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        return said
    cause = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended without an answer"
    if said is None:
        cause = f"no end within {seconds:g} s"
    return json.dumps(
        asdict(Verdict(case=case, findings=(Finding(step="all", judgement="CRASH", said=cause),)))
    )


def _alone(make: Make, case: str, plans: bool, ranks: bool, write: int) -> None:
    """Judges a case in the process that was forked for it, and ends that process."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # standard output belongs to the answers
        os.dup2(1, 2)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES,) * 2)
        with os.fdopen(write, "w") as answer:
            answer.write(json.dumps(asdict(_checked(make, case, plans, ranks))))
    finally:
        os._exit(0)


def _checked(make: Make, case: str, plans: bool, ranks: bool) -> Verdict:
    try:
        return check(case, make, plans=plans, ranks=ranks)
    except BaseException as error:  # where the check itself fails, as without memory
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.300}"
        return Verdict(case=case, findings=(Finding(step="all", judgement="CRASH", said=said),))


def _said(read: int, seconds: float) -> str | None:
    """Returns what the other end wrote until it closed; None where it took too long."""
    with os.fdopen(read) as pipe:
        return pipe.read() if select.select([pipe], [], [], seconds)[0] else None


if __name__ == "__main__":
    serve(sys.stdin, os.fdopen(os.dup(1), "w"))
