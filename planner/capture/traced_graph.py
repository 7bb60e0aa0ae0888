"""The traced graph: flat, with what each of its placeholders stands for."""

from __future__ import annotations

import dis
import hashlib
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from planner.workload import is_users

Kind = Literal["parameter", "buffer", "constant", "input", "target"]
Context = tuple[tuple[object, ...], ...]  # ("grad", False), ("autocast", device, dtype, enabled, cache)
LOSS = "loss"  # a layer; in a list of opaque modules the loss function, where no module has this name
MODEL = "model"
LAYER = "layer"  # in the meta of a stage's operations: index of the layer that each belongs to
SYNCHRONISED = "synchronised"  # in the meta of a normalisation whose statistics are those of all replicas
OWNERS = {"parameter", "buffer", "constant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The meaning of a placeholder of the graph: a state of the module, or a part of the batch, by its name."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Like:
    """The shape of a placeholder at every batch: each size and step as (fixed, slope), `fixed + n * slope`."""

    shape: tuple[tuple[int, int], ...]
    steps: tuple[tuple[int, int], ...]
    dtype: torch.dtype


@dataclass(slots=True, kw_only=True)
class Traced:
    """A flat graph of operations with the meaning of its placeholders."""

    graph: fx.Graph
    sources: dict[fx.Node, Source]
    constants: dict[str, torch.Tensor]
    outputs: tuple[fx.Node, ...]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)  # names in the state_dict, and of the tensors
    plain: dict[str, str] = field(
        default_factory=dict
    )  # numbers and words of the batch, which the graph holds
    symbolic: bool
    micro: int


class CannotTrace(Exception):
    """The user's module, or its export, raised what is the cause of this.

    `sizes` are the sizes of the batch as symbols, where the export holds for a smaller range of them than was asked;
    `fixed` says which line has made a number of one of them, where one has. `unnamed` is the line that uses a tensor
    which is no parameter or buffer, where there is one.
    """

    def __init__(self, sizes: Sequence[torch.SymInt] = (), fixed: str = "", unnamed: str = "") -> None:
        super().__init__()
        self.sizes, self.fixed, self.unnamed = sizes, fixed, unnamed


def call(module: nn.Module, inputs: object) -> object:
    """Returns what a module gives for inputs in a workload's form.

    Args: a tuple among `inputs` holds positional arguments, a dict keyword arguments; anything else is one argument.
    """
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def named_leaves(role: str, tree: object) -> Iterator[tuple[str, object]]:
    """Yields the leaves of nested tuples and dicts under names such as `input.0` or `input.image`.

    Args: `role` is the first word of the names.
    """
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        yield ".".join([role, *parts]), leaf


def plain_leaves(inputs: object, targets: object) -> dict[str, str]:
    """Returns the numbers, words and Nones of a batch by their names, as they are written."""
    leaves = (*named_leaves("input", inputs), *named_leaves("target", targets))
    return {name: repr(x) for name, x in leaves if x is None or isinstance(x, bool | int | float | str)}


def line_of(node: fx.Node) -> str:
    """Returns the line of the user's code that a node came from.

    Returns: "file:line" as the export noted it; empty where it did not.
    """
    trace = str(node.meta.get("trace") or node.meta.get("stack_trace") or "")
    frames = re.findall(r'File "(.+?)", line (\d+)', trace)
    house = Path(__file__).parents[2]
    ours = (f"{house}/planner/", f"{house}/runtime/", f"{house}/shardwright.py", "<")
    other = [f"{file}:{line}" for file, line in frames if not file.startswith(ours)]
    own = [place for place in other if "site-packages" not in place]
    return own[-1] if own else ""


def concrete(number: object, n: int) -> object:
    """Returns a number of the export at a batch of `n`.

    Args: `number` is anything; a symbolic one is an expression of the one symbol that there is.
    """
    if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number
    expression = number.node.expr
    found = expression.subs(dict.fromkeys(expression.free_symbols, n))
    kind = int if isinstance(number, torch.SymInt) else float if isinstance(number, torch.SymFloat) else bool
    return kind(found)


def computes_alike(one: Traced, other: Traced, n: int) -> bool:
    """Returns whether two graphs compute the same of a batch of `n`, by their operations and arguments.

    Args: the order counts of operations that draw numbers or write; what nothing reads does not count.
    """
    return _expressions(one, n) == _expressions(other, n)


def _expressions(traced: Traced, n: int) -> list[str]:
    """Returns the outputs as hashes of the expressions that make them, and every operation with an effect."""
    place: dict[fx.Node, object] = {}
    effects = []
    for i, node in enumerate(traced.graph.nodes):
        value = node.meta.get("val")
        if node.op == "placeholder":
            place[node] = f"%{i}"
        elif not any(isinstance(part, torch.Tensor) for part in pytree.tree_leaves(value)):
            place[node] = concrete(value, n)
        elif _gives_its_argument(node, n):
            place[node] = place[node.all_input_nodes[0]]
        else:
            given = pytree.tree_map(
                lambda x: place.get(x, x) if isinstance(x, fx.Node) else x, [node.args, node.kwargs]
            )
            name = getattr(node.target, "__name__", str(node.target))
            line = f"{name} {given} {node.meta.get('context')}"
            place[node] = hashlib.sha256(line.encode()).hexdigest()
            if _has_effect(node):
                effects.append(str(place[node]))
    return [*effects, *(str(place[node]) for node in traced.outputs)]


def _gives_its_argument(node: fx.Node, n: int) -> bool:
    """Returns whether an operation gives all of its argument, which an export writes in several ways.

    With one sample, `positions.expand(n, -1)` repeats nothing, and rows that are cut are contiguous: there code or
    export leave such operations out.
    """
    if node.target in (torch.ops.aten.alias.default, torch.ops.aten.contiguous.default):
        return True
    whole = node.target is torch.ops.aten.slice.Tensor and node.args[4:] in ((), (1,))
    if not whole and node.target is not torch.ops.aten.expand.default:
        return False
    given = node.args[0]
    assert isinstance(given, fx.Node)
    before, after = ([concrete(size, n) for size in x.meta["val"].shape] for x in (given, node))
    return before == after


def _has_effect(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__module__", "") != "_operator"
    return node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags


class WholeLoss(nn.Module):
    """A loss function as a module, which a list of opaque modules names as "loss"."""

    def __init__(self, function: Callable[[object, object], object]) -> None:
        super().__init__()
        self.function = [function]  # in a list: a loss that is a module keeps its tensors to itself

    def forward(self, outputs: object, targets: object) -> object:
        return self.function[0](outputs, targets)


def parts_of(module: nn.Module, loss: object) -> dict[str, nn.Module]:
    """Returns what a list of opaque modules may name: every module of a model, and its loss if that is a module here."""
    named = {path: part for path, part in module.named_modules() if path}
    return named | ({LOSS: loss} if isinstance(loss, WholeLoss) else {})


def line_that_names(module: nn.Module, *words: str | re.Pattern[str]) -> str:
    """Returns the first line of the user's in what a module and its parts run that names something.

    Args: of several `words`, whole names or patterns of them, the first counts that any line names.
    Returns: "file:line"; empty where no line names any of them.
    """
    codes = list(_codes(module))
    for word in words:
        for code in codes:
            for each in dis.get_instructions(code):
                if not each.opname.startswith(_NAMING):
                    continue
                named = each.argval == word if isinstance(word, str) else word.fullmatch(str(each.argval))
                if named and each.positions is not None and each.positions.lineno:
                    return f"{code.co_filename}:{each.positions.lineno}"
    return ""


_NAMING = (
    "LOAD_GLOBAL",
    "LOAD_ATTR",
    "LOAD_METHOD",
    "LOAD_DEREF",
    "STORE_ATTR",
    "STORE_GLOBAL",
    "STORE_DEREF",
)


def _codes(module: nn.Module) -> Iterator[types.CodeType]:
    """Yields the user's own code that a module and its parts may run: methods, functions they hold, and hooks."""
    held = [x for part in module.modules() for x in vars(part).values()]
    hooks = [
        x
        for part in module.modules()
        for x in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    kinds = dict.fromkeys(base for part in module.modules() for base in type(part).__mro__)
    methods = [x for kind in kinds for name, x in vars(kind).items() if name != "__init__"]
    for function in (*methods, *held, *hooks):
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType) and is_users(code.co_filename):
            yield code
            yield from (part for part in code.co_consts if isinstance(part, types.CodeType))


def same_graph(one: Traced, other: Traced) -> bool:
    """Returns whether two graphs have the same operations with the same arguments.

    Args: names of nodes do not count.
    """
    return _lines(one.graph) == _lines(other.graph)


def _lines(graph: fx.Graph) -> list[str]:
    place: dict[fx.Node, str] = {}
    lines = []
    for i, node in enumerate(graph.nodes):
        place[node] = f"%{i}"
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda x: place[x])
        name = getattr(node.target, "__name__", str(node.target))
        lines.append(f"{name if node.op != 'placeholder' else ''} {args} {kwargs} {node.meta.get('context')}")
    return lines


def place_of(module: nn.Module, path: str, fallback: str) -> str:
    """Returns the user's line that names what lies under a path, or else where the forward pass begins.

    Args: `path` is as `left_behind` lists it, such as "encoder.rows[1]"; an empty one asks for the forward pass.
    Returns: "file:line"; `fallback` where all code is somebody else's.
    """
    names, owner = re.sub(r"\[.*?\](?=[.\[]|$)", "", path).split("."), module
    while names and names[0] in owner._modules and (below := owner._modules[names[0]]) is not None:
        owner, names = below, names[1:]
    found = line_that_names(owner, *names[:1]) or line_that_names(module, *reversed(names))
    return found or next(filter(None, map(_forward_of, (owner, *module.modules()))), fallback)


def _forward_of(module: nn.Module) -> str:
    code = getattr(type(module).forward, "__code__", None)
    users = isinstance(code, types.CodeType) and is_users(code.co_filename)
    return f"{code.co_filename}:{code.co_firstlineno}" if users else ""  # type: ignore[union-attr]


def names_in(code: types.CodeType) -> list[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [*code.co_names, *(name for part in inner for name in names_in(part))]


def stored_in(code: types.CodeType) -> set[str]:
    """Returns the names of attributes that a function sets."""
    return {x.argval for x in dis.get_instructions(code) if x.opname == "STORE_ATTR"}


def file_of(space: dict[str, object]) -> str:
    """Returns the name of a module as its user knows it: that of a module file is its file's."""
    name, file = str(space.get("__name__", "")), str(space.get("__file__", ""))
    return Path(file).stem if file and name.startswith("workload_") else name
