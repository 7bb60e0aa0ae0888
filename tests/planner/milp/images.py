"""Small models over images, made by seed: convolutions with skips and a mean, with costs of shards of their own.

`effective` says what a model costs one rank of a group, worked out here from the problem: it shares no code with
`planner.spatial` or `planner.milp`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import ceil, prod

from planner.cluster import Cluster, Slot, spread, sum_s, transfer_s
from planner.model import Layer, ModelGraph, Parameter, Value
from planner.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds
from planner.spatial import NONE, Operation, Ref, to_text

NS = 1e-9
CAPTURED = 2  # samples
Grid = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Images:
    """Layer k convolves what layer k - 1 made, and adds what `skips[k]` made; the last layer takes the mean."""

    rows: int
    columns: int
    channels: int
    kernels: tuple[int, ...]  # of each convolution
    skips: tuple[int | None, ...]
    weights: tuple[int, ...]  # elements

    @property
    def count(self) -> int:
        return len(self.kernels) + 1

    def parts(self, grid: Grid) -> list[tuple[int, int]]:
        """Rows and columns of every rank, last axis fastest."""
        sizes = (self.rows, self.columns)
        cut = [
            [n * (i + 1) // parts - n * i // parts for i in range(parts)]
            for n, parts in zip(sizes, (*grid, 1, 1), strict=False)
        ]
        return list(product(*cut))

    def largest(self, grid: Grid) -> int:
        return max(map(prod, self.parts(grid)))

    def sources(self, layer: int) -> list[int]:
        """Layers whose output a layer reads."""
        skip = self.skips[layer] if layer < len(self.skips) else None
        return [layer - 1] * (layer > 0) + ([] if skip is None else [skip])


def images(seed: int) -> Images:
    rng = random.Random(seed)
    count = rng.randint(2, 4)
    skips = [rng.randrange(k - 1) if k > 1 and rng.random() < 0.5 else None for k in range(count)]
    return Images(
        rows=rng.choice([7, 8, 16]),
        columns=rng.choice([4, 5]),
        channels=rng.randint(1, 3),
        kernels=tuple(rng.choice([1, 3, 3]) for _ in range(count)),
        skips=tuple(skips),
        weights=tuple(rng.randint(0, 2000) for _ in range(count)),
    )


def profile(model: Images, grids: tuple[Grid, ...], seed: int, micros: tuple[int, ...] = (1,)) -> Profile:
    """Any layer may take more or less time on shards, and more bytes than its share."""
    rng = random.Random(seed)
    costs = {}
    for k in range(model.count):
        whole = _row(rng, len(model.sources(k)) or 1)
        for grid in ((), *grids):
            row = _shard(rng, whole, 1 / prod(grid)) if grid else whole
            for micro in micros:
                costs[CostKey(f"s{k}", micro, grid, "fp32", "eager")] = _times(row, micro)
    return Profile(
        workload="hand.py",
        arguments={},
        graph=_graph(model),
        device="cpu",
        source="roofline",
        costs=costs,
        optimizer=OptimizerCost(
            name="adamw", state_bytes_per_parameter=8.0, seconds_per_parameter=Seconds(median=0.0)
        ),
        versions={},
    )


def _row(rng: random.Random, inputs: int) -> LayerCost:
    halves = [Seconds(median=rng.randint(500, 6000) * NS) for _ in range(2)]
    return LayerCost(
        forward=Seconds(median=rng.randint(500, 6000) * NS),
        backward=Seconds(median=halves[0].median + halves[1].median),
        input_grad=halves[0],
        weight_grad=halves[1],
        own_saved_bytes=rng.randint(0, 4000),
        kept_inputs=tuple(range(inputs)),
        kept_outputs=(),
        held_bytes=rng.randint(0, 2000),
        workspace_bytes=rng.randint(0, 2000),
    )


def _shard(rng: random.Random, whole: LayerCost, share: float) -> LayerCost:
    pace, room = share * rng.choice([0.7, 1.0, 1.3, 2.5]), share * rng.choice([1.0, 1.2])

    def time(given: Seconds) -> Seconds:
        return Seconds(median=round(given.median / NS * pace) * NS)

    halves = time(whole.input_grad), time(whole.weight_grad)
    return replace(
        whole,
        forward=time(whole.forward),
        backward=Seconds(median=halves[0].median + halves[1].median),
        input_grad=halves[0],
        weight_grad=halves[1],
        own_saved_bytes=ceil(whole.own_saved_bytes * room),
        held_bytes=ceil(whole.held_bytes * room),
        workspace_bytes=ceil(whole.workspace_bytes * room),
    )


def _times(row: LayerCost, micro: int) -> LayerCost:
    def times(time: Seconds) -> Seconds:
        return Seconds(median=time.median * micro)

    return replace(
        row,
        forward=times(row.forward),
        backward=times(row.backward),
        input_grad=times(row.input_grad),
        weight_grad=times(row.weight_grad),
        own_saved_bytes=row.own_saved_bytes * micro,
        held_bytes=row.held_bytes * micro,
        workspace_bytes=row.workspace_bytes * micro,
    )


def _graph(model: Images) -> ModelGraph:
    count, size = model.count, 4 * model.channels * model.rows * model.columns
    readers: dict[int, list[str]] = {k: [] for k in range(-1, count)}
    for k in range(count):
        for source in model.sources(k) or [-1]:
            readers[source].append(f"l{k}")
    shape = (1, model.channels, model.rows, model.columns)
    values = [_value("x", "input", "", readers[-1], shape, size)]
    values += [_value(f"l{k}:0", "hidden", f"l{k}", readers[k], shape, size) for k in range(count - 1)]
    values.append(replace(_value(f"l{count - 1}:0", "hidden", f"l{count - 1}", [], (), 0), fixed_bytes=4))
    return ModelGraph(
        layers=tuple(_layer(model, k) for k in range(count)),
        values=tuple(values),
        parameters=tuple(
            Parameter(
                name=f"w{k}", users=(f"l{k}",), shape=(n,), dtype="float32", bytes=4 * n, trainable=True
            )
            for k, n in enumerate(model.weights)
            if n
        ),
        buffers=(),
        loss_kind="mean",
        symbolic_batch=True,
        captured_micro=1,
        operations=tuple(map(to_text, _operations(model))),
    )


def _value(name: str, role: str, producer: str, users: list[str], shape: tuple[int, ...], size: int) -> Value:
    return Value(
        name=name,
        role=role,  # type: ignore[arg-type]
        producer=producer,
        consumers=tuple(users),
        shape=shape,
        dtype="float32",
        fixed_bytes=0,
        sample_bytes=size,
        needs_grad=role == "hidden",
    )


def _layer(model: Images, k: int) -> Layer:
    weighed = k < len(model.weights) and model.weights[k]
    return Layer(
        name=f"l{k}",
        signature=f"s{k}",
        inputs=tuple(f"l{source}:0" for source in model.sources(k)) or ("x",),
        outputs=(f"l{k}:0",),
        parameters=(f"w{k}",) if weighed else (),
        buffers=(),
        operations=(),
        fixed_flops=0,
        sample_flops=0,
    )


def _operations(model: Images) -> list[Operation]:
    shape = (CAPTURED, model.channels, model.rows, model.columns)
    found = [Operation("x", "", "given.input", {}, (shape,), (0,))]
    for k, kernel in enumerate(model.kernels):
        name, pad = f"l{k}", kernel // 2
        weight = (model.channels, model.channels, kernel, kernel)
        found.append(Operation(f"state:{name}", "", "given.state", {}, (weight,), (NONE,)))
        source, skip = Ref(f"l{k - 1}:0" if k else "x"), model.skips[k]
        made = f"{name}:0" if skip is None else f"%{name}"
        arguments = {"input": source, "weight": Ref(f"state:{name}"), "bias": None, "padding": (pad, pad)}
        found.append(Operation(made, name, "aten.conv2d", arguments, (shape,), (0,)))
        if skip is not None:
            terms = {"self": Ref(made), "other": Ref(f"l{skip}:0")}
            found.append(Operation(f"{name}:0", name, "aten.add", terms, (shape,), (0,)))
    last = model.count - 1
    mean = Operation(f"l{last}:0", f"l{last}", "aten.mean", {"self": Ref(f"l{last - 1}:0")}, ((),), (NONE,))
    found.append(mean)
    return found


def effective(
    given: Profile,
    model: Images,
    cluster: Cluster,
    grid: Grid,
    whole_from: int,
    *,
    overlap: bool,
    then: Grid = (),
    then_from: int = 0,
    shared: bool = False,
) -> Profile:
    """What one rank of a group has and takes, as a profile of whole samples; `whole_from` 0 never gathers. From layer
    `then_from` on samples lie on the grid `then`, if there is one. If `shared` every rank has its share of the samples
    that are whole; of micro-batches that are not shared evenly nothing is said."""
    ranks = prod(grid)
    end = whole_from or model.count
    grids = [then if then and k >= then_from else grid for k in range(model.count)]
    costs = {}
    every = {key._replace(signature="") for key in given.costs if not key.split}
    shares = {key: key._replace(micro=key.micro // ranks) for key in every if key.micro % ranks == 0}
    for key in {key for key, share in shares.items() if share in every} if shared else every:
        wires = [_Wire(model, cluster, each, key.micro, ranks, bool(then) or shared) for each in grids]
        gathered: set[int] = set()
        moved: set[int] = set()
        for k in range(model.count):
            least = shares[key] if shared and k >= end else key
            row = given.costs[least._replace(signature=f"s{k}", split=grids[k] if k < end else ())]
            strange = {source for source in model.sources(k) if source < end and grids[source] != grids[k]}
            if k < end:
                row = _on_shards(row, wires[k], model, k, overlap)
                row = _moving(row, wires[0], grids[k], len(strange - moved))
                moved |= strange
            elif shared:
                if k == model.count - 1:
                    row = replace(row, forward=_plus(row.forward, wires[k].sum_ns(4)))
                for source in {source for source in model.sources(k) if source < end} - gathered:
                    gathered.add(source)
                    row = _sharing(row, wires[source])
            else:
                new = {source for source in model.sources(k) if source < end} - gathered
                gathered |= new
                row = _gathering(row, wires[k], len(new - strange))
                row = _moving(row, wires[0], (), len(new & strange))
            costs[key._replace(signature=f"s{k}")] = row
    values = tuple(
        replace(value, sample_bytes=model.largest(grids[made]) * model.channels * 4)
        if value.sample_bytes and (made := int(value.producer[1:] or 0) if value.producer else 0) < end
        else replace(value, sample_bytes=value.sample_bytes // (ranks if shared else 1))
        for value in given.graph.values
    )
    return replace(given, costs=costs, graph=replace(given.graph, values=values))


@dataclass(frozen=True)
class _Wire:
    model: Images
    cluster: Cluster
    grid: Grid
    micro: int
    ranks: int
    everybody: bool  # talks to everybody

    def ns(self, elements: float, rounds: int) -> float:
        """Every node has one device: it shares its card among its neighbours."""
        sharers = len(self.grid) if max(self.grid) == 2 else 2
        sharers = self.ranks - 1 if self.everybody else sharers
        start = transfer_s(self.cluster, Slot(0, 0), Slot(1, 0), 0)
        size = 4 * elements * self.model.channels * self.micro
        return rounds * start / NS + (
            transfer_s(self.cluster, Slot(0, 0), Slot(1, 0), 1 << 40, sharers=sharers) - start
        ) / NS * size / (1 << 40)

    def sum_ns(self, size: int) -> int:
        places = [Slot(n, 0) for n in range(self.ranks)]
        return ceil(sum_s(self.cluster, spread(self.cluster, places), size) / NS - 1e-6)

    def halo(self) -> tuple[int, int, int, int]:
        """Of a 3 x 3 window: elements that the busiest rank sends and rounds; and of them those of the last dim,
        where parts are thick enough."""
        if len(self.grid) == 1:
            (parts,) = self.grid
            faces = 1 if parts == 2 else 2
            sent = faces * self.model.columns
            thick = 4 * faces <= self.model.rows // parts
            return sent, 1, sent * thick, thick
        sent = max(columns + rows + 2 for rows, columns in self.model.parts(self.grid))  # padding goes along
        hidden = max(rows for rows, _ in self.model.parts(self.grid))
        thick = self.model.columns // self.grid[1] >= 4
        return sent, 2, hidden * thick, thick

    def moved(self, there: Grid) -> tuple[int, int]:
        """What the busiest rank sends so that samples lie on another grid, and for their gradients to come back."""
        before, after = self.pixels(self.grid), self.pixels(there)
        return _sent(before, after), _sent(after, before)

    def shared(self) -> tuple[float, float]:
        """What the busiest rank sends of each sample so that they are shared, and for their gradients to come back."""
        parts = self.pixels(self.grid)
        sent = [0] * self.ranks
        for part in {frozenset(part) for part in parts}:
            holders = [rank for rank in range(self.ranks) if parts[rank] == part]
            for receiver in set(range(self.ranks)) - set(holders):
                sent[holders[receiver % len(holders)]] += len(part)
        home = [sum(map(len, parts)) - len(part) for part in parts]
        return max(sent) / self.ranks, max(home) / self.ranks

    def pixels(self, grid: Grid) -> list[set[tuple[int, int]]]:
        """Of every rank; of a grid of fewer parts neighbours have the same."""
        ends = [
            [n * i // parts for i in range(parts + 1)]
            for n, parts in zip((self.model.rows, self.model.columns), (*grid, 1, 1), strict=False)
        ]
        areas = [
            {(r, c) for r in range(*rows) for c in range(*columns)}
            for rows, columns in product(*(list(pairwise(each)) for each in ends))
        ]
        return [area for area in areas for _ in range(self.ranks // len(areas))]

    def gather(self) -> tuple[int, int]:
        parts = self.model.parts(self.grid)
        if len(self.grid) == 1:
            return max(map(prod, parts)) * (self.grid[0] - 1), 1
        return max(rows * columns + self.model.rows * columns for rows, columns in parts), 2


def _on_shards(row: LayerCost, wire: _Wire, model: Images, k: int, overlap: bool) -> LayerCost:
    if k == model.count - 1:
        return replace(row, forward=_plus(row.forward, wire.sum_ns(4)))
    if model.kernels[k] == 1:
        return row
    sent, rounds, hidden, hidden_rounds = wire.halo()
    waited, travels = (
        wire.ns(sent - hidden, rounds - hidden_rounds),
        wire.ns(hidden, hidden_rounds),
    )

    def exposed(under: Seconds) -> float:
        return waited + (max(0.0, travels - under.median / NS) if overlap else travels)

    forward = _plus(row.forward, exposed(row.forward))
    if k == 0:
        return replace(row, forward=forward)
    return replace(
        row,
        forward=forward,
        backward=_plus(row.backward, exposed(row.backward)),
        input_grad=_plus(row.input_grad, waited + travels),
    )


def _sent(before: list[set[tuple[int, int]]], after: list[set[tuple[int, int]]]) -> int:
    """Everybody takes what it has not itself from the one that has it."""
    return max(
        sum(len(own & (wants - has)) for wants, has in zip(after, before, strict=True)) for own in before
    )


def _moving(row: LayerCost, wire: _Wire, there: Grid, tensors: int) -> LayerCost:
    sent, back = wire.moved(there)
    part = wire.model.largest(there) if there else wire.model.rows * wire.model.columns
    copied = tensors * 4 * wire.model.channels * part * wire.micro
    home = tensors * wire.ns(back, bool(back))
    return replace(
        row,
        forward=_plus(row.forward, tensors * wire.ns(sent, 1)),
        backward=_plus(row.backward, home),
        input_grad=_plus(row.input_grad, home),
        own_saved_bytes=row.own_saved_bytes + copied,
        held_bytes=row.held_bytes + (copied if row.held_bytes else 0),
        workspace_bytes=row.workspace_bytes + copied,
    )


def _sharing(row: LayerCost, wire: _Wire) -> LayerCost:
    sent, back = wire.shared()
    copied = 4 * wire.model.channels * wire.model.rows * wire.model.columns * wire.micro // wire.ranks
    return replace(
        row,
        forward=_plus(row.forward, wire.ns(sent, 1)),
        backward=_plus(row.backward, wire.ns(back, 1)),
        input_grad=_plus(row.input_grad, wire.ns(back, 1)),
        own_saved_bytes=row.own_saved_bytes + copied,
        held_bytes=row.held_bytes + (copied if row.held_bytes else 0),
        workspace_bytes=row.workspace_bytes + copied,
    )


def _gathering(row: LayerCost, wire: _Wire, tensors: int) -> LayerCost:
    sent, rounds = wire.gather()
    copied = tensors * 4 * wire.model.channels * wire.model.rows * wire.model.columns * wire.micro
    return replace(
        row,
        forward=_plus(row.forward, tensors * wire.ns(sent, rounds)),
        own_saved_bytes=row.own_saved_bytes + copied,
        held_bytes=row.held_bytes + (copied if row.held_bytes else 0),
        workspace_bytes=row.workspace_bytes + copied,
    )


def _plus(time: Seconds, ns: float) -> Seconds:
    return replace(time, median=time.median + ns * NS)
