"""Has any number of processes compute the boxes of an output volume, which they share through a folder beside it.

`python -P -m runtime.infer.work FOLDER` is one of them. It may be started anywhere that sees the folder, at any time,
and be ended at any time: what it held is taken by others, and the finished volume is the same to the bit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from planner.errors import BadInput, Interrupted, ShardwrightError
from planner.files import write_whole
from runtime import slurm
from runtime.infer.folder import InferFolder, InferJob, InferStatus, box_of, status_of
from runtime.infer.model import Applied, share
from runtime.infer.start import InferPlan
from runtime.infer.storage import Numbers, Volume, created, opened, written
from runtime.leases import Lease

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # or the limit of a user
LOOK_S = 0.5
SAID = {
    "fingerprint": "model",
    "stamp": "state of the input or mask",
    "weights_digest": "content of the weights",
}  # for people
APPEARS_S = 30.0  # until a folder that another process makes has its job


def begin(job: InferJob, applied: Applied, unit: Sequence[int]) -> InferFolder:
    """Makes the output volume and its folder of tasks, or joins those who compute the same already.

    Args: `job` has its chunk; `unit` is the storage chunk of the output along each axis of space.
    Raises: BadInput where the output exists and is another job's.
    """
    folder, output = InferFolder.beside(job.output), Path(job.output)
    if folder.root.exists():
        return _joined(folder, job)
    if output.exists():
        raise BadInput("exists", where=job.output, allowed="another path, or remove it")
    try:
        folder.root.mkdir(parents=True)
    except FileExistsError:
        return _joined(folder, job)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=job.output) from error
    try:
        chunks = [high - low for low, high in applied.output_box(tuple((0, n) for n in unit))]
        created(output, applied.output_shape, applied.output_dtype, chunks)
        write_whole(folder.root / "space.json", json.dumps(applied.output_space))
        folder.logs.mkdir()
        write_whole(folder.job, json.dumps(asdict(job)))
    except BaseException:
        shutil.rmtree(folder.root, ignore_errors=True)
        shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
        raise
    return folder


def _joined(folder: InferFolder, job: InferJob) -> InferFolder:
    """Returns the folder that others have made, where its job is the same but for the chunk."""
    end = time.monotonic() + APPEARS_S
    while not folder.job.exists():
        if time.monotonic() > end:
            raise BadInput(
                "has no job: whoever began it has ended",
                where=str(folder.root),
                allowed="remove it, and the output beside it",
            )
        time.sleep(0.1)
    found = folder.read()
    if not Path(found.output).exists():
        raise BadInput(
            "is gone, and its tasks are not", where=job.output, allowed=f"remove {folder.root}, too"
        )
    same = replace(job, chunk=found.chunk, sweep=found.sweep, device=found.device, directory=found.directory)
    if same != found:
        differ = [
            SAID.get(name, name) for name, value in asdict(same).items() if asdict(found)[name] != value
        ]
        raise BadInput(
            f"exists, and was begun with another {', '.join(differ)}",
            where=job.output,
            allowed=f"another path; or remove it and {folder.root}",
        )
    return folder


def work_on(folder: InferFolder, say: Callable[[str], None], applied: Applied | None = None) -> InferStatus:
    """Computes boxes until none is left that can be had.

    Args: `say` is told of each task; `applied` is the model where the caller has it.
    Returns: the state at the end.
    Raises: BadInput where the model is not the one that the others compute with, or the disk is full.
    """
    job, tasks = folder.read(), folder.tasks()
    applied = applied or Applied(job)
    if applied.digest != job.fingerprint:
        raise BadInput(
            "is not the model that this output was begun with",
            where=job.workload,
            allowed=f"the model as it was; or remove {job.output} and {folder.root}",
        )
    folder.check_space(tuple(applied.output_space))
    output = written(Path(job.output))
    mask = opened(job.mask) if job.mask else None
    try:
        for lease in tasks.work():
            with lease:
                try:
                    say(_done(applied, output, mask, lease))
                except (ShardwrightError, OSError, RuntimeError, ValueError, MemoryError) as error:
                    if _is_full(error):
                        raise
                    say(_failed(lease, error))
    except (BadInput, OSError) as error:
        if _is_full(error):
            said = "the disk is full; nothing that is done is lost"
            allowed = "free some room, and type the same command again"
            raise BadInput(said, where=job.output, allowed=allowed) from error
        raise
    return status_of(folder)


def _is_full(error: BaseException) -> bool:
    """Returns whether an error is about a full disk, or was made of one that is."""
    found = error if isinstance(error, OSError) else error.__context__
    return isinstance(found, OSError) and found.errno in FULL


def _failed(lease: Lease, error: Exception) -> str:
    said = f"{type(error).__name__}: {error}"
    lease.failed(said)
    return f"{lease.name}: failed: {said}"


def _done(applied: Applied, output: Volume, mask: Volume | None, lease: Lease) -> str:
    """Computes one box, writes it, reads it back, and says that it is done."""
    start, box = time.perf_counter(), box_of(lease.name)
    place, odd = applied.output_box(box), 0
    kept = mask.read(box) != 0 if mask is not None else None
    if applied.job.devices:
        return _shared(applied, output, lease)
    if kept is not None and not kept.any():
        values: Numbers = np.zeros([high - low for low, high in place], applied.output_dtype)
    else:
        values, odd = applied.compute(box)
        if kept is not None:
            values = np.where(kept, values, np.zeros((), values.dtype))
    output.write(place, values)
    found = digest(values)
    if digest(output.read(place)) != found:
        raise OSError("what was written is not what is read")
    made = int(values.size - np.isfinite(values).sum()) if values.dtype.kind == "f" else 0
    seconds = time.perf_counter() - start
    facts = {
        "checksum": found,
        "odd": odd,
        "odd_made": made,
        "seconds": seconds,
        "host": socket.gethostname(),
    }
    lease.done(facts)
    return f"{lease.name}: {seconds:.2f} s" + (f", {odd} numbers read are not finite" if odd else "")


def _shared(applied: Applied, output: Volume, lease: Lease) -> str:
    """Has the whole volume computed by processes that share it, one for each device."""
    start, ranks = time.perf_counter(), applied.job.devices
    root = lease.folder
    with tempfile.TemporaryDirectory(prefix="meet-", dir=root) as meet:
        command = [sys.executable, "-P", "-m", "runtime.infer.work", str(root)]
        running = [
            subprocess.Popen(
                [*command, str(rank), meet], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for rank in range(ranks)
        ]
        try:
            said = [process.communicate()[0] for process in running]
        finally:
            for process in running:
                process.kill()
    failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
    if failed:
        raise RuntimeError(failed[0].strip()[-1000:])
    values = output.read(tuple((0, n) for n in output.shape))
    odd = sum(json.loads(text.splitlines()[-1]) for text in said)
    made = int(values.size - np.isfinite(values).sum()) if values.dtype.kind == "f" else 0
    facts = {"checksum": digest(values), "odd": odd, "odd_made": made, "host": socket.gethostname()}
    lease.done(facts | {"seconds": time.perf_counter() - start})
    return f"{lease.name}: {time.perf_counter() - start:.2f} s on {ranks} devices"


def digest(values: Numbers) -> str:
    """Returns a checksum of numbers, bit by bit."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:32]


def run(plan: InferPlan, say: Callable[[str], None]) -> InferStatus:
    """Computes an output volume here, and waits for it.

    Args: `say` is told how it goes on.
    Returns: the state at the end.
    Raises: BadInput where the output cannot be written; Interrupted on Ctrl-C, after which the same command goes on.
    """
    folder = begin(plan.job, plan.applied, plan.unit)
    try:
        if plan.request.workers == 1:
            with _log(folder, 0).open("a", buffering=1) as log:

                def both(line: str) -> None:
                    say(line)
                    print(line, file=log)

                return work_on(folder, both, plan.applied)
        return _processes(folder, plan.request.workers, say)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; the same command goes on where {folder.root} stands") from error


def _log(folder: InferFolder, number: int) -> Path:
    return folder.logs / f"{os.uname().nodename}-{os.getpid()}-{number}.log"


def _processes(folder: InferFolder, workers: int, say: Callable[[str], None]) -> InferStatus:
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, "-P", "-m", "runtime.infer.work", str(folder.root)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(workers):
            with _log(folder, number).open("ab") as file:
                running.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment))
        last = -1
        while any(process.poll() is None for process in running):
            done = len(folder.tasks().finished())
            if done != last:
                say(f"{done} tasks done")
                last = done
            time.sleep(LOOK_S)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return status_of(folder)


def queue(plan: InferPlan, elements: int, options: slurm.Options, *, test: bool) -> tuple[InferFolder, str]:
    """Queues an array of workers as a SLURM job.

    Args: `elements` are the workers; with `test` the script is made and nothing is begun.
    Returns: the folder of tasks, and the script, or the job's number.
    """
    folder = InferFolder.beside(plan.job.output)
    text = slurm.array_text(folder.root, elements, plan.job.directory, plan.job.device != "cpu", options)
    if test:
        return folder, text
    begin(plan.job, plan.applied, plan.unit)
    script = folder.root / "job.sbatch"
    write_whole(script, text)
    return folder, slurm.queue_script(script)


def main(name: str, rank: str = "", meet: str = "") -> int:
    """Works on a folder of tasks until nothing is left, and prints a line for each task; or is one rank of a task.

    Returns: the exit status.
    """
    folder = InferFolder(Path(name).resolve())
    try:
        if rank:
            print(share(folder.read(), int(rank), meet), flush=True)
            return 0
        found = work_on(folder, lambda line: print(line, flush=True))
    except ShardwrightError as error:
        print(error, file=sys.stderr, flush=True)
        return error.status
    return 0 if found.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
