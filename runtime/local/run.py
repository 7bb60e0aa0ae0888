"""Runs on this machine: a supervisor process forks one process for each rank of a plan.

The run ends with the process that started it, unless it is detached. A run folder with checkpoints is resumed
from the last complete one.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from planner.errors import BadInput
from planner.files import absolute
from planner.plan import Plan
from planner.workload import DAMAGES, Workload, is_users
from runtime import runfolder
from runtime.runfolder import Outcome, Paths, tell

if TYPE_CHECKING:
    from runtime.train import Model

FIRST_LOOK_S, LAST_LOOK_S = 2.0, 60.0  # between two looks at a run, at first and after a long wait
INTERRUPT_S = 5.0  # until an interrupted supervisor has written its outcome
POLL_S = 0.2
MOST_CONSTANT_BYTES = 2**28  # of a captured model; more are captured by each process
# Of processes that compute on the host: torch asks for GPUs wherever it sees any, and then they cannot fork.
NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True)
class LocalBackend:
    """The supervisor of a local run. `process` is its process where this process started it, else the run
    folder names it.
    """

    paths: Paths
    process: subprocess.Popen[bytes] | None = None

    def state(self) -> tuple[str, str]:
        """Returns the state of a run that has no outcome yet, and the reason for that state."""
        held = runfolder.find(self.paths)
        if held is not None and not held.here:
            return "unknown", f"it was started on {held.host}: ask there"
        if held is not None and held.alive:
            return "running", ""
        if self.paths.cancelled.exists():
            return "cancelled", ""
        return (
            "ended",
            "stopped without writing a result: the supervisor was killed, or the machine went down",
        )

    def wait(self, timeout_s: float | None = None, look: Callable[[], None] | None = None) -> Outcome:
        """Waits for the supervisor to end.

        Args: `look` is called now and then, ever more rarely.
        Returns: the outcome that the supervisor has written, or one that says how it ended.
        Raises: TimeoutError after `timeout_s`.
        """
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        pause_s = float("inf") if look is None else FIRST_LOOK_S
        while not self._ended(min(pause_s, end_s - time.monotonic())):
            if time.monotonic() >= end_s:
                raise TimeoutError(f"{self.paths.root} has not ended after {timeout_s:g} s")
            assert look is not None
            if runfolder.removed(self.paths) is None:
                look()
            pause_s = min(1.5 * pause_s, LAST_LOOK_S)
        if self.paths.cancelled.exists():
            return Outcome("cancelled")
        if (found := runfolder.outcome_of(self.paths)) is not None:
            return found
        if (gone := runfolder.removed(self.paths)) is not None:
            return gone
        status = "" if self.process is None else f" with status {self.process.returncode}"
        return Outcome("failed", cause=f"the supervisor ended{status}")

    def _ended(self, within_s: float) -> bool:
        if self.process is None:
            return self._gone(time.monotonic() + within_s)
        try:
            self.process.wait(None if within_s == float("inf") else max(within_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _gone(self, end_s: float) -> bool:
        while (held := runfolder.find(self.paths)) is not None and held.alive:
            if time.monotonic() >= end_s:
                return False
            time.sleep(POLL_S)
        return True

    def interrupt(self) -> None:
        """Ends the run as Ctrl-C does, and makes sure that an outcome is written.

        Raises: AssertionError where another process started the run.
        """
        assert self.process is not None, "only who started a run interrupts it"
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(INTERRUPT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if runfolder.outcome_of(self.paths) is None:
            tell(self.paths, Outcome("interrupted", cause="by Ctrl-C"))

    def cancel(self) -> None:
        """Ends the run. A run that this process started and that has ended is left as it is.

        Raises: BadInput where the run does not go on, or was started on another host.
        """
        if self.process is not None and self.process.poll() is not None:
            return
        runfolder.cancel(self.paths, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def start(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    detach: bool = False,
    refuse: Callable[[Paths], None],
    **settings: object,
) -> LocalBackend:
    """Starts a run, after all checks are made and checkpoint 0 is written.

    Args: `settings` are fields of Job; a `detach`ed run goes on after this process; `refuse` raises BadInput
      where somebody else uses the run folder.
    Raises: BadInput and BadPlan for whatever can be known before the run starts.
    """
    with _supervisor(Path(folder), detach, str(settings.get("device", "cpu"))) as supervisor:
        from runtime.train import Model, job_of, prepare, prepare_folder

        job = job_of(plan, steps, settings)
        if job.content == "sleep":
            paths, _ = prepare_folder(plan, Path(folder), job, refuse)
            model = None
        else:
            model = Model.of(plan, workload)
            paths, _ = prepare(model, Path(folder), job, refuse)
        try:
            if model is not None:
                hand_over(model, paths)
            supervisor.begin(paths)
        except BaseException:
            runfolder.release(paths)
            raise
    return LocalBackend(paths, supervisor.process)


def hand_over(model: Model, paths: Paths) -> None:
    """Writes a captured model into a run folder, so that the processes of the run need not capture it again.

    What only the user's code can compute is not written, nor what is too large or lies otherwise in memory than in a file.
    Args: `paths` are the files of a run that this process prepares.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from planner.capture import to_data

    constants = model.captured.layout.traced.constants
    large = sum(tensor.nbytes for tensor in constants.values()) > MOST_CONSTANT_BYTES
    whole = all(x.layout == torch.strided and x.is_contiguous() for x in constants.values())
    with suppress(BadInput, OSError, SafetensorError, *DAMAGES):
        paths.captured.unlink(missing_ok=True)  # that of an earlier launch
        if large or not whole or model.workload.folder is not None:  # a folder is read as it is
            return
        own = model.captured.graph.captured_order  # where the plan has the layers in another one
        data = to_data(model.captured.ordered(own) if own else model.captured)
        loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        code = digests(file for file in loaded if file and is_users(file))
        told = {"versions": versions(), "code": code, "alone": model.captured.alone}
        save_file({name: x.detach().clone() for name, x in constants.items()}, paths.constants)
        runfolder.write_whole(paths.captured, json.dumps([told, data]))


def versions() -> list[str]:
    """Returns the versions of what a captured model is made with."""
    import torch

    return [sys.version, torch.__version__]


def digests(names: Iterable[str]) -> dict[str, str]:
    """Returns digests of the files of code among these, by name."""
    found = ((name, Path(name)) for name in names if name.endswith(".py"))
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found if path.is_file()}


def afresh(paths: Paths, rank: int) -> NoReturn:
    """Becomes the process of a rank that has nothing of the process from which it was forked.

    CUDA does not work in a fork of a process that has asked for a GPU, and whoever captures a model has: torch looks
    at its generators, and users' own files ask which devices there are.

    Args: the rank reads what it is to do in the run folder.
    """
    os.execv(sys.executable, _command(paths.root, os.getppid(), str(rank)))


def _command(root: Path, parent: int, *more: str) -> list[str]:
    return [sys.executable, "-P", "-m", "runtime.local.main", str(root), str(parent), *more]


@dataclass(frozen=True)
class _Supervisor:
    """A supervisor that waits for its run folder."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]  # before the run folder had a log

    def begin(self, paths: Paths) -> None:
        """Has the supervisor begin with a run folder that is prepared. One that has ended is told as any other."""
        runfolder.note_process(paths, self.process.pid)
        assert self.process.stdin is not None
        try:
            with self.process.stdin as begun:
                begun.write(b"\n")
        except BrokenPipeError:
            self.said.seek(0)
            (paths.root / "logs" / "supervisor.log").write_bytes(self.said.read())


@contextmanager
def _supervisor(folder: Path, detach: bool, device: str) -> Iterator[_Supervisor]:
    """Starts the supervisor of a run, which loads its libraries while the run is prepared: that takes both as long.

    Args: `folder` is the run folder, which need not be there yet; `device` is that of the ranks.
    Yields: the supervisor, which is ended where it has not begun at the end.
    Raises: BadInput for a name that no folder can have.
    """
    if "\0" in str(folder):
        raise BadInput("cannot be a run folder: embedded null byte", where=str(folder))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            _command(absolute(folder), 0 if detach else os.getpid()),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
            env=os.environ | NO_GPUS if device == "cpu" else None,
        )
        try:
            yield _Supervisor(process, said)
        except BaseException:
            process.kill()
            process.communicate()
            raise
