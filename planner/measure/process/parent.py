"""The process that waits for the measuring one: keeps the journal, survives crashes, finds the row that caused
them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from planner.errors import BadInput, Infeasible, Unexpected
from planner.measure.process.protocol import (
    Begun,
    Done,
    Failed,
    Journal,
    MeasureProgress,
    MeasureRequest,
    Message,
    Mixed,
    Optimized,
    Pending,
    RanBeside,
    Ready,
    Refused,
    SamplesRead,
    encode,
    parse,
)
from planner.profile import CostKey, OptimizerCost, SampleCost
from planner.terminal import Report


@dataclass(slots=True, kw_only=True)
class Measured:
    """The rows that have been measured so far, and those that could not be."""

    ready: Ready
    done: dict[CostKey, Done] = field(default_factory=dict)
    failures: dict[CostKey, str] = field(default_factory=dict)
    optimizer: OptimizerCost | None = None
    samples: SampleCost | None = None
    others: float = 0.0  # share of the machine that other processes took meanwhile, at most

    def pending(self, keys: Sequence[CostKey]) -> tuple[CostKey, ...]:
        """Returns the keys that have neither a result nor a failure.

        Args: `keys` are those of all rows.
        """
        return tuple(key for key in keys if key not in self.done and key not in self.failures)


class Child:
    """One process that measures; `crash` says how it ended if it ended badly."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    def say(self, message: Message) -> None:
        """Sends a message, if the process still listens.

        Args: `message` becomes one line.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which whoever listens will see

    def listen(self) -> Iterator[Message]:
        """Yields the messages of the process until it ends.

        Raises: BadInput where the process refused the request.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = parse(line)
            if isinstance(message, Refused) and message.trace:
                raise Unexpected(message.what, message.trace)
            if isinstance(message, Refused):
                raise BadInput(message.what, where=message.where, allowed=message.allowed)
            yield message

    def crash(self) -> str:
        """Returns how the process ended, once it has; an empty text where it ended well."""
        status = self._process.wait()
        if status == 0:
            return ""
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return f"the process ended with {how}" + (
            f": {lines[-1].strip():.300}" if lines and status > 0 else ""
        )


@contextmanager
def child(request: MeasureRequest) -> Iterator[Child]:
    """Starts a measuring process and ends it with the context.

    Args: `request` is the first message that the process gets.
    Yields: the process, to talk to.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "planner.measure.process.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        try:
            found = Child(process, errors)
            found.say(request)
            yield found
        finally:
            process.kill()
            process.communicate()


def measure(request: MeasureRequest, journal_path: Path | None, report: Report) -> Measured:
    """Measures all rows of a request, with a new process after every crash.

    A crash counts as a failure of the row that was under way. If several were, each is tried alone in the next
    process.

    Args: `journal_path` is where finished rows are kept until all are done; None keeps none. `report` shows the
        share that is done.
    Returns: all results, and for rows without a result the reason.
    Raises: BadInput where the workload cannot be measured at all; Infeasible where no micro-batch fits.
    """
    measured: Measured | None = None
    journal: Journal | None = None
    alone = False
    while True:
        with child(request) as running:
            messages = running.listen()
            ready = next(messages, None)
            if not isinstance(ready, Ready):
                raise BadInput(f"cannot be measured: {running.crash()}", where=request.workload)
            if measured is None or journal is None:
                journal = Journal(journal_path, _facts(request, ready))
                measured = Measured(ready=ready)
                if ready.said:
                    report.say(ready.said)
                for line in ready.left_out:
                    report.say(line)
                for entry in journal.found:
                    _take(entry, measured)
            keys = ready.keys
            pending = measured.pending(keys)
            if pending or measured.optimizer is None:
                running.say(Pending(keys=pending, optimizer=measured.optimizer is None, alone=alone))
                begun = _follow(messages, measured, journal, report, len(keys))
                crash = running.crash()
                if crash and (measured.pending(keys) or measured.optimizer is None):
                    alone = _blame(begun, measured, request, crash)
                    continue
        _check_something_fits(measured, keys, request)
        journal.remove()
        return measured


def _facts(request: MeasureRequest, ready: Ready) -> dict[str, str]:
    return {
        "fingerprint": ready.graph.fingerprint,
        "device": ready.device,
        "precision": request.precision,
        "execution": request.execution,
        "split": request.split,
        "spatial": request.spatial,
        **{f"version of {name}": text for name, text in ready.versions.items()},
    }


def _take(entry: Done | Optimized, measured: Measured) -> None:
    if isinstance(entry, Done):
        measured.done[entry.key] = entry
    else:
        measured.optimizer = entry.cost


def _follow(
    messages: Iterator[Message], measured: Measured, journal: Journal, report: Report, count: int
) -> tuple[CostKey, ...]:
    """Takes messages until the process ends, and returns the rows that were under way then."""
    begun: tuple[CostKey, ...] = ()
    before = (len(measured.done) + len(measured.failures)) / count
    for message in messages:
        if isinstance(message, Begun):
            begun = message.keys
        elif isinstance(message, Done | Optimized):
            _take(message, measured)
            journal.add(message)
        elif isinstance(message, Failed):
            measured.failures[message.key] = message.why
        elif isinstance(message, SamplesRead):
            measured.samples = message.cost
            if message.why:
                report.say(message.why)
        elif isinstance(message, Mixed):
            if message.said:
                report.say(message.said)
        elif isinstance(message, RanBeside):
            measured.others = max(measured.others, message.others)
        elif isinstance(message, MeasureProgress):
            report.at(before + message.share * (1 - before))
    return measured.pending(begun)


def _blame(begun: tuple[CostKey, ...], measured: Measured, request: MeasureRequest, crash: str) -> bool:
    """Notes the row that ended the process; returns True if several were under way and each must be tried alone."""
    if not begun:
        raise BadInput(f"cannot be measured: {crash}", where=request.workload)
    if len(begun) == 1:
        measured.failures[begun[0]] = crash
    return len(begun) > 1


def _check_something_fits(measured: Measured, keys: Sequence[CostKey], request: MeasureRequest) -> None:
    failed = {key.micro for key in measured.failures}
    if failed < {key.micro for key in keys} or not failed:
        return
    key, why = min(measured.failures.items(), key=lambda item: item[0].micro)
    layer = next(x.name for x in measured.ready.graph.layers if x.signature == key.signature)
    raise Infeasible(
        f"layer '{layer}' cannot be measured on {request.device} with micro-batch {key.micro}: {why}"
    )
