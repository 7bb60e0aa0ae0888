"""Makes the graph that torch.export gives flat, and names it by the user's names.

Nested graphs, for what runs without gradients or under autocast, are opened: their operations carry that as their
context. A tensor that comes under two names comes once.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from planner.capture.state_use import write_assigned
from planner.capture.traced_graph import (
    LOSS,
    MODEL,
    Context,
    Kind,
    Source,
    Traced,
    line_of,
    named_leaves,
    plain_leaves,
)
from planner.errors import BadInput

# Checks that the export writes down; their conditions hold for every batch, or the export has refused.
CHECKS = {
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten._assert_async.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}


UNNAMED = "forward() uses a tensor that is no parameter or buffer of the model, as '.data' of one or an entry of a list is"


def unnamed(where: str) -> BadInput:
    """Returns the error for a tensor that is no parameter or buffer of the model, as `.data` of one is.

    Args: `where` is the user's line. The export takes such a tensor for a number, without the name of its weight.
    """
    return BadInput(
        UNNAMED,
        where=where,
        allowed="a tensor, by register_buffer in __init__; in the place of '.data' '.detach()' for what is read, and "
        "'with torch.no_grad()' around what writes the tensor itself; no torch.autograd.grad in forward(), but the "
        "gradient as a formula, or such a module as opaque",
    )


def flatten(
    program: torch.export.ExportedProgram,
    module: nn.Module,
    examples: tuple[object, object],
    *,
    symbolic: bool,
    micro: int,
    assigned: Mapping[str, bool],
) -> Traced:
    """Returns an exported program as one flat graph with the user's names.

    Args: `examples` are the (inputs, targets) of the export; `symbolic` says whether its batch is a symbol; `micro` is
        the batch size otherwise. `assigned` names the buffers and attributes whose new values are the last outputs of
        the program, and says which of these have a gradient.
    Raises: BadInput for a loss that does not depend on the model, and for branches that tensors decide.
    """
    return _Flatten(program, module, examples).run(symbolic=symbolic, micro=micro, assigned=assigned)


class _Flatten:
    def __init__(
        self, program: torch.export.ExportedProgram, module: nn.Module, examples: tuple[object, object]
    ) -> None:
        self.program, self.module, self.examples = program, module, examples
        self.graph = fx.Graph()
        self.sources: dict[fx.Node, Source] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.aliases = _aliases(module)
        self.canonical = {name: names[0] for names in self.aliases for name in names}

    def run(self, *, symbolic: bool, micro: int, assigned: Mapping[str, bool]) -> Traced:
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
        end = len(outputs) - len(assigned)
        traced = Traced(
            graph=self.graph,
            sources=self.sources,
            constants=self.constants,
            outputs=tuple(self._output(out, env) for out in outputs[:end]),
            aliases={names[0]: names[1:] for names in self.aliases if len(names) > 1},
            plain=plain_leaves(*self.examples),
            saved={name: self.canonical[name] for name in self.module.state_dict() if name in self.canonical},
            symbolic=symbolic,
            micro=micro,
        )
        values = {
            self.canonical.get(name, name): env[x] for name, x in zip(assigned, outputs[end:], strict=True)
        }
        write_assigned(traced, values, {self.canonical.get(name, name): on for name, on in assigned.items()})
        return traced

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
                found[name] = self._constant(spec.target or name, name)
            else:
                raise BadInput(
                    f"forward() uses a {role.lower()}, as a generator of one's own is, which cannot be cut",
                    where=self._place_of_user(name),
                    allowed="tensors; and torch's own generator, without generator= in forward()",
                )
        return found

    def _constant(self, target: str, placeholder: str) -> Source:
        own = target.removeprefix(MODEL + ".")
        try:
            operator.attrgetter(own)(self.module)
            name = own
        except AttributeError:
            name = f"constant.{len(self.constants)}"
        tensor = self.program.constants[target]
        assert isinstance(tensor, torch.Tensor)
        if name != own and isinstance(tensor, FakeTensor):
            raise unnamed(self._place_of_user(placeholder))
        self.constants[name] = tensor
        return Source(kind="constant", name=name)

    def _place_of_user(self, placeholder: str) -> str:
        """Returns a line of the user's code, or the path of the module whose code is somebody else's."""
        node = next(node for node in self.program.graph.nodes if node.name == placeholder)
        stacks = [(_where(user) or {}).get("stack") for user in node.users]
        paths = [f"module '{stack[-1][0]}'" for stack in stacks if isinstance(stack, tuple) and stack]
        return next(filter(None, [*map(line_of, node.users), *paths]), "")

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
            if str(node.target) in CHECKS or node.op == "get_attr":
                continue  # a nested graph is opened, or refused, where it is run
            if _nested(node) is not None:
                several[node] = self._open(owner, node, env, context, above)
            elif node.target is operator.getitem and node.args[0] in several:
                picked = several[node.args[0]][node.args[1]]  # type: ignore[index]
                assert isinstance(picked, fx.Node)
                env[node] = picked
            else:
                env[node] = self._copy(node, env, context, above)
        return ()

    def _open(
        self,
        owner: fx.GraphModule,
        node: fx.Node,
        env: Mapping[fx.Node, fx.Node],
        context: Context,
        above: Mapping[str, object],
    ) -> tuple[object, ...]:
        inner = _nested(node)
        assert inner is not None
        extra, graph, arguments = inner
        nested = owner.get_submodule(str(graph.target))
        assert isinstance(nested, fx.GraphModule)
        holders = [x for x in nested.graph.nodes if x.op == "placeholder"]
        given = {
            holder: env[argument]
            for holder, argument in zip(holders, arguments, strict=True)
            if isinstance(argument, fx.Node)
        }
        body = [x for x in nested.graph.nodes if x.op != "placeholder"]
        return self._inline(nested, body, given, (*context, extra), _where(node) or above)

    def _copy(
        self,
        node: fx.Node,
        env: Mapping[fx.Node, fx.Node],
        context: Context,
        above: Mapping[str, object],
    ) -> fx.Node:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise BadInput(
                f"'{node.target}' decides while it runs what is run, which no plan can follow",
                where=line_of(node),
                allowed="branches and loops that settings and the shapes of the inputs decide",
            )
        new = self.graph.node_copy(node, lambda n: env[n])
        new.meta = {"val": node.meta.get("val"), "context": context, **(_where(node) or above)}
        new.meta["trace"] = node.meta.get("stack_trace", "")
        return new


def _nested(node: fx.Node) -> tuple[tuple[object, ...], fx.Node, tuple[object, ...]] | None:
    """Returns context, graph and arguments of an operator that runs a graph under another mode; else None."""
    name = str(node.target)
    if node.op != "call_function" or name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
        return None
    count = 1 if name == "wrap_with_set_grad_enabled" else 4
    graph = node.args[count]
    assert isinstance(graph, fx.Node)
    kind = "grad" if count == 1 else "autocast"
    return (kind, *node.args[:count]), graph, node.args[count + 1 :]


def _where(node: fx.Node) -> dict[str, object] | None:
    """Returns the stack of modules that a node ran in, without the wrapper's own names; None where it is not known."""
    stack = node.meta.get("nn_module_stack")
    if not stack or "_empty_nn_module_stack_from_metadata_hook" in stack:
        return None
    calls = [(key, path) for key, (path, _) in stack.items()]
    in_loss = any(path == LOSS for _, path in calls)
    paths = [(path.removeprefix(MODEL).removeprefix("."), key) for key, path in calls if path]
    return {"stack": tuple(paths), "in_loss": in_loss}


def _aliases(module: nn.Module) -> list[tuple[str, ...]]:
    """Returns all names of each parameter and buffer; the first is its own."""
    groups: dict[int, list[str]] = {}
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        groups.setdefault(id(tensor), []).append(name)
    return [tuple(names) for names in groups.values()]
