"""Serves a dataset that stands in a notebook to the ranks of this machine.

A process of its own, forked from the notebook's, draws the samples that ranks ask for, under the seeds that they give.
What travels are numbers and tensors, on a socket in a folder of the caller's own. The process ends with the notebook's.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import shutil
import socketserver
import struct
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from planner.capture import LiveLoop, write_model
from planner.errors import BadInput
from planner.workload import STORED, Workload, flat, load
from runtime.data.batches import seeded

TARGETS = ("labels", "label", "targets", "target")
EXAMPLE_SAMPLES = 4


def live_workload(
    model: nn.Module, batch: object, loss: object, loader: object, loop: LiveLoop, folder: Path | None
) -> Workload:
    """Writes a live model as a folder and returns its workload; a loader's samples are served from here.

    Args: they are those of `shardwright.Workload`.
    Raises: BadInput where neither batch nor loader is given, or something cannot travel as data.
    """
    folder = folder or Path(f"{type(model).__name__.lower()}.model")
    if loader is not None:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise BadInput("loader is no DataLoader of a dataset with indices", where="Workload")
        served = Served(loader)
        if batch is None:
            count = min(EXAMPLE_SAMPLES, served.length)
            with seeded(0):  # the notebook draws on as if nothing had been
                batch = served.joined([served.sample(i) for i in range(count)])
        if loop.dataset is None:
            loop = replace(loop, dataset=served.start(), collate=None)
    elif loop.dataset is None:
        loop = replace(loop, dataset=STORED)
    if batch is None:
        raise BadInput("a live model needs an example batch", where="Workload", allowed="batch= or loader=")
    if loss is not None and not callable(loss):
        raise BadInput(f"loss is {type(loss).__name__}", where="Workload", allowed="loss(outputs, targets)")
    write_model(folder, model, pair_of(batch), loss or own_loss, loop)
    return load(str(folder))


def own_loss(outputs: object, targets: object) -> object:
    """Returns the loss that a model has computed itself, as those of transformers do."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None:
        raise BadInput("the model's outputs have no 'loss'", where="Workload", allowed="loss=function")
    return found


def pair_of(batch: object) -> tuple[object, object]:
    """Returns a batch as (inputs, targets); in a mapping that stands alone, the labels are both.

    Raises: BadInput for anything else.
    """
    if isinstance(batch, Mapping):
        inputs = dict(batch)
        return inputs, next((inputs[name] for name in TARGETS if name in inputs), ())
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise BadInput(
        f"a batch is {type(batch).__name__}", where="Workload", allowed="(inputs, targets), or a dict"
    )


class Served:
    """The samples of a loader, drawn here and asked for by ranks."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._data, self._collate = cast(Any, loader.dataset), loader.collate_fn
        self.length = len(self._data)
        if not self.length:
            raise BadInput("the loader's dataset has no samples", where="Workload")

    def sample(self, index: int) -> object:
        """Returns one sample of the dataset."""
        return self._data[index]

    def joined(self, samples: list[object]) -> tuple[object, object]:
        """Returns samples as a batch (inputs, targets), by the loader's own function."""
        return pair_of(self._collate(samples))

    def start(self) -> str:
        """Starts the process that serves.

        Returns: the address, for the folder of the model.
        """
        path = Path(tempfile.mkdtemp(prefix="shardwright-samples-")) / "socket"
        atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
        fork = multiprocessing.get_context("fork")
        ready = fork.Event()
        process = fork.Process(target=self._serve, args=(str(path), ready), daemon=True)
        process.start()
        if not ready.wait(30):
            raise BadInput(
                "the dataset cannot be served from this process", allowed="dataset='module:function'"
            )
        return f"socket:{path}:{self.length}"

    def _serve(self, path: str, ready: Any) -> None:  # Any: an event of multiprocessing
        torch.set_num_threads(1)
        served, lock, parent = self, threading.Lock(), os.getppid()

        class Answer(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    asked = json.loads(line)
                    with lock:
                        answer = served._answer(asked["indices"], asked["seeds"])
                    self.wfile.write(answer)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def service_actions(self) -> None:
                if os.getppid() != parent:
                    shutil.rmtree(Path(path).parent, ignore_errors=True)
                    os._exit(0)

        with Server(path, Answer) as server:
            ready.set()
            server.serve_forever()

    def _answer(self, indices: list[int], seeds: list[int]) -> bytes:
        tensors: dict[str, torch.Tensor] = {}
        head: dict[str, object]
        try:
            samples = []
            for index, seed in zip(indices, seeds, strict=True):
                with seeded(seed):
                    samples.append(self.sample(index))
            with seeded(seeds[0]):  # a collate function may draw, too
                head = {"batch": [flat(part, tensors, -1) for part in self.joined(samples)]}
        except Exception as error:  # the user's dataset ran: it may raise anything
            head = {"error": f"{type(error).__name__}: {error}"}
        text, body = json.dumps(head).encode(), save(tensors)
        return struct.pack(">QQ", len(text), len(body)) + text + body
