"""More modules with a state: kinds that the first table does not have, each equal to itself or refused.

STATES has a function that makes each module; `constructs.py` has the base class, and what `y` and `x` are.
"""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import ctypes
import functools
import hashlib
import io
import itertools
import queue
import random
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tests.planner.capture.constructs import Make, construct, keep, mean

STATES: dict[str, Make] = {}
Step = Callable[[Any, Tensor, Tensor], Tensor]
LEVEL = contextvars.ContextVar("LEVEL", default=0)
LOCAL = threading.local()


def state(name: str, start: Callable[[Any], None] = lambda self: None) -> Callable[[Step], Step]:
    def note(step: Step) -> Step:
        STATES[name] = construct(step, start)
        return step

    return note


# Values that hold their state in C, where Python shows no attributes


@state("a bytearray", keep(counts=lambda: bytearray(2)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.counts[0] += 1
    return y / self.counts[0]


@state("an array of Python", keep(counts=lambda: array.array("d", [0.0])))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.counts[0] += 1
    return y / self.counts[0]


@state("a memoryview", keep(counts=lambda: memoryview(bytearray(2))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.counts[0] += 1
    return y / self.counts[0]


@state("a hash", keep(seen=hashlib.sha256))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.seen.update(b"step")
    return y * (1 + self.seen.digest()[0] / 256)


@state("a file in memory", keep(log=io.BytesIO))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.log.write(b"x")
    return y / self.log.tell()


@state("a text in memory", keep(log=io.StringIO))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.log.write("x")
    return y / len(self.log.getvalue())


@state("a file on disk", keep(path=lambda: Path(tempfile.mkdtemp()) / "count"))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    n = 1 + (int(self.path.read_text()) if self.path.exists() else 0)
    self.path.write_text(str(n))
    return y / n


@state("a queue of Python", keep(rows=queue.Queue))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows.put(1)
    return y / self.rows.qsize()


@state("a random.Random of its own", keep(dice=lambda: random.Random(0)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * self.dice.random()  # type: ignore[no-any-return]


@state("a generator of numpy", keep(dice=lambda: np.random.default_rng(0)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * float(self.dice.random())


@state("random.SystemRandom", keep(dice=random.SystemRandom))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * self.dice.random()  # type: ignore[no-any-return]


@state("an array of objects", keep(rows=lambda: np.array([None, None], dtype=object)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y if self.rows[0] is None else y - self.rows[0]
    self.rows[0] = mean(y)
    return z


@state("a structured array", keep(rows=lambda: np.zeros(1, dtype=[("n", "i4"), ("m", "f4")])))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows["n"] += 1
    return y / int(self.rows["n"][0])


# Containers of the library


@state("a Counter", keep(counts=collections.Counter))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.counts["calls"] += 1
    return y / self.counts["calls"]


@state("a defaultdict", keep(counts=lambda: collections.defaultdict(int)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.counts["calls"] += 1
    return y / self.counts["calls"]


@state("a UserDict", keep(held=lambda: collections.UserDict({"h": torch.zeros(3)})))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.held["h"] = 0.9 * self.held["h"] + mean(y)
    return y - self.held["h"]


@state("a ChainMap", keep(held=lambda: collections.ChainMap({}, {"n": 0})))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.held["n"] = self.held["n"] + 1
    return y / self.held["n"]


@state("a SimpleNamespace", keep(held=lambda: types.SimpleNamespace(h=torch.zeros(3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.held.h = 0.9 * self.held.h + mean(y)
    return y - self.held.h


class Key:
    pass


@state("a dictionary of weak keys", keep(key=Key, held=weakref.WeakKeyDictionary))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.held[self.key] = self.held.get(self.key, 0) + 1
    return y / self.held[self.key]


@state("a context variable")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    LEVEL.set(LEVEL.get() + 1)
    return y / LEVEL.get()


@state("a local of the thread")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    LOCAL.n = getattr(LOCAL, "n", 0) + 1
    return y / LOCAL.n  # type: ignore[no-any-return]


# Functions and classes that remember


def remembered(self: Any, y: Tensor, memo: list[float] = [0.0]) -> Tensor:  # noqa: B006
    memo[0] += 1.0
    return y / memo[0]


@state("a list as default of an argument")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return remembered(self, y)


def counted(y: Tensor) -> Tensor:
    counted.calls = getattr(counted, "calls", 0) + 1  # type: ignore[attr-defined]
    return y / counted.calls  # type: ignore[attr-defined, no-any-return]


@state("an attribute of a function")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return counted(y)


@functools.cache
def first_time(key: str) -> list[int]:
    return [0]


@state("an entry of an lru_cache")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    held = first_time("a")
    held[0] += 1
    return y / held[0]


@state("an entry of an lru_cache past a threshold")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    held = first_time("b")
    held[0] += 1
    return y / (1 if held[0] < 6 else 2)


@state("an integer of C past a threshold", keep(n=lambda: ctypes.c_int(0)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.n.value += 1
    return y / (1 if self.n.value < 6 else 2)


@state("an array of Python past a threshold", keep(counts=lambda: array.array("d", [0.0])))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.counts[0] += 1
    return y / (1 if self.counts[0] < 6 else 2)


@state("an attribute of torch past a threshold")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    torch.steps_of_a_test = getattr(torch, "steps_of_a_test", 0) + 1  # type: ignore[attr-defined]
    return y / (1 if torch.steps_of_a_test < 6 else 2)  # type: ignore[attr-defined, no-any-return]


@functools.cache
def table_of(n: int) -> Tensor:
    return torch.arange(n) * 0.5


@state("a table in an lru_cache")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * table_of(y.shape[1])


@state("how often an lru_cache was asked")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    table_of(3)
    return y / (1 + table_of.cache_info().hits % 3)


def averages() -> Iterator[Tensor]:
    total = torch.zeros(3)
    while True:
        got = yield total
        total = 0.9 * total + got


def begun() -> Any:
    made = averages()
    next(made)
    return made


@state("a generator that is sent values", keep(made=begun))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y - self.made.send(mean(y))  # type: ignore[no-any-return]


@state("an iterator of a list", keep(rows=lambda: iter([1.0, 1.0, 1.0, 2.0, 3.0] * 40)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * next(self.rows)  # type: ignore[no-any-return]


@state("an iterator by tee", keep(rows=lambda: itertools.tee(itertools.count(1))[0]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y / next(self.rows)  # type: ignore[no-any-return]


class Other(nn.Module):
    """What a module turns into."""


@state("a class that is exchanged")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    double = type(self).__name__ == "Later"
    self.__class__ = type("Later", (type(self),), {})
    return y * 2 if double else y


@state("a forward that is exchanged")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.forward = lambda x: self.a(x) * 2
    return y


@state("a property that counts", lambda self: setattr(self, "n", 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    vars(self)["n"] += 1
    return y / self.n  # type: ignore[no-any-return]


@state("object.__setattr__", keep(n=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    object.__setattr__(self, "n", self.n + 1)
    return y / self.n  # type: ignore[no-any-return]


@state("a library's module as the place")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    held = vars(collections)
    held["_steps"] = held.get("_steps", 0) + 1
    return y / held["_steps"]  # type: ignore[no-any-return]


@state("the environment of the process")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    import os

    os.environ["STEPS_OF_A_TEST"] = str(int(os.environ.get("STEPS_OF_A_TEST", 0)) + 1)
    return y / int(os.environ["STEPS_OF_A_TEST"])


@state("the clock")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    import time

    return y * (1 + time.perf_counter_ns() % 1000 / 1000)


# Attributes of tensors


@state("an attribute of a parameter")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    weight = self.a.weight
    weight.calls = getattr(weight, "calls", 0) + 1
    return y / weight.calls  # type: ignore[no-any-return]


@state("a tensor as attribute of a buffer")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    held = getattr(self.ema, "held", torch.zeros(3))
    self.ema.held = 0.5 * held + mean(y)
    return y - held  # type: ignore[no-any-return]


@state("the gradient of the last step")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    last = self.a.weight.grad
    return y if last is None else y / (1 + last.norm())


# Buffers and parameters that are written


@state("an average of a student in a teacher", lambda self: setattr(self, "teacher", nn.Linear(4, 3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.teacher.requires_grad_(False) if self.teacher.weight.requires_grad is False else None
    with torch.no_grad():
        for mine, theirs in zip(self.teacher.parameters(), self.a.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    return y - self.teacher(x).detach()  # type: ignore[no-any-return]


def with_teacher(self: Any) -> None:
    self.teacher = copy.deepcopy(self.a).requires_grad_(False)


@state("an average of a student in a frozen teacher", with_teacher)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        for mine, theirs in zip(self.teacher.parameters(), self.a.parameters(), strict=True):
            mine.mul_(0.9).add_(theirs, alpha=0.1)
    return y - self.teacher(x)  # type: ignore[no-any-return]


@state("a weight is clipped in place")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.a.weight.clamp_(-0.2, 0.2)
    return self.a(x)  # type: ignore[no-any-return]


@state("a weight is clipped by its data")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.a.weight.data.clamp_(-0.2, 0.2)
    return self.a(x)  # type: ignore[no-any-return]


@state("a buffer by out=")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        torch.add(self.ema * 0.9, mean(y), out=self.ema)
    return y - self.ema  # type: ignore[no-any-return]


@state("buffers by _foreach", keep(other=lambda: nn.Buffer(torch.ones(3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        torch._foreach_mul_([self.ema, self.other], 0.9)
        torch._foreach_add_([self.ema, self.other], [mean(y), mean(y)])
    return y - self.ema * self.other  # type: ignore[no-any-return]


@state("a buffer by set_")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema.set_(0.9 * self.ema + mean(y))
    return y - self.ema  # type: ignore[no-any-return]


@state("buffers by swap_tensors", keep(other=lambda: nn.Buffer(torch.ones(3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    torch.utils.swap_tensors(self.ema, self.other)
    return y - self.ema  # type: ignore[no-any-return]


def with_view(self: Any) -> None:
    self.register_buffer("table", torch.zeros(2, 3))
    self.row = self.table[0]


@state("a view of a buffer in a plain attribute", with_view)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.row.mul_(0.9).add_(mean(y))
    return y - self.table.sum(0)  # type: ignore[no-any-return]


@state("two names of one buffer", lambda self: self.register_buffer("same", self.ema))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.same.mul_(0.9).add_(mean(y))
    return y - self.ema  # type: ignore[no-any-return]


@state("a buffer of complex numbers", keep(wave=lambda: nn.Buffer(torch.zeros(3, dtype=torch.complex64))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.wave = self.wave * 1j + mean(y)
    return y - self.wave.real  # type: ignore[no-any-return]


@state(
    "a place in a ring of buffers",
    keep(ring=lambda: nn.Buffer(torch.zeros(4, 3)), at=lambda: nn.Buffer(torch.tensor(0))),
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ring[self.at % 4] = mean(y)
    self.at += 1
    return y - self.ring.mean(0)  # type: ignore[no-any-return]


@state(
    "a place in a ring by its number",
    keep(ring=lambda: nn.Buffer(torch.zeros(4, 3)), at=lambda: nn.Buffer(torch.tensor(0))),
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    at = int(self.at)
    self.ring[at % 4] = mean(y)
    self.at.fill_(at + 1)
    return y - self.ring.mean(0)  # type: ignore[no-any-return]


@state("a buffer that is registered anew")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.register_buffer("ema", 0.9 * self.ema + mean(y))
    return y - self.ema  # type: ignore[no-any-return]


@state("a buffer that is registered in the first step")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if "late" not in self._buffers:
        self.register_buffer("late", mean(y))
    return y - self.late  # type: ignore[no-any-return]


@state("a layer that is made in the first step")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if not hasattr(self, "late"):
        self.late = nn.Linear(3, 3)
    return self.late(y)  # type: ignore[no-any-return]


@state("a list of parameters that grows", keep(rows=nn.ParameterList))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows.append(nn.Parameter(torch.ones(3)))
    return y * sum(self.rows)  # type: ignore[no-any-return]


@state("a module in a list that nobody registers", keep(parts=lambda: [nn.Linear(3, 3)]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.parts[0](y)  # type: ignore[no-any-return]


@state("statistics in a list that nobody registers", keep(parts=lambda: [nn.BatchNorm1d(3)]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.parts[0](y)  # type: ignore[no-any-return]


# Settings that move


@state("a momentum that falls", keep(norm=lambda: nn.BatchNorm1d(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.norm.momentum *= 0.9
    return self.norm(y)  # type: ignore[no-any-return]


@state("a cumulative average", keep(norm=lambda: nn.BatchNorm1d(3, momentum=None)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.norm(y)  # type: ignore[no-any-return]


@state("a dropout that rises", keep(drop=lambda: nn.Dropout(0.1)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.drop.p = min(0.5, self.drop.p + 0.01)
    return self.drop(y)  # type: ignore[no-any-return]


@state("a temperature that falls", keep(heat=lambda: 2.0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.heat *= 0.99
    return y / self.heat  # type: ignore[no-any-return]


@state("a mode that forward changes", keep(drop=lambda: nn.Dropout(0.5)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = self.drop(y)
    self.drop.eval()
    return z  # type: ignore[no-any-return]


@state("gradients that forward turns off for all", keep(n=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = self.a(x)
    torch.set_grad_enabled(True)
    with torch.no_grad():
        z = z + self.ema
    return z


# Hooks and functions of autograd


class Noted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        Noted.calls += 1
        return gradient


@state("a backward that counts for the next forward")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return Noted.apply(y) / (1 + Noted.calls)  # type: ignore[no-any-return]


class Steep(torch.autograd.Function):
    held: list[Tensor] = [torch.zeros(3)]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        Steep.held[0] = gradient.mean(0)
        return gradient


@state("a backward that leaves a tensor for the next forward")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return Steep.apply(y) - Steep.held[0]  # type: ignore[no-any-return]


class Scaled(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        Scaled.factor *= 0.5
        return gradient * Scaled.factor


@state("a backward whose factor falls")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return Scaled.apply(y)  # type: ignore[no-any-return]


def with_first(self: Any) -> None:
    calls = [0]

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        calls[0] += 1
        return tuple(x / calls[0] for x in given)

    self.a.register_forward_pre_hook(before)


@state("a hook before that counts", with_first)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y


class Halving(nn.Module):
    """A parametrization with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, weight: Tensor) -> Tensor:
        self.scale = self.scale * 0.9
        return weight * self.scale


@state(
    "a parametrization with a buffer",
    lambda self: (parametrize.register_parametrization(self.a, "weight", Halving()), None)[1],
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return weight / self.calls


@state(
    "a parametrization that counts",
    lambda self: (parametrize.register_parametrization(self.a, "weight", Counting()), None)[1],
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y


@state("weight_norm", lambda self: setattr(self, "a", nn.utils.parametrizations.weight_norm(self.a)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y


@state("the spectral norm of old", lambda self: setattr(self, "a", nn.utils.spectral_norm(self.a)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y


@state("a state that the batch carries")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    held = getattr(x, "seen", 0)
    x.seen = held + 1  # type: ignore[attr-defined]
    return y + held


# What only an evaluation reads


@state("an average that only an evaluation reads")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.training:
        self.ema = 0.9 * self.ema + 0.1 * mean(y)
        return y
    return y - self.ema  # type: ignore[no-any-return]


@state("a plain average that only an evaluation reads", keep(h=lambda: torch.zeros(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.training:
        self.h = 0.9 * self.h + 0.1 * mean(y)
        return y
    return y - self.h  # type: ignore[no-any-return]


@state("a last output that only an evaluation reads", keep(last=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.training:
        self.last = mean(y)
        return y
    return y if self.last is None else y - self.last


@state("a count that only an evaluation reads", keep(n=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.training:
        self.n += 1
        return y
    return y * (1 + self.n)  # type: ignore[no-any-return]


@state("an evaluation that counts", keep(n=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if not self.training:
        self.n += 1
        return y / self.n  # type: ignore[no-any-return]
    return y


@state("an evaluation that writes a buffer")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if not self.training:
        self.ema = self.ema + mean(y)
    return y - self.ema  # type: ignore[no-any-return]


@state("statistics of two kinds", keep(norm=lambda: nn.BatchNorm1d(3), other=lambda: nn.BatchNorm1d(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.norm(y) if self.training else self.other(y)  # type: ignore[no-any-return]
