"""What ranks that share gradients or parameters send each other, and what they put into checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from pathlib import Path
from shutil import copytree

import pytest
import torch

from planner.errors import BadInput, BadPlan
from planner.model import ModelGraph
from planner.plan import Plan, shard_of, shard_ranks, units_of_parameters
from planner.plan.sharding import refused_shards
from runtime.checkpoint import Checkpoint, complete
from runtime.train import Model, job_of, prepare
from tests.pool import Pool
from tests.runtime.compare import apart, expected, run
from tests.runtime.jobs import captured_of
from tests.runtime.plans import plan_for
from tests.runtime.test_equality import HERE, plan_of

MLP, LAYERS = HERE + "mlp.py", {"layers": "5", "width": "64"}


def mlp(**shape: object) -> Plan:
    return plan_of(MLP, LAYERS, **({"family": "1f1b", "workers": 1, "micros": 2, "data": 2} | shape))


def padded(plan: Plan, graph: ModelGraph, names: Collection[str] | None = None) -> int:
    """The bytes of units, each a multiple of the ranks that share it; of those with some of the names."""
    found, unit_of = 0, units_of_parameters(plan, graph)
    shard = shard_of(plan, 0)
    ranks = 1 if shard is None or shard.what == "state" else shard_ranks(plan, shard)
    for unit in sorted(set(unit_of.values())):
        rows = [row for row in graph.trained if unit_of[row.name] == unit]
        if names is None or any(row.name in names for row in rows):
            part = -(-sum(prod(row.shape) for row in rows) // ranks)
            found += part * ranks * (rows[0].bytes // prod(rows[0].shape))
    return found


def sent(pool: Pool, model: Model, folder: Path) -> list[int]:
    """What each rank sends in one step."""
    plan = model.plan
    paths, _ = prepare(model, folder, job_of(plan, 1, {}))
    return pool.run("tests.runtime.sharding.wire:sent", len(plan.places), folder=str(paths.root))  # type: ignore[return-value]


TIMES: dict[str, Callable[[int], int]] = {  # that all bytes go to the other ranks of a row
    "": lambda micros: 2,
    "state": lambda micros: 2,
    "gradients": lambda micros: micros + 1,
    "parameters": lambda micros: 3 * micros,
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("micros", [1, 2, 5])
@pytest.mark.parametrize("sharing", TIMES)
def test_bytes_at_the_wire_are_those_of_the_closed_forms(
    sharing: str, micros: int, ranks: int, pool: Pool, tmp_path: Path
) -> None:
    """Of all ranks together: each sends (s - 1)/s P a time, with the padding of units in P."""
    plan = mlp(micros=micros, data=ranks, sharing=sharing)
    model = Model(plan, *captured_of(MLP, LAYERS, 2))
    found = sent(pool, model, tmp_path / "run")
    assert sum(found) == TIMES[sharing](micros) * (ranks - 1) * padded(plan, model.captured.graph)
    assert len(set(found)) == 1 or sharing in ("", "state")  # which do not pad


@pytest.mark.parametrize("micros", [1, 2])
@pytest.mark.parametrize("sharing", ["gradients", "parameters"])
def test_two_copies_add_one_sum_of_each_part_to_the_closed_forms(
    sharing: str, micros: int, pool: Pool, tmp_path: Path
) -> None:
    """Of r copies over s ranks: 2 (r - 1)/r P/s a rank and step, however many micro-batches there are."""
    plan = mlp(micros=micros, data=4, sharing=sharing, ranks=2)
    model = Model(plan, *captured_of(MLP, LAYERS, 2))
    found, copies, row = sent(pool, model, tmp_path / "run"), 2, TIMES[sharing](micros) * (2 - 1)
    assert sum(found) == (copies * row + 2 * (copies - 1)) * padded(plan, model.captured.graph)


@pytest.mark.parametrize("sharing", ["gradients", "parameters"])
@pytest.mark.parametrize("name", ["zb-h1", "walks", "a part", "all"])
def test_halves_and_recomputation_send_what_the_closed_forms_say(
    name: str, sharing: str, pool: Pool, tmp_path: Path
) -> None:
    """An input half gathers and a weight half sums, a recomputed layer is gathered once more; nowhere to walk to, the
    weight half does all."""
    micros, ranks, again = 3, 2, name in ("a part", "all")
    file, arguments = (HERE + "walking.py", {}) if name == "walks" else (MLP, LAYERS)
    shape: dict[str, object] = {"family": "1f1b", "recompute": [0]} if again else {"family": "zb-h1"}
    shape |= {"workers": 1, "micros": micros, "data": ranks, "sharing": sharing}
    plan = plan_of(file, arguments, recompute_first=3 if name == "a part" else 0, **shape)
    model = Model(plan, *captured_of(file, arguments, 2))
    graph, early = model.captured.graph, set(plan.stages[0].layers[: 3 if name == "a part" else None])
    redone = padded(plan, graph, {row.name for row in graph.trained if set(row.users) <= early})
    times = TIMES[sharing](micros) * padded(plan, graph)
    times += micros * redone if again and sharing == "parameters" else 0
    assert sum(sent(pool, model, tmp_path / "run")) == times * (ranks - 1)


def states(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, with the state of optimizers."""
    found = Checkpoint.open(folder)
    names = {key.removeprefix("model/") for key in (*found.files, *found.pieces) if key.startswith("model/")}
    made = dict(found.parameters(names))
    for name, row in found.state(names).items():
        made |= {f"{name}/{key}": tensor for key, tensor in row.items()}
    return made


@pytest.mark.parametrize(("sharing", "ranks"), [("gradients", 0), ("parameters", 0), ("parameters", 2)])
def test_a_checkpoint_goes_on_under_any_other_plan_to_the_bit(
    sharing: str, ranks: int, pool: Pool, tmp_path: Path
) -> None:
    """From one plan to the next and back; each rank reads its own elements of them, and a page a tensor beside."""

    def trained(plan: Plan, folder: Path, steps: int) -> dict[str, torch.Tensor]:
        prepare(Model(plan, *captured_of(MLP, LAYERS, 2)), folder, job_of(plan, steps, {}))
        pool.run("tests.runtime.sharding.wire:saved", len(plan.places), folder=str(folder), steps=steps)
        return states(complete(folder / "checkpoints")[-1])

    first = mlp(micros=1, data=4, sharing=sharing, ranks=ranks)
    whole = trained(mlp(micros=1, data=4), tmp_path / "whole", 2)
    shared = trained(first, tmp_path / "shared", 2)
    assert whole.keys() == shared.keys() and any("/" in name for name in whole)
    assert all(float((whole[n] - shared[n]).abs().max()) <= (1e-6 if ranks else 0.0) for n in whole)
    index = (complete(tmp_path / "shared" / "checkpoints")[-1] / "index.json").read_text()
    assert '"version": 3' in index and '"pieces"' in index
    others = {
        "one": mlp(micros=4, data=1),
        "three": mlp(micros=1, data=3, sharing="parameters"),
        "pipeline": mlp(micros=2, workers=2, sharing="parameters"),
        "back": first,
    }
    before = tmp_path / "shared"
    for name, other in others.items():
        again = tmp_path / name
        prepare(Model(other, *captured_of(MLP, LAYERS, 2)), again, job_of(other, 2, {}))
        source = complete(before / "checkpoints")[-1]
        copytree(source, again / "checkpoints" / source.name)
        step = int(source.name.rpartition("-")[2]) + 1
        pool.run("tests.runtime.sharding.wire:copied", len(other.places), folder=str(again), step=step)
        copied, before = states(complete(again / "checkpoints")[-1]), again
        assert copied.keys() == shared.keys()
        assert all(torch.equal(copied[key], shared[key]) for key in shared), name


def test_a_rank_reads_its_own_elements_and_no_byte_beside_them(tmp_path: Path) -> None:
    from runtime.checkpoint import Facts, write_initial

    facts = Facts(step=0, sample=0, seed=0, fingerprint="")
    tensor = torch.arange(10_000, dtype=torch.float32).view(100, 100)
    made = write_initial(tmp_path, {"w": tensor}, facts, {})
    assert torch.equal(made.region("w", 123, 4567), tensor.reshape(-1)[123:4567])
    part = made.folder / made.files["model/w"]
    part.write_bytes(part.read_bytes()[:-8])
    with pytest.raises(BadInput, match=part.name):
        Checkpoint.open(made.folder).region("w", 9_000, 10_000)
    part.unlink()
    with pytest.raises(BadInput, match=part.name):
        Checkpoint.open(made.folder).region("w", 9_000, 10_000)


WRONG: dict[str, tuple[Callable[[], Plan], str]] = {
    "pipes": (lambda: mlp(family="chimera", workers=2, sharing="parameters", ranks=4), "among 4 ranks"),
    "no divisor": (lambda: mlp(data=4, sharing="gradients", ranks=3), "3 ranks, but the stage has 4"),
    "one replica": (lambda: mlp(data=1, sharing="parameters"), "1 ranks, but the stage has 1"),
    "state among some": (
        lambda: mlp(data=4, sharing="state", ranks=2),
        "by whole parameters among all holders: neither ranks nor unit",
    ),
    "no unit": (lambda: mlp(sharing="parameters", unit="blocks.*"), "which no layer is part of"),
    "compiled": (
        lambda: mlp(sharing="parameters").model_copy(update={"execution": "compiled"}),
        "does not go with compiled",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_shared_is_one_message_of_verify_and_of_the_run(name: str, tmp_path: Path) -> None:
    from planner.verify import violations

    make, message = WRONG[name]
    plan, (workload, captured) = make(), captured_of(MLP, LAYERS, 2)
    found = [each for each in violations(plan, graph=captured.graph) if each.rule == "shard"]
    assert len(found) == len(plan.stages) and all(message in each.message for each in found), found
    with pytest.raises(BadPlan, match=message):
        prepare(Model(plan, workload, captured), tmp_path / "run", job_of(plan, 1, {}))


def test_a_spectral_norm_is_refused_where_parameters_are_let_go(tmp_path: Path) -> None:
    """Each replica makes the updates of all micro-batches, before the parameters are gathered: it would find NaN."""
    file, arguments = HERE + "states.py", {"kind": "parametrised"}
    workload, captured = captured_of(file, arguments, 2)
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": 2}
    kinds = {what: plan_of(file, arguments, sharing=what, **shape) for what in ("gradients", "parameters")}
    assert list(refused_shards(kinds["gradients"], captured.graph)) == []
    found = [each.message for each in refused_shards(kinds["parameters"], captured.graph)]
    assert found and all("from whole ones" in each for each in found)
    with pytest.raises(BadPlan, match="what: gradients, or what: state"):
        prepare(Model(kinds["parameters"], workload, captured), tmp_path, job_of(kinds["parameters"], 1, {}))


@pytest.mark.parametrize("kind", ["adafactor", "lamb", "muon"])
def test_an_optimizer_that_needs_whole_parameters_is_refused_by_name(
    kind: str, tmp_path: Path, pool: Pool
) -> None:
    file, arguments = HERE + "optimised.py", {"kind": kind, "layers": "2", "width": "16"}
    workload, captured = captured_of(file, arguments, 2)
    shape: dict[str, object] = {
        "family": "1f1b",
        "workers": 1,
        "micros": 1,
        "data": 2,
        "arguments": arguments,
    }
    for sharing in ("gradients", "parameters"):
        plan = plan_for(captured.graph, file, sharing=sharing, **shape)  # type: ignore[arg-type]
        with pytest.raises(BadPlan, match=f"(?i){kind}: updates parameters as wholes"):
            prepare(Model(plan, workload, captured), tmp_path / "run", job_of(plan, 1, {}))
    whole = run(pool, plan_for(captured.graph, file, **shape), tmp_path / "a", steps=2)  # type: ignore[arg-type]
    state = plan_for(captured.graph, file, sharing="state", **shape)  # type: ignore[arg-type]
    assert run(pool, state, tmp_path / "b", steps=2).losses == whole.losses


@pytest.mark.parametrize("kind", ["adamw", "momentum", "adagrad", "rmsprop"])
def test_an_optimizer_by_element_updates_parts_as_it_does_the_whole(
    kind: str, tmp_path: Path, pool: Pool
) -> None:
    file, arguments = HERE + "optimised.py", {"kind": kind, "layers": "2", "width": "16"}
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": 2}
    whole = run(pool, plan_of(file, arguments, **shape), tmp_path / "a", steps=4)
    parts = run(pool, plan_of(file, arguments, sharing="parameters", **shape), tmp_path / "b", steps=4)
    assert whole.losses == parts.losses
    assert all(torch.equal(x[n], y[n]) for x, y in zip(whole.after, parts.after, strict=True) for n in x)


@pytest.mark.parametrize("sharing", ["state", "gradients", "parameters"])
def test_clipping_is_that_of_one_process(sharing: str, tmp_path: Path, pool: Pool) -> None:
    file, arguments = HERE + "branches.py", {"double": "True"}
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 2, "data": 2}
    plan = plan_of(file, arguments, sharing=sharing, **shape)
    have = run(pool, plan, tmp_path, steps=3, clip_norm=0.01)
    want = expected(plan, tmp_path, steps=3, clip_norm=0.01)
    assert max(abs(a - b) / abs(a) for a, b in zip(want.losses, have.losses, strict=True)) <= 1e-12
    for a, b in zip(want.after, have.after, strict=True):
        assert a.keys() == b.keys() and max(apart(a[name], b[name]) for name in a) <= 1e-12


@pytest.mark.parametrize("sharing", ["state", "gradients", "parameters"])
def test_all_ranks_leave_out_a_step_whose_gradients_overflow(
    sharing: str, tmp_path: Path, pool: Pool
) -> None:
    arguments = {"layers": "9", "factor": "300"}
    half: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 1, "data": 2, "precision": "fp16"}
    plans = (plan_of(MLP, arguments, sharing=each, **half) for each in ("", sharing))
    a, b = (  # NaN differs from itself
        run(pool, plan, tmp_path / str(number), steps=8, compare_holders=False)
        for number, plan in enumerate(plans)
    )
    begun = Checkpoint.open(complete(tmp_path / "1" / "checkpoints")[0]).parameters(b.after[0])
    assert all(torch.equal(x, begun[name]) for name, x in b.after[0].items())
    assert any(not torch.equal(x, begun[name]) for name, x in b.after[-1].items())
    assert a.losses == b.losses
    assert all(torch.equal(x[n], y[n]) for x, y in zip(a.after, b.after, strict=True) for n in x)
