"""Runs the search of meta-pytorch/autoparallel, and prices layouts by its costs: `python autoparallel_search.py REQUEST`.

It runs in a process of its own on a fake process group; nothing is computed, and no GPU is needed. REQUEST is a JSON
file with the checkout, a workload file, a mesh, limits of parameters and layouts to price. Along an axis of the mesh a
tensor is "S0" where its dimension 0 is cut, "R" whole and "P" an addend; "S" asks for any cut, None for anything.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LIMIT = "parameters_of_a_rank"


def main(request: Path) -> None:
    asked = json.loads(request.read_text())
    sys.path.insert(0, asked["checkout"])
    with _optimizer(asked) as (optimizer, facts):
        search = Search(optimizer)
        answer = {
            **facts,
            "found": [search.best(limit) for limit in asked["limits"]],
            "priced": [search.priced(**layout) for layout in asked["layouts"]],
        }
    Path(asked["answer"]).write_text(json.dumps(answer))


class Whole(nn.Module):
    """A model with its loss, so that both passes are one graph."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = self.loss(self.model(tokens), targets)
        return value


@contextmanager
def _optimizer(asked: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the optimizer of layouts of one model on one mesh, and what building it took."""
    from autoparallel.api import AutoParallel
    from autoparallel.cost_models import compute_estimation
    from autoparallel.cost_models.nccl_cost_model import h100_topo_config
    from torch.testing._internal.distributed.fake_pg import FakeStore

    limits = next(x for x in compute_estimation.DEVICE_LIMITS if x.name == "H100")
    compute_estimation._get_device_limit = lambda: limits  # it asks the GPU for its name
    spec = importlib.util.spec_from_file_location("asked_model", asked["model"])
    assert spec is not None and spec.loader is not None
    file = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # the trace looks it up by name
    spec.loader.exec_module(file)
    shape = asked["mesh"]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=prod(shape))
    names = ("x", "y", "z")[: len(shape)]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)
    with torch.device("meta"):
        model = Whole(file.build(**asked["arguments"]), file.loss)
    start, before = time.perf_counter(), _processor_s()
    topology = h100_topo_config(num_nodes=asked["nodes"], gpus_per_node=prod(shape) // asked["nodes"])
    with AutoParallel(model, lambda: file.batch(asked["batch"]), mesh, cost_model=topology) as parallel:
        optimizer = parallel.sharding_optimizer
        yield (
            optimizer,
            {
                "build_wall_s": time.perf_counter() - start,
                "build_processor_s": _processor_s() - before,
                "variables": len(optimizer.pulp_variables),
                "rows": len(optimizer.prob.constraints),
            },
        )


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in used)


class Search:
    """One built program, solved again and again with other rows."""

    def __init__(self, optimizer: Any) -> None:
        from torch._functorch._aot_autograd.fx_utils import get_param_and_grad_nodes

        self.optimizer = optimizer
        pairs = get_param_and_grad_nodes(optimizer.graph)
        self.parameters = {desc.target.removeprefix("model."): pair[0] for desc, pair in pairs.items()}
        self.readers = {
            name.removesuffix(".weight"): found
            for name, node in self.parameters.items()
            if name.endswith(".weight") and (found := self._reader(node)) is not None
        }

    def _reader(self, parameter: Any) -> Any:
        """Returns the first operation that computes with a parameter."""
        aten = torch.ops.aten
        passing = {
            aten.alias.default,
            aten.permute.default,
            aten.t.default,
            aten.transpose.int,
            aten.view.default,
        }
        reached = {parameter}
        for node in self.optimizer.graph.nodes:
            if node.op == "call_function" and reached.intersection(node.all_input_nodes):
                if node.target not in passing:
                    return node
                reached.add(node)
        return None

    def best(self, limit: float | None) -> dict[str, Any]:
        """Returns its best answer whose ranks hold at most so many elements of weights."""
        with self._limited(limit):
            return self._solved()

    def priced(
        self, limit: float | None, operations: dict[str, Any], resting: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns its best answer with what is asked for, as far as it has that; the rest is its own choice."""
        asked = [(self.readers.get(name), want, self._of_operation) for name, want in operations.items()]
        asked += [
            (self.parameters.get(name), {"output": want}, self._of_result) for name, want in resting.items()
        ]
        rows: list[str] = []
        granted = 0
        for node, want, read in asked:
            allowed = [i for i, x in enumerate(self._strategies(node)) if _matches(read(node, x), want)]
            if allowed:
                granted += 1
                rows += self.optimizer._add_node_constraint(node, allowed, f"asked_{granted}")
        try:
            with self._limited(limit):
                found = self._solved()
        except RuntimeError:
            found = {"objective_us": None}
        self.optimizer.remove_constraints(rows)
        return found | {"granted": granted, "asked": len(asked)}

    def _strategies(self, node: Any) -> Any:
        return () if node is None else self.optimizer.strats[node].strategies

    def _of_operation(self, node: Any, strategy: Any) -> dict[str, list[str]]:
        """Returns how an operation reads its activation and makes its result."""
        place = 1 if node.target == torch.ops.aten.embedding.default else 0
        return {"input": _told(strategy.input_specs[place]), **self._of_result(node, strategy)}

    def _of_result(self, _: Any, strategy: Any) -> dict[str, list[str]]:
        made = strategy.output_specs
        return {"output": _told(made[0] if isinstance(made, list | tuple) else made)}

    def _elements(self, node: Any, strategy: Any) -> float:
        """Returns the elements of a weight that a rank holds; norms' vectors, which are small, are none."""
        shape = node.meta["val"].shape
        mesh = self.optimizer.mesh.shape
        cut = [n for n, kind in zip(mesh, _told(strategy.output_specs), strict=True) if kind[0] == "S"]
        return prod(shape) / prod(cut) if len(shape) > 1 else 0.0

    @contextmanager
    def _limited(self, limit: float | None) -> Iterator[None]:
        import pulp

        problem, optimizer = self.optimizer.prob, self.optimizer
        if limit is not None:
            terms = [
                optimizer._resolve_decision_var((optimizer.node_map[node], 0, i, 0)).var
                * self._elements(node, x)
                for node in self.parameters.values()
                for i, x in enumerate(self._strategies(node))
            ]
            problem += (pulp.lpSum(terms) <= limit, LIMIT)
        try:
            yield
        finally:
            problem.constraints.pop(LIMIT, None)

    def _solved(self) -> dict[str, Any]:
        import pulp

        optimizer = self.optimizer
        start, before = time.perf_counter(), _processor_s()
        solution = optimizer._to_concrete_solution(optimizer.get_solution())
        took = {"wall_s": time.perf_counter() - start, "processor_s": _processor_s() - before}
        return took | {
            "objective_us": float(pulp.value(optimizer.prob.objective)),
            "elements": sum(self._elements(node, solution[node]) for node in self.parameters.values()),
            "operations": {
                name: self._of_operation(node, solution[node]) for name, node in self.readers.items()
            },
            "resting": {
                name: self._of_result(node, solution[node])["output"]
                for name, node in self.parameters.items()
            },
        }


def _told(spec: Any) -> list[str]:
    found = []
    for placement in spec.placements:
        letter = "S" if placement.is_shard() else "T"  # torch's strided cuts are no plain ones
        cut = f"{letter}{getattr(placement, 'dim', '')}"
        found.append("P" if placement.is_partial() else "R" if placement.is_replicate() else cut)
    return found


def _matches(has: dict[str, list[str]], want: dict[str, Any]) -> bool:
    return all(
        wanted is None or wanted == own or (wanted == "S" and own[0] == "S")
        for side, wants in want.items()
        for own, wanted in zip(has[side], wants, strict=True)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
