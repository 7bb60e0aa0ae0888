"""The process that measures, so that running out of memory or crashing is an answer and not a crash.

`python -P -m planner.measure.process.child` reads a MeasureRequest, answers Ready, reads what is Pending, and
writes a line an event. Its standard output goes to standard error, so that what a workload prints does not disturb
the lines.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.errors import BadInput, Unexpected
from planner.measure.process.protocol import (
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

if TYPE_CHECKING:
    from planner.workload import Workload


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    ready = False

    def say(message: Message) -> None:
        nonlocal ready
        ready = ready or isinstance(message, Ready)
        lines.write(encode(message) + "\n")

    try:
        serve(say)
    except BadInput as error:
        say(Refused(what=error.what, where=error.where, allowed=error.allowed))
        sys.exit(error.status)
    except Exception as error:
        if ready:  # a row has failed, and the process that waits knows which
            raise
        found = Unexpected.of(error)
        say(Refused(what=str(found), where="", allowed="", trace=found.trace))
        sys.exit(found.status)


def serve(say: Callable[[Message], None]) -> None:
    """Answers one request: captures the model, says that it is ready, then measures what is still pending.

    Args: `say` sends one message to the waiting process. Requests are read from standard input.
    Raises: BadInput where the workload cannot be captured or measured as asked.
    """
    request = parse(sys.stdin.readline())
    assert isinstance(request, MeasureRequest)
    import torch

    from planner.capture import mixes_samples, settle_memory
    from planner.cluster import OtherLoad
    from planner.measure.bench import bench_of, device_name, versions
    from planner.measure.optimizer import measured_optimizer
    from planner.measure.passes import clock_of
    from planner.measure.rows import measured_rows
    from planner.workload import load

    torch.set_num_threads(1)  # as a rank computes: several ranks share a machine's cores
    device = device_name(request.device)
    workload = load(request.workload, request.arguments)
    bench = bench_of(workload, request, request.device, made(request.split), made(request.spatial))
    graph = bench.captured.graph
    keys = tuple(bench.keys())
    left, said = bench.left_out, bench.said
    say(Ready(graph=graph, keys=keys, device=device, versions=versions(), left_out=left, said=said))
    line = sys.stdin.readline()
    if not line:
        return
    pending = parse(line)
    assert isinstance(pending, Pending)
    settle_memory()
    others, begun = OtherLoad(), time.process_time()
    clock, visits = clock_of(request.device), list[list[float]]()
    if pending.optimizer:
        say(Optimized(measured_optimizer(workload, graph, request.device, clock, visits)))
    for event in measured_rows(
        bench, pending.keys, seconds_per_row=request.seconds_per_row, alone=pending.alone
    ):
        say(event)
    if pending.optimizer:  # once more, apart in time
        say(Optimized(measured_optimizer(workload, graph, request.device, clock, visits)))
    say(RanBeside(others.share(time.process_time() - begun)))
    say(read_samples(workload))  # after all rows, since the user's dataset may end this process
    if workload.folder is None:  # of a live model it was said before its folder was written
        loss = workload.functions["loss"]
        say(Mixed(mixes_samples(bench.captured, workload.build, workload.batch, loss)))


def read_samples(workload: Workload) -> SamplesRead:
    """Times the samples of a dataset; one that cannot be read here is no reason to refuse its model."""
    from planner.measure.bench import sample_cost

    try:
        return SamplesRead(sample_cost(workload))
    except Exception as error:  # the user's dataset ran: it may raise anything
        what = error.what if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        return SamplesRead(None, f"reading samples was not timed: {what}")


def made(name: str) -> Any:  # Any: what class it is only the one who named it knows
    """Returns the object that a name of the form module:class stands for, made without arguments.

    Args: `name` may be empty, for None.
    """
    if not name:
        return None
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)()


if __name__ == "__main__":
    main()
