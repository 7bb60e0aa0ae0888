"""Small modules that leave something behind in forward, or look whether they are traced, each with what has to happen.

EQUAL: the captured graph trains as the module does. REFUSED: a BadInput, before anything runs.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Make = Callable[[], nn.Module]
EQUAL: dict[str, Make] = {}
REFUSED: dict[str, tuple[Make, str]] = {}  # with words of the message
OPAQUE: dict[str, list[str]] = {}  # paths of the modules that are taken whole
SYMBOLS: list[Tensor] = [torch.zeros(3)]
COUNTS = {"calls": 0}
STEP = 0
TABLES: dict[int, Tensor] = {}


class Base(nn.Module):
    """A linear layer, and what a construct does with its output `y`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.register_buffer("ema", torch.zeros(3))
        self.ema: Tensor
        self.start()

    def start(self) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.a(x), x)

    def step(self, y: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError


def construct(
    step: Callable[[Any, Tensor, Tensor], Tensor], start: Callable[[Any], None] = lambda self: None
) -> Make:
    return type("Construct", (Base,), {"step": step, "start": start})


def equal(name: str, start: Callable[[Any], None] = lambda self: None) -> Callable[..., object]:
    def note(step: Callable[[Any, Tensor, Tensor], Tensor]) -> object:
        EQUAL[name] = construct(step, start)
        return step

    return note


def refused(name: str, words: str, start: Callable[[Any], None] = lambda self: None) -> Callable[..., object]:
    def note(step: Callable[[Any, Tensor, Tensor], Tensor]) -> object:
        REFUSED[name] = construct(step, start), words
        return step

    return note


def keep(**values: Callable[[], object]) -> Callable[[Any], None]:
    def start(self: Any) -> None:
        for name, make in values.items():
            setattr(self, name, make())

    return start


def mean(y: Tensor) -> Tensor:
    return y.detach().mean(0)


# Buffers that are assigned


@equal("a buffer is assigned")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = 0.9 * self.ema + 0.1 * mean(y)
    return y - self.ema


@equal("a buffer is assigned without gradients")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.ema = 0.9 * self.ema + 0.1 * y.mean(0)
    return y - self.ema


@equal("a buffer is set by setattr, read before and after")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y * (1 + self.ema)
    setattr(self, "ema", 0.5 * self.ema + mean(y))  # noqa: B010
    return z - self.ema


@equal("a buffer is put into _buffers")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self._buffers["ema"] = self.ema + mean(y)
    return y * (1 + self.ema)


@equal("the data of a buffer is assigned")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema.data = 0.9 * self.ema + mean(y)
    return y - self.ema


@equal("a buffer is read for the last time in the backward")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y * self.ema + y
    self.ema = self.ema + mean(y)
    return z


@equal("a buffer is assigned and then written in place")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = self.ema * 0.9
    self.ema += mean(y)
    return y - self.ema


@equal("a buffer is written in place and then assigned")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.ema.mul_(0.9)
    self.ema = self.ema + mean(y)
    return y - self.ema


@equal("a buffer is assigned twice")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = self.ema + mean(y)
    z = y - self.ema
    self.ema = self.ema * 0.5
    return z


@equal("a buffer is assigned and only the last step's value is read")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y - self.ema
    self.ema = mean(y)
    return z


@equal("a buffer is assigned and never read")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = y.mean(0)
    return y


@equal("a queue by cat", keep(queue=lambda: nn.Buffer(torch.randn(8, 3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y @ self.queue.t()
    self.queue = torch.cat([self.queue[x.shape[0] :], y.detach()])
    return y + z.mean(1, keepdim=True)


@equal("two buffers change places", keep(other=lambda: nn.Buffer(torch.ones(3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema, self.other = self.other, self.ema + mean(y)
    return y * self.ema - self.other


@equal("a buffer of a child is assigned by its parent", keep(child=lambda: nn.BatchNorm1d(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    y = self.child(y)
    self.child.running_mean = self.child.running_mean * 0.5
    return y + self.child.running_mean


@equal("a counter in a buffer", keep(count=lambda: nn.Buffer(torch.tensor(0))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.count = self.count + 1
    return y / (1 + self.count)


@equal("a buffer decides by torch.where", keep(count=lambda: nn.Buffer(torch.tensor(0))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.count = self.count + 1
    return torch.where(self.count > 1, y * 2, y)


@equal("a buffer is updated in place")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.ema.lerp_(y.mean(0), 0.1)
    return y - self.ema


@equal("a buffer is updated under an index", keep(queue=lambda: nn.Buffer(torch.randn(4, 3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.queue = self.queue.index_copy(0, torch.tensor([1]), y.detach().mean(0, keepdim=True))
    return y + self.queue.mean(0)


@refused("a buffer grows", "makes 'ema'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = torch.cat([self.ema, mean(y)])
    return y - self.ema.mean()


@refused("a buffer changes its type", "makes 'count' float", keep(count=lambda: nn.Buffer(torch.tensor(0))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.count = self.count + 0.5
    return y / (1 + self.count)


@refused("a buffer carries a gradient", "'ema' a value with a gradient")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = 0.9 * self.ema + 0.1 * y.mean(0)
    return y - self.ema


@refused("a buffer in place carries a gradient", "own training fails in step 2")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema.mul_(0.9).add_(y.mean(0))
    return y - self.ema


@refused("a buffer becomes None", "sets buffer 'ema' to no tensor")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.ema is not None:
        y = y + 1
    self.ema = None
    return y


@refused("a buffer that begins as None", "'late'", lambda self: self.register_buffer("late", None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.late = mean(y) if self.late is None else 0.9 * self.late + 0.1 * mean(y)
    return y - self.late


@refused("a parameter is replaced", "replaces parameter 'a.weight'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.a.weight = nn.Parameter(self.a.weight.detach() * 0.5)
    return self.a(x)


@refused("the data of a parameter is assigned", "'.data' of parameter 'a.bias'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.a.bias.data = torch.zeros(3)
    return y


# Plain tensors


@equal("a plain tensor is assigned", keep(h=lambda: torch.zeros(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.h = 0.9 * self.h + mean(y)
    return y - self.h


@equal("a plain tensor is written in place", keep(h=lambda: torch.zeros(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.h.mul_(0.9).add_(mean(y))
    return y - self.h


@equal("a plain tensor is kept for others to see", keep(seen=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.seen = y
    return y


@equal("a table is made once", keep(table=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.table is None:
        self.table = torch.arange(3.0)
    return y * self.table


@equal("a table is kept by size", keep(tables=dict))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if y.shape[1] not in self.tables:
        self.tables[y.shape[1]] = torch.arange(y.shape[1]) * 0.5
    return y * self.tables[y.shape[1]]


@equal("a table is kept in a global")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if 3 not in TABLES:
        TABLES[3] = torch.arange(3.0)
    return y * TABLES[3]


@equal("losses of the parts are collected anew in each step", keep(parts=list))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.parts = []
    self.parts.append(y.pow(2).mean())
    return y + self.parts[0]


@refused("the first batch sets a plain tensor", "'scale'", keep(scale=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.scale is None:
        self.scale = mean(y)
    return y * self.scale


@refused("the last output is read again", "'last'", keep(last=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y if self.last is None else y + self.last.mean()
    self.last = y.detach()
    return z


@refused("a plain tensor without detach", "'h'", keep(h=lambda: torch.zeros(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.h = 0.9 * self.h + y.mean(0)
    return y - self.h


# Other places


@refused("a list is appended to", "'rows", keep(rows=lambda: [torch.zeros(3)]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows.append(0.9 * self.rows[-1] + mean(y))
    return y - self.rows[-1]


@refused("an entry of a list is assigned", "'rows", keep(rows=lambda: [torch.zeros(3)]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows[0] = 0.9 * self.rows[0] + mean(y)
    return y - self.rows[0]


@equal("an entry of a list is written in place", keep(rows=lambda: [torch.zeros(3)]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows[0].mul_(0.9).add_(mean(y))
    return y - self.rows[0]


@refused("a list of losses only grows", "'history", keep(history=list))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.history.append(y.detach().mean())
    return y


@refused("a deque", "'rows", keep(rows=lambda: collections.deque([torch.zeros(3)] * 2, maxlen=2)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y - sum(self.rows) / 2
    self.rows.append(mean(y))
    return z


@refused("a dictionary", "'state", keep(state=lambda: {"h": torch.zeros(3)}))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.state["h"] = 0.9 * self.state["h"] + mean(y)
    return y - self.state["h"]


@refused("a dictionary of counts", "'state", keep(state=lambda: {"n": 0}))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.state["n"] += 1
    return y / self.state["n"]


class Helper:
    total: Tensor | float = 0.0
    calls = 0


@dataclass(slots=True)
class Slotted:
    h: Tensor
    n: int = 0


@refused("a helper object with a tensor", "'helper.total", keep(helper=Helper))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.helper.total = 0.9 * self.helper.total + mean(y)
    return y - self.helper.total


@refused("a helper object with a count", "'helper.calls", keep(helper=Helper))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.helper.calls += 1
    return y / self.helper.calls


@refused("a helper object with slots", "'helper.", keep(helper=lambda: Slotted(torch.zeros(3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.helper.h = self.helper.h + mean(y)
    return y - self.helper.h


@dataclass(frozen=True, slots=True)
class Frozen:
    scale: float


@equal("a frozen object with slots", keep(settings=lambda: Frozen(2.0)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * self.settings.scale


@equal("a module that needs two samples", keep(norm=lambda: nn.BatchNorm1d(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = self.ema + mean(y)
    return self.norm(y) - self.ema  # type: ignore[no-any-return]


@refused("a class attribute with a tensor", "h'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    kind = type(self)
    kind.h = 0.9 * getattr(kind, "h", torch.zeros(3)) + mean(y)
    return y - kind.h


@refused("a class attribute with a count", "calls'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    type(self).calls = getattr(type(self), "calls", 0) + 1
    return y / type(self).calls


def accumulated() -> Callable[[Tensor], Tensor]:
    total = torch.zeros(3)

    def add(y: Tensor) -> Tensor:
        nonlocal total
        total = total * 0.9 + mean(y)
        return y - total

    return add


def counted() -> Callable[[Tensor], Tensor]:
    n = 0

    def add(y: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return y / n

    return add


@refused("a closure with a tensor", "'add.total", keep(add=accumulated))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.add(y)  # type: ignore[no-any-return]


@refused("a closure with a count", "'add.n", keep(add=counted))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.add(y)  # type: ignore[no-any-return]


@refused("a global list", "SYMBOLS")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    SYMBOLS[0] = SYMBOLS[0] * 0.5 + mean(y)
    return y - SYMBOLS[0]


@refused("a global dictionary", "COUNTS")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    COUNTS["calls"] += 1
    return y / COUNTS["calls"]


@refused("a global number", "STEP")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    global STEP
    STEP += 1
    return y / STEP


@refused("a numpy array that counts", "'array", keep(array=lambda: np.zeros(1, "float32")))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.array += 1
    return y / float(self.array[0])


@refused("a numpy array shared with a tensor", "array", keep(array=lambda: np.zeros(3, "float32")))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.array += 1
    return y - torch.from_numpy(self.array)


@refused("an iterator that goes round", "'turns", keep(turns=lambda: itertools.cycle([1.0, 1.0, 2.0])))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * next(self.turns)  # type: ignore[no-any-return]


@refused("an iterator that counts", "'turns", keep(turns=lambda: itertools.count(1)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y / next(self.turns)  # type: ignore[no-any-return]


@refused("a generator", "'turns", keep(turns=lambda: (0.5**i for i in range(99))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * next(self.turns)  # type: ignore[no-any-return]


@refused("a counter", "'count'", keep(count=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.count += 1
    return y / self.count


@refused("a counter with a threshold", "'count'", keep(count=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.count += 1
    return y * 2 if self.count > 100 else y


@refused("a switch that is on from the second step", "'warm'", keep(warm=lambda: False))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z, self.warm = y * 2 if self.warm else y, True
    return z


@refused("a switch in a helper object", "'helper.calls", keep(helper=Helper))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y * 2 if self.helper.calls else y
    self.helper.calls = 1
    return z


@refused("a set that grows", "'met", keep(met=set))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.met.add(len(self.met))
    return y / len(self.met)


# Forwards that know that they are traced, and chance


@refused("a branch on is_compiling", "in step 1")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y if torch.compiler.is_compiling() else y * 2


@refused("a branch on is_exporting", "in step 1")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y if torch.compiler.is_exporting() else y * 2


@refused("a branch on the type of a tensor", "in step 1")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if type(y) is Tensor else y


@refused("try numpy", "in step 1")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    try:
        return y * (1 + float(y.detach().numpy().mean()))
    except Exception:
        return y


@refused("try a number", "in step 1")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    try:
        return y * 2 if bool(y.detach().mean() < 99) else y
    except Exception:
        return y


@refused("a gradient that only eager has", "another gradient")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y if torch.compiler.is_compiling() else y.detach() * 2 - y


@refused("a seed", "seeds the random numbers")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return y + torch.randn_like(y)


@refused("random numbers are put back", "puts random numbers of torch back")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    noise = torch.randn_like(y)
    torch.set_rng_state(state)
    return y + noise


@refused("the gradient of a weight is taken away", "assigns the gradient of parameter 'a.weight'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.a.weight.grad = None
    return y


@refused("a branch on modes that dispatch", "where nobody watches it")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y if torch.utils._python_dispatch._get_current_dispatch_mode() is None else y * 5


@refused("a buffer is written that its backward needs", "own training fails in step 1")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    made = y * self.ema
    with torch.no_grad():
        self.ema.add_(mean(y))
    return y + made


class Falling(torch.autograd.Function):
    scale = torch.ones(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * Falling.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Falling.scale = Falling.scale * 0.9
        return gradient * Falling.scale


@refused("a function with a tensor of its class", "computes with a tensor that it is not given")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    made: Tensor = Falling.apply(y)
    return made


class Rising(torch.autograd.Function):
    """Backward writes the state that forward is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.state = state
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.state.add_(gradient.abs().mean())
        return gradient / (1 + ctx.state), None


@refused("a backward pass that writes a buffer", "backward() writes into 'ema'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    made: Tensor = Rising.apply(y, self.ema)
    return made


@refused(
    "weights in one memory",
    "share memory and are two tensors",
    lambda self: setattr(self, "other", nn.Parameter(self.a.weight.t())),
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y + F.linear(y, self.other) @ self.a.weight.t()


@refused(
    "a norm in two modes",
    "in evaluation mode and in training mode",
    keep(norm=lambda: nn.BatchNorm1d(3)),
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    y = torch.cat([y, y * 2])
    one = self.norm.eval()(y)
    return (one - self.norm.train()(y))[: len(x)]  # type: ignore[no-any-return]


@refused("a sparse buffer", "'table' is sparse", keep(table=lambda: nn.Buffer(torch.eye(3).to_sparse())))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y + torch.sparse.mm(self.table, y.t()).t()


@refused("a parameter that forward makes", "every nn.Parameter made in __init__", keep(late=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.late is None:
        self.late = nn.Parameter(torch.ones(3))
    return y * self.late


@refused(
    "a norm in torch's checkpoint", "without torch.utils.checkpoint", keep(norm=lambda: nn.BatchNorm1d(3))
)
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return checkpoint(self.norm, torch.cat([y, y * 2]), use_reentrant=False)[: len(x)]  # type: ignore[no-any-return]


def falling(y: Tensor) -> Tensor:
    falling.level = 0.5 * falling.level + y.detach().mean()  # type: ignore[attr-defined]
    return y - falling.level  # type: ignore[attr-defined, no-any-return]


falling.level = torch.zeros(())  # type: ignore[attr-defined]


@refused("a tensor of a function", "falling.level")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return falling(y)


@equal("a buffer that is expanded", keep(wide=lambda: nn.Buffer(torch.full((1,), 0.5).expand(3))))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * self.wide


@refused("a seed for a while", "seeds the random numbers")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return y + torch.randn_like(y)


@equal("dropout and noise", keep(drop=lambda: nn.Dropout(0.5)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.drop(y) + torch.randn_like(y) * torch.rand(())  # type: ignore[no-any-return]


# Hooks


def hooked(hook: Callable[[nn.Module, object, Tensor], Tensor]) -> Callable[[Any], None]:
    return lambda self: (self.a.register_forward_hook(hook), None)[1]


def keeping() -> Callable[[nn.Module, object, Tensor], Tensor]:
    seen = [torch.zeros(3)]

    def hook(_: nn.Module, given: object, made: Tensor) -> Tensor:
        seen[0] = seen[0] * 0.5 + mean(made)
        return made - seen[0]

    return hook


@refused("a hook that keeps", "seen", lambda self: hooked(keeping())(self))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y


# Modules that are taken whole


class Inner(Base):
    """The construct itself, with a branch that no trace follows."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.step(y * 2 if y.sum() > 0 else y, x)


def whole(step: Callable[[Any, Tensor, Tensor], Tensor], start: Callable[[Any], None]) -> Make:
    kind = type("Inside", (Inner,), {"step": step, "start": start})
    return lambda: nn.Sequential(nn.Linear(4, 4), kind())


def opaque(
    name: str, words: str = "", start: Callable[[Any], None] = lambda self: None
) -> Callable[..., object]:
    def note(step: Callable[[Any, Tensor, Tensor], Tensor]) -> object:
        OPAQUE[name] = ["1"]
        if words:
            REFUSED[name] = whole(step, start), words
        else:
            EQUAL[name] = whole(step, start)
        return step

    return note


@opaque("whole: a buffer is assigned")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    z = y * (1 + self.ema)
    self.ema = 0.9 * self.ema + mean(y)
    return z - self.ema


@opaque("whole: a buffer is updated in place")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.ema.mul_(0.9).add_(mean(y))
    return y - self.ema


@opaque("whole: a table is kept", "", keep(table=lambda: None))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    if self.table is None:
        self.table = torch.arange(3.0)
    return y * self.table


@opaque("whole: a plain tensor is assigned", "'1.h'", keep(h=lambda: torch.zeros(3)))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.h = 0.9 * self.h + mean(y)
    return y - self.h


@opaque("whole: a counter", "'1.count'", keep(count=lambda: 0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.count += 1
    return y / self.count


@opaque("whole: a number of the data", "'1.level'", keep(level=lambda: 0.0))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.level = 0.9 * self.level + float(y.detach().mean())
    return y - self.level


@opaque("whole: a list", "'1.rows", keep(rows=lambda: [torch.zeros(3)]))
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.rows[0] = 0.9 * self.rows[0] + mean(y)
    return y - self.rows[0]


@opaque("whole: a buffer grows", "'1.ema'")
def _(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.ema = torch.cat([self.ema, mean(y)])
    return y - self.ema.mean()


# Losses


class Adaptive(nn.Module):
    """A loss with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.level = torch.zeros(())
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        loss = F.mse_loss(y, t)
        self.level = 0.9 * self.level + loss.detach()
        return loss / (1 + self.level)


class Counting(Adaptive):
    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        self.mean = self.mean + 1
        return F.mse_loss(y, t) / self.mean


def closing() -> Callable[[Tensor, Tensor], Tensor]:
    n = 0

    def loss(y: Tensor, t: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return F.mse_loss(y, t) / n

    return loss


LOSSES: dict[str, tuple[Callable[[], Callable[..., object]], str]] = {
    "a loss with a plain tensor": (Adaptive, "level"),
    "a loss with a buffer": (Counting, "mean"),
    "a loss that counts": (closing, "loss.n"),
}
