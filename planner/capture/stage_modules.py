"""Makes stage modules out of a captured graph: what the profiler times and the runtime executes.

    stages = cut(captured, boundaries)      # boundaries: indices of the layers at which stages 1, 2, ... begin
    module = layer_module(captured, name)   # one layer alone;   whole(captured): all of them
    materialise(stage, captured.initial(module), device)
    made = stage(values)                    # values by name in; values by name out; more than it needs may be given

Stages come on the meta device. A stage holds only its own parameters and buffers, under the user's names.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, fx, nn
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.utils import _pytree as pytree

from planner.capture.captured import Captured
from planner.capture.layers import FREE
from planner.capture.slices import Slice, Slicing
from planner.capture.traced_graph import LAYER, SYNCHRONISED, Context
from planner.errors import BadInput


def set_grad(enabled: bool) -> bool:
    """Switches gradients on or off in a stage's graph.

    Returns: what held before, to be set again.
    """
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(enabled)
    return before


AUTOCAST = ("cpu", "cuda")
# Targets in a stage's graph that enter and leave the contexts of its operations.
CONTEXTS = frozenset({set_grad, torch._C._set_grad_enabled, _enter_autocast, _exit_autocast})


class StageModule(nn.Module):
    """Consecutive layers of a captured model as one module, from Values by name to Values by name."""

    index: int
    layers: tuple[str, ...]
    inputs: tuple[str, ...]  # names of the Values that it reads, from the batch or from earlier stages
    outputs: tuple[str, ...]  # names of the Values that later stages read, and of the loss

    def __init__(self, captured: Captured, index: int, first: int, last: int) -> None:
        super().__init__()
        layout = captured.layout
        self.index = index
        self.layers = tuple(layout.grouping.names[first : last + 1])
        self._layout, self._slice = layout, layout.take(first, last)
        self._made = _made(captured, layout, first, last)
        self.inputs = tuple(layout.name(node) for node in self._slice.reads)
        self.outputs = tuple(self._made.values())
        self._states: list[str] = []
        trainable = {row.name: row.trainable for row in captured.graph.parameters}
        for node in self._slice.states:
            source = layout.traced.sources[node]
            self._hold(source.name, layout.probes[0].tensor(node), trainable.get(source.name))
        self._constants = {x: t for x, t in layout.traced.constants.items() if _slot(x) in self._states}
        self._run = _Writer(layout, self._slice, None).write(self._made)

    def _hold(self, name: str, like: Tensor | None, trainable: bool | None) -> None:
        assert like is not None
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        self._states.append(_slot(name))
        if trainable is None:
            self.register_buffer(_slot(name), tensor)
        else:
            self.register_parameter(_slot(name), nn.Parameter(tensor, requires_grad=trainable))

    def forward(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the stage's output Values by name.

        Args: `values` has at least the stage's inputs, by name.
        """
        given = [values[name] for name in self.inputs]
        states = [getattr(self, slot) for slot in self._states]
        grad, casts = torch.is_grad_enabled(), [torch.is_autocast_enabled(kind) for kind in AUTOCAST]
        try:
            return dict(zip(self.outputs, self._run(*given, *states), strict=True))
        except BaseException:  # the graph has not come to where it leaves its own contexts
            torch._C._set_grad_enabled(grad)
            for kind, on in zip(AUTOCAST, casts, strict=True):
                torch.set_autocast_enabled(kind, on)
            raise

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the stage's parameters under the user's names.

        Args: as torch's method of this name has them.
        """
        for slot, parameter in super().named_parameters("", False, remove_duplicate):
            yield _joined(prefix, name_of(slot)), parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields the stage's buffers and constants under the user's names.

        Args: as torch's method of this name has them.
        """
        for slot, buffer in super().named_buffers("", False, remove_duplicate):
            yield _joined(prefix, name_of(slot)), buffer

    def materialise(self, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Loads copies of the stage's own tensors on a device.

        Args: `tensors` has them by name, and may have more; constants need not be given. A NaN that is
            expanded to a shape stands for a parameter that is loaded later, and stays.
        Raises: BadInput for a tensor that is missing, or of another shape or type.
        """
        for slot in self._states:
            name = name_of(slot)
            held = getattr(self, slot)
            tensor = tensors.get(name, self._constants.get(name))
            if tensor is None:
                raise BadInput(f"no tensor '{name}' is given", where=f"stage {self.index}")
            if tensor.shape != held.shape or tensor.dtype != held.dtype:
                raise BadInput(
                    f"'{name}' is {tensor.dtype} {tuple(tensor.shape)}",
                    where=f"stage {self.index}",
                    allowed=f"{held.dtype} {tuple(held.shape)}",
                )
            fresh = tensor.detach()
            if any(tensor.stride()) or tensor.numel() < 2 or not tensor.reshape(-1)[0].isnan():
                stride = (held if all(held.stride()) else held.new_empty(held.shape)).stride()  # if expanded
                fresh = torch.empty_strided(held.shape, stride, dtype=held.dtype, device=device)
                fresh.copy_(tensor.detach())
            trained = isinstance(held, nn.Parameter) and held.requires_grad
            setattr(self, slot, nn.Parameter(fresh, trained) if isinstance(held, nn.Parameter) else fresh)
        self.place(torch.device(device))

    def place(self, device: torch.device) -> None:
        """Writes the stage's graph anew; its own tensors stay where they are.

        Args: `device` is where it will run.
        """
        self._run = _Writer(self._layout, self._slice, device).write(self._made)


def cut(captured: Captured, boundaries: Sequence[int]) -> list[StageModule]:
    """Returns the stages of a captured model, on the meta device.

    Args: `boundaries` are the indices of the layers at which stages 1, 2, ... begin.
    Raises: BadInput where they do not increase, or are no layer's.
    """
    count = len(captured.graph.layers)
    edges = [0, *boundaries, count]
    if any(a >= b for a, b in itertools.pairwise(edges)):
        raise BadInput(
            f"boundaries {list(boundaries)}", where="cut", allowed=f"increasing numbers from 1 to {count - 1}"
        )
    pairs = itertools.pairwise(edges)
    return [StageModule(captured, i, first, end - 1) for i, (first, end) in enumerate(pairs)]


def whole(captured: Captured) -> StageModule:
    """Returns the whole captured model as one stage, which the stages together must equal."""
    return cut(captured, ())[0]


def layer_module(captured: Captured, layer: str) -> StageModule:
    """Returns one layer as a stage of its own, on the meta device.

    Raises: BadInput with all names, where there is no such layer.
    """
    if layer not in captured.graph.index:
        raise BadInput(f"there is no layer '{layer}'", allowed=", ".join(captured.graph.index))
    index = captured.graph.index[layer]
    return StageModule(captured, index, index, index)


def materialise(
    stage: StageModule, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu"
) -> StageModule:
    """Loads copies of a stage's tensors on a device, as its method does.

    Returns: the stage itself.
    """
    stage.materialise(tensors, device)
    return stage


def _made(captured: Captured, layout: Slicing, first: int, last: int) -> dict[fx.Node, str]:
    """Returns the Values that a stage hands out, those with a reader beyond it and the loss, by their nodes."""
    inside = set(layout.grouping.names[first : last + 1])
    found = {}
    for node, name in layout.crossing.items():
        value = captured.graph.value[name]
        leaves = node in layout.traced.outputs or not inside.issuperset(value.consumers)
        if value.producer in inside and leaves:
            found[node] = name
    return found


def _slot(name: str) -> str:
    """Returns the attribute that holds a tensor of a name: a module forbids dots, and has attributes of its own."""
    return "/" + name.replace("%", "%25").replace("/", "%2f").replace(".", "/")


def name_of(slot: str) -> str:
    """Returns the user's name of the tensor that an attribute of a stage holds.

    Args: `slot` is the attribute's name.
    """
    return slot[1:].replace("/", ".").replace("%2f", "/").replace("%25", "%")


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class _Writer:
    """Writes a slice as a graph of its own, entering the contexts that its operations ran under."""

    def __init__(self, layout: Slicing, taken: Slice, device: torch.device | None) -> None:
        self.layout, self.taken, self.device = layout, taken, device
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node | int] = {}  # numbers where a size is the same for every batch
        self.batch: fx.Node | int = 0
        self.open: list[tuple[tuple[object, ...], fx.Node]] = []

    def write(self, made: Mapping[fx.Node, str]) -> fx.GraphModule:
        for i, node in enumerate((*self.taken.reads, *self.taken.states)):
            self.env[node] = self.graph.placeholder(f"arg{i}")
        self.batch = self._read_batch()
        for node in self.taken.nodes:
            self._enter(node.meta["context"])
            self.env[node] = self._size(node) if self.layout.is_size(node) else self._copy(node)
        self._enter(())
        self.graph.output(tuple(self.env[node] for node in made))
        return fx.GraphModule(nn.Module(), self.graph)

    def _read_batch(self) -> fx.Node | int:
        found = self.taken.batch
        if found is None:
            return 0
        n: fx.Node | int = self._call(torch.ops.aten.sym_size.int, self.env[found.node], found.dim)
        if found.size.fixed:
            n = self._call(operator.sub, n, found.size.fixed)
        return n if found.size.slope == 1 else self._call(operator.floordiv, n, found.size.slope)

    def _size(self, node: fx.Node) -> fx.Node | int:
        size = self.layout.size(node)
        if not size.slope:
            return size.fixed
        n = self.batch if size.slope == 1 else self._call(operator.mul, self.batch, size.slope)
        return self._call(operator.add, n, size.fixed) if size.fixed else n

    def _call(self, function: Callable[..., object], *args: fx.Node | int) -> fx.Node:
        return self.graph.call_function(function, args)

    def _copy(self, node: fx.Node) -> fx.Node:
        new = self.graph.create_node(
            node.op,
            node.target,
            fx.map_arg(node.args, self.env.__getitem__),
            fx.map_arg(node.kwargs, self.env.__getitem__),
        )
        new.meta = {key: node.meta[key] for key in (SYNCHRONISED,) if key in node.meta}
        if (layer := self.layout.grouping.layer_of.get(node, FREE)) != FREE:
            new.meta[LAYER] = layer
        if self.device is not None:
            new.args = pytree.tree_map(self._placed, new.args)
            new.kwargs = pytree.tree_map(self._placed, new.kwargs)
        return new

    def _placed(self, argument: object) -> object:
        """Returns an argument with the stage's device in the place of one that the capture wrote down."""
        return self.device if isinstance(argument, torch.device) else argument

    def _enter(self, context: Context) -> None:
        same = 0
        while same < min(len(context), len(self.open)) and context[same] == self.open[same][0]:
            same += 1
        while len(self.open) > same:
            (kind, *_), token = self.open.pop()
            self.graph.call_function(
                torch._C._set_grad_enabled if kind == "grad" else _exit_autocast, (token,)
            )
        for part in context[same:]:
            self.open.append((part, self._entered(part)))

    def _entered(self, part: tuple[object, ...]) -> fx.Node:
        kind, *settings = part
        if kind == "grad":
            return self.graph.call_function(set_grad, (settings[0],))  # type: ignore[arg-type]
        device, *others = settings
        known = self.device is not None and torch.amp.is_autocast_available(self.device.type)
        where = self.device.type if self.device is not None and known else device
        return self.graph.call_function(_enter_autocast, (where, *others))  # type: ignore[arg-type]
