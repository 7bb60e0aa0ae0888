"""Runs one command in this process and judges how it ended."""

from __future__ import annotations

import io
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache

import typer

import shardwright as sw
from planner.cli import answer
from planner.shown import printable

GUARD_S = 120.0  # of one command on a machine that is busy, which is no fault
MOST_S = 5.0  # of processor time
MOST_BYTES = 500 * 2**20  # that one command may add to the memory of this process
OURS = (0, 1, 2, 3, 4)  # exit statuses that errors.py and the commands name


@dataclass(frozen=True)
class Verdict:
    """What one command has done with one input."""

    status: int
    output: str
    fault: str = ""  # empty where the command ended as it should


class _TookTooLong(BaseException):
    """The guard of a command has come."""


def judged(words: Sequence[str]) -> Verdict:
    """Runs one command in this process and judges how it ended.

    Args: `words` are those of the command line.
    """
    out, before, begin = io.StringIO(), _resident_bytes(), time.process_time()
    status, fault = -1, ""
    try:
        with _guarded(), redirect_stdout(out), redirect_stderr(out):
            status = answer(_app, words)
    except _TookTooLong:
        fault = f"takes longer than {GUARD_S:g} s"
    except BaseException as error:
        fault = f"ends in {type(error).__name__}: {error}"
    text = out.getvalue()
    if not fault and "error: unexpected" in text:
        fault = text[text.index("error: unexpected") :].partition("\n")[0]
    if not fault and status not in OURS:
        fault = f"ends with status {status}"
    if not fault and status and text.count("error: ") != 1 and "Traceback" in text:
        fault = "prints a traceback"
    if not fault and printable(text) != text:
        fault = "prints characters that steer a terminal"
    if not fault and (grown := _resident_bytes() - before) > MOST_BYTES:
        fault = f"takes {grown} bytes"
    if not fault and (took_s := time.process_time() - begin) > MOST_S:
        fault = f"takes {took_s:.1f} s of a processor"
    return Verdict(status, text, fault)


@cache
def _app() -> typer.Typer:
    """Returns the program with all its commands, made once."""
    return sw._app()


def _resident_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def _guarded() -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, GUARD_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
