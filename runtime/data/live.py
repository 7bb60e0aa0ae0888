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
import signal
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
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, default_collate

from planner.capture import LiveLoop, write_model
from planner.errors import BadInput
from planner.workload import SOCKET, STORED, Workload, flat, load, reseed, seeded, spared
from runtime.data.stream import mix

TARGETS = ("labels", "label", "targets", "target")
EXAMPLE_SAMPLES, MOST_SAMPLES = 4, 32
DRAWING = (
    "__iter__",
    "_get_iterator",
    "_index_sampler",
    "_auto_collation",
)  # of a DataLoader: what makes its batches


def live_workload(
    model: nn.Module,
    batch: object,
    loss: object,
    loader: object,
    loop: LiveLoop,
    folder: Path | None,
    valid: object = None,
) -> Workload:
    """Writes a live model as a folder and returns its workload; a loader's samples are served from here.

    Args: they are those of `shardwright.Workload`.
    Raises: BadInput where neither batch nor loader is given, or something cannot travel as data.
    """
    folder = folder or Path(f"{type(model).__name__.lower()}.model")
    parts: dict[str, Loaded] = {}
    if loader is not None:
        parts["train"] = first = Loaded(_loader(loader, "loader"))
        if loop.sampler is None and loop.dataset is None:
            _refuse_uneven(first.sizes())
        if batch is None:
            count = min(max(EXAMPLE_SAMPLES, first.batch), first.length, MOST_SAMPLES)
            with seeded(0):  # the notebook draws on as if nothing had been
                batch = first.joined([first.sample(i) for i in range(count)])
    if valid is not None and not isinstance(valid, str):
        collate = parts["train"].collate if parts else default_collate
        made = valid if isinstance(valid, DataLoader) else DataLoader(cast(Any, valid), collate_fn=collate)
        parts["valid"] = Loaded(_loader(made, "valid"))
    elif valid is not None:
        loop = replace(loop, valid_dataset=valid)
    loop = _with_addresses(loop, parts) if parts else loop
    if loop.dataset is None:
        loop = replace(loop, dataset=STORED)
    if batch is None:
        raise BadInput("a live model needs an example batch", where="Workload", allowed="batch= or loader=")
    if loss is not None and not callable(loss):
        raise BadInput(f"loss is {type(loss).__name__}", where="Workload", allowed="loss(outputs, targets)")
    write_model(folder, model, pair_of(batch), loss or own_loss, loop)
    return load(str(folder))


def _loader(loader: object, role: str) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        raise BadInput(
            f"{role} is no DataLoader of a dataset with indices",
            where="Workload",
            allowed="a map-style dataset; an IterableDataset as dataset='module:function'",
        )
    own = next((x for x in DRAWING if getattr(type(loader), x) is not getattr(DataLoader, x)), "")
    own = own or next((x for x in DRAWING if x in vars(loader)), "")
    wrong = f"is a {type(loader).__name__} with {own} of its own" if own else ""
    cure = "what it does in the dataset, its collate_fn or its sampler, which all run"
    if not wrong and loader.batch_size is None and type(loader.batch_sampler) is type(None):
        wrong, cure = (
            "has batch_size=None, and so no batches",
            "a batch_size, and single samples in the dataset",
        )
    if not wrong and loader.worker_init_fn is not None and loader.num_workers:
        wrong = "has a worker_init_fn, which no process of a plan runs"
        cure = "no worker_init_fn: seeds are set for every sample; what else it does in the dataset"
    if wrong:
        raise BadInput(f"{role} {wrong}", where="Workload", allowed=cure)
    return loader


def _refuse_uneven(sizes: list[int]) -> None:
    """Raises BadInput where batches before the last have several sizes: those of a plan have one."""
    if len(different := dict.fromkeys(sizes[:-1])) > 1:
        raise BadInput(
            f"loader has batches of {', '.join(map(str, [*different][:4]))} samples, and those of a plan have one size",
            where="Workload",
            allowed="a batch_sampler of equal batches, as from buckets; only the last may be short",
        )


def _with_addresses(loop: LiveLoop, parts: Mapping[str, Loaded]) -> LiveLoop:
    """Starts to serve, and returns the loop with the addresses of what is served."""
    if loop.dataset is not None and "valid" not in parts:
        return loop
    path = Served(parts).start()
    address = {name: f"{SOCKET}{path}#{name}:{each.length}" for name, each in parts.items()}
    if "train" in address and loop.dataset is None:
        loop = replace(loop, dataset=address["train"], collate=None)
        if loop.sampler is None and parts["train"].ordered:
            loop = replace(loop, sampler=address["train"])
    return replace(loop, valid_dataset=address["valid"]) if "valid" in address else loop


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


class Loaded:
    """A loader's samples, drawn here."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._data, self.collate = cast(Any, loader.dataset), loader.collate_fn
        self._loader = loader
        self.length = len(self._data)
        if not self.length:
            raise BadInput("the loader's dataset has no samples", where="Workload")

    @property
    def batch(self) -> int:
        """Returns the loader's batch size, 0 where it has none of its own."""
        return self._loader.batch_size or 0

    @property
    def ordered(self) -> bool:
        """Returns whether the loader has an order of its own: anything but torch's plain shuffling."""
        return type(self._batches) is not BatchSampler or type(self._loader.sampler) is not RandomSampler

    @property
    def _batches(self) -> object:
        return self._loader.batch_sampler

    @property
    def _own_batches(self) -> bool:
        return type(self._batches) not in (BatchSampler, type(None))

    def sizes(self) -> list[int]:
        """Returns the sizes of an epoch's batches, where the loader has a batch sampler of its own."""
        if not self._own_batches:
            return []
        sampler = cast(Any, self._batches)
        own = [getattr(each, "generator", None) for each in (sampler, getattr(sampler, "sampler", None))]
        before = [(each, each.get_state()) for each in own if isinstance(each, torch.Generator)]
        with seeded(0):  # the notebook draws on as if nothing had been
            found = [len(part) for part in sampler]
        for generator, state in before:
            generator.set_state(state)
        return found

    def order(self, seed: int, epoch: int) -> list[int]:
        """Returns the indices of an epoch by the loader's own sampler, drawn under (seed, epoch)."""
        own = self._own_batches
        sampler = cast(Any, self._batches if own else self._loader.sampler)
        for each in (sampler, cast(Any, getattr(sampler, "sampler", None))):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
            if isinstance(getattr(each, "generator", None), torch.Generator):
                each.generator.manual_seed(mix(seed, epoch))
        with seeded(mix(seed, epoch)):
            found = [int(i) for part in sampler for i in part] if own else [int(i) for i in sampler]
        return found

    def sample(self, index: int) -> object:
        """Returns one sample of the dataset."""
        return self._data[index]

    def joined(self, samples: list[object]) -> tuple[object, object]:
        """Returns samples as a batch (inputs, targets), by the loader's own function."""
        return pair_of(self.collate(samples))


class Served:
    """Loaders of a notebook by name, whose samples ranks ask for."""

    def __init__(self, parts: Mapping[str, Loaded]) -> None:
        self._parts = dict(parts)

    def start(self) -> str:
        """Starts the process that serves.

        Returns: the path of the socket.
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
        return str(path)

    def _serve(self, path: str, ready: Any) -> None:  # Any: an event of multiprocessing
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a notebook interrupts all its processes; runs go on
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the notebook does with it
        torch.set_num_threads(1)
        served, lock, parent = self, threading.Lock(), os.getppid()

        class Answer(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    asked = json.loads(line)
                    with lock:
                        answer = served._answer(asked)
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

    def _answer(self, asked: Mapping[str, Any]) -> bytes:
        tensors: dict[str, torch.Tensor] = {}
        head: dict[str, object]
        try:
            part = self._parts[asked["part"]]
            if "order" in asked:
                head = {"order": part.order(*asked["order"])}
            else:
                head = {
                    "batch": [flat(x, tensors, -1) for x in _drawn(part, asked["indices"], asked["seeds"])]
                }
        except Exception as error:  # the user's dataset ran: it may raise anything
            head = {"error": f"{type(error).__name__}: {error}"}
        text, body = json.dumps(head).encode(), save(tensors)
        return struct.pack(">QQ", len(text), len(body)) + text + body


def _drawn(part: Loaded, indices: list[int], seeds: list[int]) -> tuple[object, object]:
    with spared():
        samples = []
        for index, seed in zip(indices, seeds, strict=True):
            reseed(seed)
            samples.append(part.sample(index))
        reseed(seeds[0])  # a collate function may draw, too
        return part.joined(samples)
