"""Groups operations into layers: which layer each node of the functional graph belongs to.

A module that owns parameters, and has no such module below it, is a layer each time it is called. Parameters that
a larger module uses itself open a layer under that module's path. Everything else is glue and joins the layer that
feeds it, the latest if there are several. What depends on nothing but sizes, constants and integer inputs (masks,
positions) is free. It belongs to no layer and is computed again in every stage that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, fx

from planner.capture.fake_run import Probe, unknown
from planner.capture.functional import random, states_written
from planner.capture.state_use import use_of_states
from planner.capture.traced_graph import LOSS, OWNERS, Traced

FREE = -1
ROOT = "root"  # names a layer of the outermost module's own parameters


@dataclass(slots=True)
class Grouping:
    """The names of the layers, and the layer of each node."""

    names: list[str] = field(default_factory=list)
    layer_of: dict[fx.Node, int] = field(default_factory=dict)  # FREE for free nodes; no placeholders


def group(traced: Traced, probe: Probe) -> Grouping:
    """Returns the layers of a functional graph; the last layer is the loss.

    Args: `probe` is a run of the graph on fake tensors.
    """
    return Grouper(traced, probe).run()


class Grouper:
    """One walk over the nodes of a graph, in order, that finds the layer of each."""

    def __init__(self, traced: Traced, probe: Probe) -> None:
        self.traced, self.probe = traced, probe
        self.nodes = [node for node in traced.graph.nodes if node.op != "placeholder"]
        names = {x: source.name for x, source in traced.sources.items() if source.kind in OWNERS}
        self.states = use_of_states(traced.graph, names)
        self.mutated = {x for x, name in self.states.views.items() if name in self.states.written}
        self.layer_of: dict[fx.Node, int] = {}
        self.paths: list[str] = []  # of the layers opened
        self.opened: dict[str, int] = {}  # the latest layer of a call
        self.waiting: dict[
            fx.Node, None
        ] = {}  # fed by the batch alone: they join the layer that reads them first
        self.held: dict[fx.Node, list[fx.Node]] = defaultdict(list)  # a write -> the clone it writes into
        self.last_random = 0
        self.owners = self._owners()
        self.atoms = {p for p in self.owners if not any(q.startswith(p + ".") for q in self.owners)}

    def _owners(self) -> set[str]:
        """Returns the paths of modules that own parameters or state that is written; of every module where none do."""
        names = {source.name for source in self.traced.sources.values() if source.kind == "parameter"}
        names |= {self.traced.sources[x].name for x in self.mutated if x in self.traced.sources}
        names |= {alias for name in names for alias in self.traced.aliases.get(name, ())}
        # Parametrisations count as the module itself.
        owners = {name.rpartition(".")[0].partition(".parametrizations")[0] for name in names} - {""}
        return owners or {stack_of(node)[-1][0] for node in self.nodes if stack_of(node)}

    def run(self) -> Grouping:
        loss = len(self.nodes)  # later than any other
        for node in self.nodes:
            if "until" in node.meta:
                self.held[node.meta["until"]].append(node)
                continue
            if self._is_free(node):
                self.layer_of[node] = FREE
            elif node.meta.get("in_loss") or node in self.traced.outputs:
                self.layer_of[node] = loss
            else:
                self._assign(node)
            self.layer_of |= dict.fromkeys(self.held[node], self.layer_of[node])
        for node in reversed(self.waiting):
            layers = [self.layer_of[user] for user in node.users if user in self.layer_of]
            self.layer_of[node] = min(layers, default=0)
        count = len(self.paths)
        self.layer_of = {node: min(layer, count) for node, layer in self.layer_of.items()}
        return self._merged([*_unique(self.paths), LOSS])

    def _is_free(self, node: fx.Node) -> bool:
        if node in self.traced.outputs:
            return False
        if not self._has_tensor(node):  # a number is free where shapes tell it, not where values do
            return isinstance(self.probe.value[node], int | float)
        if random(node) or (states_written(node) and "local" not in node.meta):
            return False
        return all(self._is_free_input(x) for x in self._inputs(node))

    def _inputs(self, node: fx.Node) -> list[fx.Node]:
        """Returns the inputs of an operation and of the clone that it writes into; no cut falls between the two."""
        held = self.held[node]
        return [x for part in (*held, node) for x in part.all_input_nodes if x not in held]

    def _has_tensor(self, node: fx.Node) -> bool:
        value = self.probe.value[node]
        parts = value if isinstance(value, list | tuple) else [value]
        return any(isinstance(part, Tensor) for part in parts)

    def _is_free_input(self, node: fx.Node) -> bool:
        source = self.traced.sources.get(node)
        if source is None:
            return self.layer_of[node] == FREE
        if source.kind in ("input", "target"):
            value = self.probe.tensor(node)
            return value is not None and not (value.is_floating_point() or value.is_complex())
        return source.kind != "parameter" and node not in self.mutated

    def _assign(self, node: fx.Node) -> None:
        inputs = [x for x in self._inputs(node) if self.layer_of.get(x, FREE) != FREE]
        fed = max((self.layer_of[x] for x in inputs if x not in self.waiting), default=-1)
        call = next(((path, key) for path, key in stack_of(node) if path in self.atoms), None)
        if call is not None:
            layer = self._layer_of_call(*call, fed)
        elif self._uses_parameters(node):
            path = stack_of(node)[-1][0] if stack_of(node) else ROOT
            latest = len(self.paths) - 1
            layer = latest if latest >= 0 and self.paths[-1] == path else self._open(path)
        else:
            layer = max(fed, self.last_random) if random(node) else fed
        if layer < 0:
            self.waiting |= dict.fromkeys((*self.held[node], node))
            self.layer_of[node] = len(self.nodes)
            return
        self.layer_of[node] = layer
        if random(node):
            self.last_random = max(self.last_random, layer)

    def _layer_of_call(self, path: str, key: str, fed: int) -> int:
        if self.opened.get(key, -1) < max(fed, 0):
            self.opened[key] = self._open(path)
        return self.opened[key]

    def _open(self, path: str) -> int:
        self.paths.append(path)
        return len(self.paths) - 1

    def _uses_parameters(self, node: fx.Node) -> bool:
        sources = (self.traced.sources.get(x) for x in node.all_input_nodes)
        return any(source is not None and source.kind == "parameter" for source in sources)

    def _merged(self, names: list[str]) -> Grouping:
        """Returns the layers, with those between which no cut may fall made one.

        No cut may fall between layers that share state that is written, or sizes that only the values of a tensor
        tell.
        """
        joined = [False] * len(names)  # joined[i]: with layer i - 1
        for first, last in self._inseparable():
            joined[first + 1 : last + 1] = [True] * (last - first)
        index, kept = -1, []
        new: list[int] = []
        for i, name in enumerate(names):
            if i == 0 or not joined[i]:
                index += 1
                kept.append(name)
            elif name == LOSS:
                kept[-1] = LOSS
            new.append(index)
        layer_of = {node: new[layer] if layer != FREE else FREE for node, layer in self.layer_of.items()}
        return Grouping(kept, layer_of)

    def _inseparable(self) -> Iterable[tuple[int, int]]:
        users_of: dict[str, list[int]] = defaultdict(list)
        for x in self.mutated:  # views of one tensor together
            users_of[self.states.views[x]] += (self.layer_of[user] for user in x.users)
        for users in users_of.values():
            at = [layer for layer in users if layer != FREE]
            yield min(at), max(at)
        for node in self.nodes:
            if self.layer_of[node] != FREE and not self._may_cross(node):
                users = [self.layer_of[node], *(self.layer_of[x] for x in node.users)]
                yield min(users), max(users)

    def _may_cross(self, node: fx.Node) -> bool:
        value = self.probe.value[node]
        return isinstance(value, Tensor) and not unknown(value)


def stack_of(node: fx.Node) -> tuple[tuple[str, str], ...]:
    """Returns the modules that a node ran in, from the outermost inwards, without the model itself.

    Args: `node` may also be one that was made without a module.
    Returns: (path, call) for each; the calls of one module differ.
    """
    stack: tuple[tuple[str, str], ...] = node.meta.get("stack", ())
    return tuple((path, key) for path, key in stack if path)


def _unique(paths: list[str]) -> list[str]:
    """Returns names for layers, numbered where a module is called again; only the loss has the loss's name."""
    seen: dict[str, int] = {LOSS: 1}
    taken: set[str] = set()
    names = []
    for path in paths:
        count = seen.get(path, 0)
        seen[path] = count + 1
        name = f"{path}#{count}" if count else path
        assert name not in taken
        taken.add(name)
        names.append(name)
    return names
