"""The backward pass of one micro-batch through one stage: whole, or its input and weight halves apart.

The graph walk splits any autograd graph. A node is *on the way* when an input of the stage can be reached from it.
The input half runs the nodes on the way only, and records what arrives at those that also feed a branch towards
parameters; the weight half runs each of those branches later, from the record. Nothing is detached, so views are
no special case.

Each path from an output to a parameter is counted once. It leaves the way over one edge, its *crossing*, and never
comes back. The weight half asks the engine for the gradient at the node behind a crossing, which sums all paths that
lead there from the node before it. That is the crossing alone where no other edge enters the node behind it, from the
way or from within a branch. Another edge does where a weight is used twice within a stage, or as it is and through
something made from it. Then the parameters behind it, and those that share a branch with them, get all of their
gradient with the input half: exact, only earlier than it had to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Root = tuple[GradientEdge, Tensor]


def edge(tensor: Tensor) -> GradientEdge:
    """Returns where a tensor's gradient enters the graph; holding it does not hold the tensor's memory.

    Args: `tensor` requires a gradient.
    """
    return get_gradient_edge(tensor)


def anchor_on(device: torch.device) -> Tensor:
    """Returns a leaf that stands for everything that enters a stage; one is enough for all of its micro-batches.

    Args: `device` is the stage's.
    """
    return torch.zeros((), device=device, requires_grad=True)


class Boundary:
    """The place where gradients leave a stage, for one micro-batch.

    A leaf's `.grad` would be copied into the strides of the leaf, and a sum over another memory order is not
    the same to the bit. Here a gradient is kept as it arrives.
    """

    def __init__(self, anchor: Tensor) -> None:
        self.anchor = anchor
        self.grads: dict[str, Tensor] = {}
        self.entered: dict[str, Tensor] = {}

    def enter(self, name: str, tensor: Tensor) -> Tensor:
        """Passes an input into the stage's graph such that its gradient is kept here.

        Args: `name` is that of the input's Value.
        Returns: a view of `tensor`.
        """
        inside: Tensor = _Enter.apply(self, name, self.anchor, tensor)  # type: ignore[no-untyped-call]
        self.entered[name] = inside
        return inside

    def collect(self) -> dict[str, Tensor]:
        """Returns the gradients of all that entered, zeros where none arrived, and forgets them."""
        missing = self.entered.keys() - self.grads.keys()
        grads = self.grads | {name: torch.zeros_like(self.entered[name]) for name in missing}
        self.grads, self.entered = {}, {}
        return grads


class _Context(FunctionCtx):
    boundary: Boundary
    name: str


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, boundary: Boundary, name: str, anchor: Tensor, tensor: Tensor) -> Tensor:
        ctx.boundary, ctx.name = boundary, name
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[None, None, None, None]:
        ctx.boundary.grads[ctx.name] = grad
        return None, None, None, None


def whole(roots: Sequence[Root]) -> None:
    """Adds the gradients of all leaves to their `.grad`; naming the leaves would only make the engine look for them.

    Args: `roots` are edges of outputs with the gradients that enter there.
    """
    if roots:
        torch.autograd.backward([e for e, _ in roots], [g for _, g in roots])


@dataclass
class Branch:
    """A part of the graph that leads to parameters only, entered from one node on the way."""

    node: Node
    entries: list[GradientEdge]
    arrived: tuple[Tensor | None, ...] = ()


Entered = Branch | Root


@dataclass
class Owed:
    """Everything that the input half leaves for the weight half."""

    branches: list[Branch] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)  # outputs that depend on parameters only


def input_half(roots: Sequence[Root], anchor: Tensor, parameters: Sequence[Tensor]) -> Owed:
    """Takes gradients to the boundary that the anchor stands for, and to parameters as little as it can.

    Args: `roots` are edges of outputs with the gradients that enter there; `parameters` are the stage's
        trainable ones.
    Returns: what the weight half has to do still; the graph is kept alive for it.
    """
    toward_inputs = _reaching(roots, [anchor])
    toward_parameters = _reaching(roots, parameters)
    now = [root for root in roots if root[0].node in toward_inputs]
    owed = Owed(roots=[root for root in roots if root[0].node not in toward_inputs])
    if not now:
        return owed
    arrived: list[Branch] = []
    branches, shared = _branches(now, toward_inputs, toward_parameters)
    hooks = [_Handle(branch, arrived) for branch in branches]
    grads = torch.autograd.grad(
        [e for e, _ in now],
        [edge(anchor), *shared],
        [g for _, g in now],
        retain_graph=True,
        allow_unused=True,
    )
    for hook in hooks:
        hook.remove()
    owed.roots += [(e, grad) for e, grad in zip(shared, grads[1:], strict=True) if grad is not None]
    owed.branches = arrived
    return owed


def weight_half(owed: Owed) -> None:
    """Adds the gradients of the parameters to their `.grad`, few of them at a time.

    The gradients that several branches lead to are summed first, in the order of arrival, as a whole backward
    does.
    Args: `owed` is emptied.
    """
    entered: list[Entered] = [*owed.branches, *owed.roots]
    owed.branches, owed.roots = [], []
    groups = _sharing(entered)
    entered.clear()
    while groups:
        whole(_summed(groups.pop()))


def _summed(group: list[Entered]) -> list[Root]:
    sums: dict[GradientEdge, Tensor] = {}
    while group:
        for at, grad in _roots_of(group.pop(0)):
            sums[at] = sums[at] + grad if at in sums else grad
    return list(sums.items())


def _sharing(entered: Sequence[Entered]) -> list[list[Entered]]:
    """Returns lists of branches that lead to a parameter in common."""
    groups: list[tuple[set[Node], list[Entered]]] = []
    for each in entered:
        leaves, members = _leaves(each.entries if isinstance(each, Branch) else [each[0]]), [each]
        apart = []
        for others, group in groups:
            if leaves.isdisjoint(others):
                apart.append((others, group))
            else:
                leaves, members = leaves | others, group + members
        groups = [*apart, (leaves, members)]
    return [group for _, group in groups]


def _leaves(entries: Iterable[GradientEdge]) -> set[Node]:
    """Returns the nodes at which gradients end that enter here."""
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = [entry.node for entry in entries]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            after = [edge.node for edge in _successors(node)]
            stack += after
            if not after:
                found.add(node)
    return found


def _roots_of(branch: Entered) -> list[Root]:
    if not isinstance(branch, Branch):
        return [branch]
    outputs = [(GradientEdge(branch.node, i), g) for i, g in enumerate(branch.arrived) if g is not None]
    if not outputs:
        return []
    grads = torch.autograd.grad(
        [e for e, _ in outputs],
        branch.entries,
        [g for _, g in outputs],
        retain_graph=True,  # a node that saved tensors may still have the engine's other visitors
        allow_unused=True,
    )
    return [(e, g) for e, g in zip(branch.entries, grads, strict=True) if g is not None]


class _Handle:
    def __init__(self, branch: Branch, arrived: list[Branch]) -> None:
        self._handle = branch.node.register_prehook(self._store)
        self._branch, self._arrived = branch, arrived

    def _store(self, arrived: tuple[Tensor | None, ...]) -> None:
        self._branch.arrived = arrived
        self._arrived.append(self._branch)

    def remove(self) -> None:
        self._handle.remove()


def _successors(node: Node) -> Iterator[GradientEdge]:
    for successor, index in node.next_functions:
        if successor is not None:
            yield GradientEdge(successor, index)


def _reaching(roots: Sequence[Root], leaves: Sequence[Tensor]) -> set[Node]:
    """Returns every node from which one of the leaves can be reached, the leaves' own nodes included."""
    found = {edge(leaf).node for leaf in leaves}
    seen: set[Node] = set()
    stack = [(e.node, False) for e, _ in roots]
    while stack:
        node, done = stack.pop()
        if done:
            if any(after.node in found for after in _successors(node)):
                found.add(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(after.node, False) for after in _successors(node) if after.node not in seen]
    return found


def _branches(
    now: Sequence[Root], toward_inputs: set[Node], toward_parameters: set[Node]
) -> tuple[list[Branch], list[GradientEdge]]:
    crossings: dict[GradientEdge, Node] = {}
    entered: Counter[Node] = Counter()  # how many edges lead to a node that is not on the way
    seen: set[Node] = set()
    stack = [e.node for e, _ in now]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for after in _successors(node):
            if after.node in toward_inputs:
                stack.append(after.node)
            elif after.node in toward_parameters:
                stack.append(after.node)
                entered[after.node] += 1
                if node in toward_inputs:
                    crossings[after] = node
    ends = {entry: _leaves([entry]) for entry in crossings}
    early = _joined(ends.values(), [ends[entry] for entry in crossings if entered[entry.node] > 1])
    late: dict[Node, Branch] = {}
    for entry, node in crossings.items():
        if ends[entry].isdisjoint(early):
            late.setdefault(node, Branch(node, [])).entries.append(entry)
    return list(late.values()), [GradientEdge(leaf, 0) for leaf in early]


def _joined(every: Iterable[set[Node]], some: Iterable[set[Node]]) -> set[Node]:
    """Returns the leaves of some entries, and of all others that lead to one of them: what comes over
    either way is one sum."""
    found, left = set().union(*some), list(every)
    while more := [leaves for leaves in left if not leaves.isdisjoint(found)]:
        left = [leaves for leaves in left if leaves.isdisjoint(found)]
        found.update(*more)
    return found
