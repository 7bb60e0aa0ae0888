"""Trains a captured graph beside the module that it is of, and compares losses, gradients and buffers."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.capture.batch import SMALL, Batch, example, growing_dim
from planner.capture.captured import Captured, Loss
from planner.capture.fake_run import LARGEST_BYTES
from planner.capture.left_behind import CARRIED, OF_NORM, Reachable
from planner.capture.live_bytes import storage_of
from planner.capture.stage_modules import whole
from planner.capture.traced_graph import call, line_that_names, place_of
from planner.errors import BadInput

EXACT, CLOSE = 1e-4, 1e-3  # relative, of losses and of gradients and buffers, in single precision
HALF = 50  # times as far apart in half precision
LARGEST_FLOPS = 2e10  # of a forward pass
MIXED = 5e-5  # relative, of the loss of samples at once and apart
OF_LOSS = (
    "a loss that keeps nothing: what one step leaves to the next, in the model by register_buffer in __init__"
)
MADE = "every nn.Parameter made in __init__"
SHARED = "one nn.Parameter under both names; or in forward() what is made of the other, as F.linear(x, self.a.weight.t())"
ONCE = "forward() without torch.utils.checkpoint, which writes them twice; a plan recomputes where memory is short"
OWN_MEMORY = "clone() of one of them, in batch() and in collate(), or of what forward() writes into"
APART = "share memory and are two tensors, which a plan holds apart"
ASKS = re.compile("is_(compiling|exporting|dynamo_compiling|tracing|fx_tracing)|FakeTensor|numpy")
OUTSIDE = re.compile("environ|getenv|urandom|now|(time|monotonic|perf_counter)(_ns)?")
WRITES, CHECKPOINT = re.compile("_version"), re.compile("checkpoint")
FROM_BATCH = "what comes from outside forward(), as a clock or the environment, as a tensor of the batch"
COUNTS = "a count of steps, by register_buffer in __init__, for torch's own count of writes"
OF_HOOK = "what the hook writes, in forward() or in the optimizer's step()"
ALIKE = (
    "a forward() that does the same while it is traced: no branch on is_compiling(), is_exporting(), the type of a "
    "tensor or what .numpy() raises; or the path of such a module, as opaque = ['path.of.a.module'] in a module file"
)


class Beside:
    """A captured graph that trains beside the module it is of, from the same tensors."""

    def __init__(self, captured: Captured, module: nn.Module, where: str, start: Reachable) -> None:
        self.captured, self.module, self.where, self.start = captured, module, where, start
        self.aliased = ""  # two tensors of the batch that share memory, in words
        self.stage = whole(captured)
        device = next(iter(module.parameters()), torch.empty(0)).device
        self.stage.materialise(captured.initial(module), device)
        contexts = [x.meta.get("context", ()) for x in captured.layout.traced.graph.nodes]
        halved = any(part[0] == "autocast" for context in contexts for part in context)
        halved |= any(x.is_floating_point() and x.itemsize < 4 for x in self.stage.parameters())
        self.loose = HALF if halved else 1.0

    def compare(self, step: int, own: list[Tensor], values: Mapping[str, Tensor], after: Reachable) -> None:
        """Takes the step in the graph that the module has just taken, and moves the parameters of both.

        Args: `own` are the losses of the module's own step; `values` are those of the batch, and `after` is what the
            module reaches now.
        Raises: BadInput where losses, gradients or buffers differ.
        """
        different = self._losses(own, values) or self._gradients() or self._buffers()
        if different:
            raise self._refused(step, different, after)
        self._update()

    def compare_losses(self, step: int, own: object, values: Mapping[str, Tensor], after: Reachable) -> None:
        """Refuses other losses than those of a pass that takes no step.

        Args: as `compare` has them.
        """
        rows, made = own if isinstance(own, tuple) else (own,), self.stage(values)
        for name, b in zip(self.captured.graph.layers[-1].outputs, rows, strict=True):
            if not self._near(made[name], b, EXACT):
                said = f"the loss is {made[name].item():.6g}, and the module's own is {b.item():.6g}"
                found = self._refused(step, f"{said} where nobody watches it", after)
                raise BadInput(found.what, where=found.where, allowed=ALIKE)

    def _losses(self, own: list[Tensor], values: Mapping[str, Tensor]) -> str:
        try:
            made = self.stage(values)
            losses = [made[name] for name in self.captured.graph.layers[-1].outputs]
            if losses[0].requires_grad:
                losses[0].backward()
        except RuntimeError as error:
            return f"the graph fails ({str(error).splitlines()[0]:.200})"
        for a, b in zip(losses, own, strict=True):
            if not self._near(a, b, EXACT):
                return f"the loss is {a.item():.6g}, and the module's own is {b.item():.6g}"
        return ""

    def _gradients(self) -> str:
        grads = {name: x.grad for name, x in self.module.named_parameters()}
        dense = [x.to_dense().abs().max().item() for x in grads.values() if x is not None and x.numel()]
        same = {name: x.grad for name, x in self.stage.named_parameters()}
        for name, x in grads.items():
            a, b = (torch.zeros(()) if y is None else y.to_dense() for y in (same.get(name), x))
            if not self._near(a, b, CLOSE, CLOSE * max(dense, default=0.0)):
                return f"parameter '{name}' gets another gradient"
        return ""

    def _buffers(self) -> str:
        theirs, rows = self.captured.initial(self.module), self.captured.graph.buffer
        for name, x in self.stage.named_buffers():
            if rows[name].mutated and not self._near(x, theirs[name], CLOSE):
                return f"'{name}' gets other values"
        return ""

    def _update(self) -> None:
        """Moves the parameters by a hundredth of their size against their gradients, the same in both."""
        same, trained = dict(self.stage.named_parameters()), dict(self.module.named_parameters())
        grads = {name: x.grad.to_dense() for name, x in trained.items() if x.grad is not None}
        large, steep = (
            float(sum(x.detach().abs().square().sum() for x in row))
            for row in (trained.values(), grads.values())
        )
        rate = 0.01 * (large / steep) ** 0.5 if steep > 0 else 0.0
        with torch.no_grad():
            for name, grad in grads.items():
                trained[name].sub_((rate * grad).to(grad.dtype))
                if name in same:
                    same[name].copy_(trained[name])
        for x in (*trained.values(), *same.values()):
            x.grad = None

    def _near(self, a: Tensor, b: Tensor, close: float, floor: float = 0.0) -> bool:
        if a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.detach(), b.detach()):
            return True
        kind = torch.complex128 if b.is_complex() else torch.double
        a, b = a.detach().to(kind), b.detach().to(kind)
        if not a.numel() or not b.numel():
            return a.numel() == b.numel()
        scale = max(float(b.abs().nan_to_num(posinf=0.0).max()), floor, 1e-6)
        close *= self.loose
        a, b = (a.expand_as(b), b) if not a.ndim else (a, b.expand_as(a))
        return torch.allclose(a, b, rtol=0.0, atol=close * scale, equal_nan=True)

    def _refused(self, step: int, what: str, after: Reachable) -> BadInput:
        carried, start = self.captured.initial(self.module), self.start
        changed = start.changes(after)
        changed += [f"'{path}'" for path in start.written(after) if path not in carried]
        said = f"what is captured does not train as the module does: in step {step + 1} {what}"
        said += f"; forward() has changed {', '.join(changed[:3])}" if changed else ""
        path = changed[0].split("'")[1] if changed else ""
        where = line_that_names(self.module, ASKS) or place_of(self.module, path, self.where)
        if "device meta" in what:  # of an opaque module, whose own tensors are meta between its calls
            return BadInput(said, where=where, allowed=OF_HOOK)
        for names, cure in ((WRITES, COUNTS), (OUTSIDE, FROM_BATCH)):
            if not changed and (place := line_that_names(self.module, names)):
                return BadInput(said, where=place, allowed=cure)
        if "other values" in what and (place := line_that_names(self.module, CHECKPOINT)):
            return BadInput(said, where=place, allowed=ONCE)
        if self.aliased:
            return BadInput(
                f"{said}; {self.aliased} of the batch share memory", where=where, allowed=OWN_MEMORY
            )
        if shared := sharing(self.module):
            return BadInput(f"{said}; {shared} {APART}", where=self.where, allowed=SHARED)
        return BadInput(said, where=where, allowed=cure_of(path, start, after) if step or changed else ALIKE)


def cure_of(path: str, start: Reachable, after: Reachable) -> str:
    """Returns what a user does about a value that a pass leaves to the next.

    Args: `path` is the value's; the other two are what was reachable before the pass and after it.
    """
    if after.of_loss_alone(path):
        return OF_LOSS
    if path.endswith(".momentum"):
        return OF_NORM
    return MADE if after.is_parameter(path) and not start.is_parameter(path) else CARRIED


def sharing(module: nn.Module) -> str:
    """Returns two parameters or buffers that lie in the same bytes and are not one, in words; empty where none do."""
    rows = [(name, x) for name, x in (*module.named_parameters(), *module.named_buffers()) if x.numel()]
    return overlapping(rows, trained=True)


def overlapping(rows: Iterable[tuple[str, object]], *, trained: bool = False) -> str:
    """Returns two tensors that lie in the same bytes and are not one, in words; empty where none do.

    Args: `rows` have names; what is no tensor is passed over. Of `trained` ones one has to require a gradient.
    """
    met: dict[int, list[tuple[str, Tensor, int | torch.SymInt, int | torch.SymInt]]] = {}
    for name, x in rows:
        if not isinstance(x, Tensor) or x.layout != torch.strided or not x.numel():
            continue
        begin = x.storage_offset() * x.itemsize
        spans = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        end = begin + (spans + 1) * x.itemsize
        others = met.setdefault(storage_of(x), [])
        for other, y, first, last in others:
            apart = (y is x or not (x.requires_grad or y.requires_grad)) if trained else False
            if first < end and begin < last and not apart:
                return f"'{other}' and '{name}'"
        others.append((name, x, begin, end))
    return ""


def refuse_written(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], module: nn.Module, where: str
) -> None:
    """Refuses a backward pass that writes parameters or buffers: a graph of forward knows nothing of it.

    Args: `before` and `after` are what they held before and after the pass; `where` names the module's file.
    """
    for name, x in after.items():
        same = torch.equal(x, before[name])  # far faster, but no NaN equals another
        if not same and not torch.allclose(x, before[name], rtol=0.0, atol=0.0, equal_nan=True):
            raise BadInput(
                f"backward() writes into '{name}', which a plan would not carry",
                where=place_of(module, name, where),
                allowed="a write in forward(), or in the optimizer's step()",
            )


def too_large(captured: Captured, samples: int) -> str:
    """Returns what makes a model too large to run for real, in words; empty where it is small enough.

    Args: `samples` are those of the pass that would be run.
    """
    graph = captured.graph
    held = sum(x.bytes for x in graph.parameters) + sum(x.bytes for x in graph.buffers)
    if held > LARGEST_BYTES:
        return f"its tensors take {held / 2**30:.1f} GiB, more than the {LARGEST_BYTES / 2**30:.0f} GiB that are tried"
    flops = sum(layer.fixed_flops + layer.sample_flops * samples for layer in graph.layers)
    if flops > LARGEST_FLOPS:
        return f"a forward pass takes {flops / 1e9:.0f} GFLOP, more than {LARGEST_FLOPS / 1e9:.0f}"
    return ""


def mixes_samples(
    captured: Captured,
    build: Callable[[], nn.Module],
    batch: Batch,
    loss: Loss,
    *,
    rows: int = 2 * SMALL,
    training: bool = True,
) -> str:
    """Returns, in words, that a training depends on its micro-batches; empty where it does not or nothing tells.

    Some samples at once are set against two halves of them. A model that draws numbers, or keeps a state that it reads,
    tells nothing so.

    Args: `captured` is what `capture` made of the others; `rows` are the samples, an even number; without `training`
        the module runs in evaluation mode, where norms mix no samples.
    """
    graph = captured.graph
    if (any(buffer.remembered for buffer in graph.buffers) and training) or too_large(captured, rows):
        return ""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            module = copy.deepcopy(build()).train(training)
            start = Reachable(module, loss)
            torch.manual_seed(0)
            given, others = example(batch, rows, None), example(batch, rows // 2, None)
            before = torch.get_rng_state()
            half = rows // 2
            ends = ((0, rows), (0, half), (half, rows))
            whole, *parts = (_loss(module, loss, given, others, *each) for each in ends)
            start.undo()
        except Exception:  # the user's module ran: it may raise anything
            return ""
        if not torch.equal(before, torch.get_rng_state()):
            return ""
    counts = [count if graph.loss_kind == "sum_count" else 1.0 for _, count in parts]
    at_once = whole[0] / (whole[1] if graph.loss_kind == "sum_count" else 1.0)
    halves = sum(value for value, _ in parts) / sum(counts)
    loose = HALF if any(x.is_floating_point() and x.itemsize < 4 for x in module.parameters()) else 1.0
    if not abs(at_once - halves) > MIXED * loose * abs(at_once):
        return ""
    return (
        f"The loss of {rows} samples at once is {at_once:.6g}, and of two halves {halves:.6g}. So this training depends on "
        f"its micro-batch: by {'BatchNorm, ' if training else ''}pairs of samples, or a mean of what is not padded. Return "
        "(sum, count) from the loss where it is a mean of some, or fix the micro-batch with --fix micro."
    )


def _loss(
    module: nn.Module, loss: Loss, given: object, others: object, first: int, end: int
) -> tuple[float, float]:
    """Returns the loss of some samples, and how many counted where it says so."""

    def part(x: object, other: object) -> object:
        dim = growing_dim(x, other)
        return x.narrow(dim, first, end - first).clone() if isinstance(x, Tensor) and dim is not None else x

    inputs, targets = pytree.tree_map(part, given, others)
    made = loss(call(module, inputs), targets)
    value, count, *_ = (*made, 1.0) if isinstance(made, tuple) else (made, 1.0)
    return float(value), float(count)
