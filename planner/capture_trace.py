"""From a module and its loss to one flat graph of ATen operations, by torch.export.

The flat graph has no nested graphs: what ran under `no_grad` or `autocast` carries that as its context, and where
stages are cut the context is entered again. Each operation knows the module path that it ran under.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from planner.errors import BadInput
from planner.workload import where_raised

Kind = Literal["parameter", "buffer", "constant", "input", "target"]
Context = tuple[tuple[object, ...], ...]  # ("grad", False), ("autocast", device, dtype, enabled, cache)
LOSS = "loss"
MODEL = "model"
OWNERS = {"parameter", "buffer", "constant"}

# Checks that the export writes down; their conditions hold for every batch, or the export has refused.
CHECKS = {
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten._assert_async.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a placeholder of the graph stands for."""

    kind: Kind
    name: str


@dataclass(slots=True, kw_only=True)
class Traced:
    graph: fx.Graph
    root: nn.Module  # owns what get_attr nodes name
    sources: dict[fx.Node, Source]
    constants: dict[str, torch.Tensor]
    outputs: tuple[fx.Node, ...]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    symbolic: bool
    micro: int


class CannotTrace(Exception):
    """The export raised what is the cause of this."""


class _Loss(nn.Module):
    """A module of its own, so that its operations are known from those of the model."""

    def __init__(self, function: Callable[[object, object], object]) -> None:
        super().__init__()
        self.function = [function]  # in a list: a loss that is a module keeps its tensors to itself

    def forward(self, outputs: object, targets: object) -> object:
        return self.function[0](outputs, targets)


class _Whole(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[[object, object], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = _Loss(loss)

    def forward(self, inputs: object, targets: object) -> object:
        return self.loss(call(self.model, inputs), targets)


def call(module: nn.Module, inputs: object) -> object:
    """A tuple holds positional arguments, a dict keyword arguments; anything else is the one argument."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def named_leaves(role: str, tree: object) -> Iterator[tuple[str, object]]:
    """Leaves of nested tuples and dicts under names such as `input.0` or `input.image`."""
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        yield ".".join([role, *parts]), leaf


def trace(
    module: nn.Module,
    loss: Callable[[object, object], object],
    examples: tuple[object, object],
    dims: object | None,
    micro: int,
) -> Traced:
    """`dims` are the dynamic shapes of (inputs, targets); None captures for the example's size alone."""
    whole = _Whole(module, loss)
    with _training(whole), _cumulative(module) as averages, _quiet():
        try:
            program = torch.export.export(whole, examples, dynamic_shapes=dims, strict=False)  # type: ignore[arg-type]
        except Exception as error:  # the user's module ran in there: it may raise anything
            raise CannotTrace from error
    traced = _Flatten(program, module, examples).run(symbolic=dims is not None, micro=micro)
    _restore_averages(traced, averages)
    return traced


@contextlib.contextmanager
def _training(whole: nn.Module) -> Iterator[None]:
    before = {part: part.training for part in whole.modules()}
    try:
        whole.train()
        yield
    finally:
        for part, training in before.items():
            part.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The export warns of attributes that a forward pass assigns, and prints whole graphs when it fails."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _cumulative(module: nn.Module) -> Iterator[dict[float, str]]:
    """A BatchNorm without momentum reads its count as a number, which stops an export: while it is traced it has
    a momentum that tells its count's name."""
    norms = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None
    ]
    names = {
        2.0**-60 * (i + 1): f"{name}.num_batches_tracked".strip(".") for i, (name, _) in enumerate(norms)
    }
    try:
        for momentum, (_, part) in zip(names, norms, strict=True):
            part.momentum = momentum
        yield names
    finally:
        for _, part in norms:
            part.momentum = None


def _restore_averages(traced: Traced, names: Mapping[float, str]) -> None:
    counts = {source.name: node for node, source in traced.sources.items() if source.kind == "buffer"}
    for node in traced.graph.nodes:
        if str(node.target) == "aten.batch_norm.default" and node.args[6] in names:
            *tensors, training, momentum, eps, _ = node.args
            assert training is True
            node.target = average_batch_norm
            node.args = (*tensors, counts[names[momentum]], eps)


def average_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    count: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """BatchNorm with momentum=None: its running statistics are the averages of all batches so far."""
    plain = not count.is_meta and not isinstance(count, FakeTensor)
    momentum = 1.0 / float(count) if plain else 1.0
    return torch.batch_norm(
        x, weight, bias, mean, variance, True, momentum, eps, torch.backends.cudnn.enabled
    )


class _Flatten:
    def __init__(
        self, program: torch.export.ExportedProgram, module: nn.Module, examples: tuple[object, object]
    ) -> None:
        self.program, self.module, self.examples = program, module, examples
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.sources: dict[fx.Node, Source] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.aliases = _aliases(module)
        self.canonical = {name: names[0] for names in self.aliases for name in names}

    def run(self, *, symbolic: bool, micro: int) -> Traced:
        env: dict[fx.Node, fx.Node] = {}
        sources = self._sources()
        nodes = list(self.program.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                source = sources[node.name]
                if source is not None:
                    env[node] = self._placeholder(node, source)
        self._inline(self.program.graph_module, [n for n in nodes if n.op != "placeholder"], env, (), {})
        outputs = next(node for node in nodes if node.op == "output").args[0]
        assert isinstance(outputs, tuple | list)
        return Traced(
            graph=self.graph,
            root=self.root,
            sources=self.sources,
            constants=self.constants,
            outputs=tuple(self._output(out, env) for out in outputs),
            aliases={names[0]: names[1:] for names in self.aliases if len(names) > 1},
            symbolic=symbolic,
            micro=micro,
        )

    def _output(self, out: object, env: Mapping[fx.Node, fx.Node]) -> fx.Node:
        if not isinstance(out, fx.Node) or not isinstance(out.meta["val"], torch.Tensor):
            raise BadInput(
                f"the loss is {out!r:.40}, which does not depend on the model",
                where="loss",
                allowed="a tensor, or a pair (sum, count) of tensors",
            )
        return env[out]

    def _placeholder(self, node: fx.Node, source: Source) -> fx.Node:
        for old, known in self.sources.items():  # a tensor with two names comes once
            if known == source:
                return old
        new = self.graph.placeholder(node.name)
        new.meta = {"val": node.meta["val"]}
        self.sources[new] = source
        return new

    def _sources(self) -> dict[str, Source | None]:
        leaves = [
            *((name, "input", leaf) for name, leaf in named_leaves("input", self.examples[0])),
            *((name, "target", leaf) for name, leaf in named_leaves("target", self.examples[1])),
        ]
        batch = iter(leaves)
        found: dict[str, Source | None] = {}
        for spec in self.program.graph_signature.input_specs:
            role, name = spec.kind.name, getattr(spec.arg, "name", "")
            if role == "USER_INPUT":
                leaf_name, kind, leaf = next(batch)
                tensor = isinstance(leaf, torch.Tensor)
                found[name] = Source(kind=kind, name=leaf_name) if tensor else None  # type: ignore[arg-type]
            elif role in ("PARAMETER", "BUFFER"):
                own = (spec.target or "").removeprefix(MODEL + ".")
                kind_: Kind = "parameter" if role == "PARAMETER" else "buffer"
                found[name] = Source(kind=kind_, name=self.canonical.get(own, own))
            elif role == "CONSTANT_TENSOR":
                found[name] = self._constant(spec.target or name)
            else:
                raise BadInput(f"the module holds a {role.lower()}, which cannot be cut", allowed="tensors")
        return found

    def _constant(self, target: str) -> Source:
        own = target.removeprefix(MODEL + ".")
        try:
            operator.attrgetter(own)(self.module)
            name = own
        except AttributeError:
            name = f"constant.{len(self.constants)}"
        tensor = self.program.constants[target]
        assert isinstance(tensor, torch.Tensor)
        self.constants[name] = tensor
        return Source(kind="constant", name=name)

    def _inline(
        self,
        owner: fx.GraphModule,
        nodes: list[fx.Node],
        env: dict[fx.Node, fx.Node],
        context: Context,
        above: Mapping[str, object],
    ) -> tuple[object, ...]:
        """Copies nodes into the flat graph; returns what the nested graph returns."""
        several: dict[fx.Node, tuple[object, ...]] = {}  # results of nested graphs that were opened
        for node in nodes:
            if node.op == "output":
                returned = fx.map_arg(node.args[0], lambda n: env[n])
                return tuple(returned) if isinstance(returned, tuple | list) else (returned,)
            if str(node.target) in CHECKS or (node.op == "call_function" and node.target is torch._check):
                continue
            inner = _nested(node)
            if inner is not None:
                extra, graph_arg, arguments = inner
                nested = owner.get_submodule(str(graph_arg.target))
                assert isinstance(nested, fx.GraphModule)
                env_inner = {
                    holder: env[argument]
                    for holder, argument in zip(_holders(nested), arguments, strict=True)
                    if isinstance(argument, fx.Node)
                }
                body = [n for n in nested.graph.nodes if n.op != "placeholder"]
                several[node] = self._inline(
                    nested, body, env_inner, (*context, extra), _where(node) or above
                )
                continue
            if node.op == "get_attr" and all(_nested(user) is not None for user in node.users):
                continue
            if node.target is operator.getitem and node.args[0] in several:
                picked = several[node.args[0]][node.args[1]]  # type: ignore[index]
                assert isinstance(picked, fx.Node)
                env[node] = picked
                continue
            env[node] = self._copy(owner, node, env, context, above)
        return ()

    def _copy(
        self,
        owner: fx.GraphModule,
        node: fx.Node,
        env: Mapping[fx.Node, fx.Node],
        context: Context,
        above: Mapping[str, object],
    ) -> fx.Node:
        new = self.graph.node_copy(node, lambda n: env[n])
        new.meta = {"val": node.meta.get("val"), "context": context, **(_where(node) or above)}
        new.meta["trace"] = node.meta.get("stack_trace", "")
        if node.op == "get_attr":
            name = f"nested{len(list(self.root.children()))}"
            self.root.add_module(name, owner.get_submodule(str(node.target)))
            new.target = name
        return new


def _nested(node: fx.Node) -> tuple[tuple[object, ...], fx.Node, tuple[object, ...]] | None:
    """(context, graph, arguments) of an operator that runs a graph under another mode."""
    name = str(node.target)
    if node.op != "call_function" or name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
        return None
    count = 1 if name == "wrap_with_set_grad_enabled" else 4
    graph = node.args[count]
    assert isinstance(graph, fx.Node)
    kind = "grad" if count == 1 else "autocast"
    return (kind, *node.args[:count]), graph, node.args[count + 1 :]


def _holders(nested: fx.GraphModule) -> list[fx.Node]:
    return [node for node in nested.graph.nodes if node.op == "placeholder"]


def _where(node: fx.Node) -> dict[str, object] | None:
    """The innermost module path, without the wrapper's own names, and its stack with counts of visits."""
    stack = node.meta.get("nn_module_stack")
    if not stack or "_empty_nn_module_stack_from_metadata_hook" in stack:
        return None
    calls = [(key, path) for key, (path, _) in stack.items()]
    in_loss = any(path == LOSS for _, path in calls)
    paths = [(path.removeprefix(MODEL).removeprefix("."), key) for key, path in calls if path]
    return {"stack": tuple(paths), "in_loss": in_loss}


def _aliases(module: nn.Module) -> list[tuple[str, ...]]:
    """Names of each parameter and buffer, the first one being its own."""
    groups: dict[int, list[str]] = {}
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        groups.setdefault(id(tensor), []).append(name)
    return [tuple(names) for names in groups.values()]


def refused(failure: Exception, where: str) -> BadInput:
    """An export that failed, as one message with the user's own line."""
    error = failure.__cause__ or failure
    if isinstance(error, BadInput):
        return error
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    place, code = where_raised(error, where), ""
    call = re.search(
        r'The following call raised this error:\s+File "(.+?)", line (\d+), in .*\n\s*(.*)', text
    )
    if call is not None:
        place, code = f"{call[1]}:{call[2]}", f" in `{call[3].strip()}`"
    words = ("data-dependent", "data dependent", "DataDependent", "Could not guard", "unbacked")
    if any(word in text or word in type(error).__name__ for word in words):
        return BadInput(
            f"what runs depends on the values of tensors{code}, which no plan can follow: {first:.160}",
            where=place,
            allowed="branches and shapes that only settings and the shapes of the inputs decide",
        )
    return BadInput(f"cannot be captured: {type(error).__name__}: {first:.300}", where=place)
