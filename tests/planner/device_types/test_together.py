"""Profiles of several types of devices: each stage takes the times of its own type, and the fastest plan is found."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

import shardwright
from planner import cluster as clusters
from planner.cluster import Cluster
from planner.device_types import together
from planner.errors import BadInput
from planner.milp import Question, solve
from planner.plan import Plan, dump
from planner.profile import LayerCost, Profile, Seconds
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile

LAYERS, MICROS = 6, 4
TIMES = ("forward", "backward", "input_grad", "weight_grad")


def timed(made: Profile, device: str, seed: int) -> Profile:
    """The profile on a type of device whose layers are faster and slower, each by a factor of its own."""
    draw = random.Random(seed)

    def row(cost: LayerCost) -> LayerCost:
        factor = draw.uniform(0.5, 3.0)
        return replace(cost, **{n: Seconds(median=round(getattr(cost, n).median * factor, 9)) for n in TIMES})

    optimizer = replace(
        made.optimizer, seconds_per_parameter=Seconds(median=draw.choice([1e-12, 2e-9, 5e-9]))
    )
    costs = {key: row(cost) for key, cost in made.costs.items()}
    return replace(made, device=device, source="measured", costs=costs, optimizer=optimizer)


def machines(*devices: str) -> Cluster:
    alike = cluster(len(devices), memory=10_000_000)
    (group,) = alike.nodes
    nodes = (group.model_copy(update={"count": 1, "devices_per_node": 1, "device": d}) for d in devices)
    return alike.model_copy(update={"nodes": tuple(nodes)})


def two(seed: int) -> tuple[Profile, Profile]:
    made = profile(chain(LAYERS, seed), micros=(1,), scale=1000)
    return timed(made, "a", seed), timed(made, "b", seed + 1)


def planned(costs: Profile, on: Cluster, **fix: object) -> Plan:
    return solve(Question(profile=costs, cluster=on, batch=MICROS, schedules=("1f1b",), fix=fix))


def taken_ns(costs: Profile, layers: tuple[str, ...], name: str) -> int:
    rows = [costs.cost(layer, next(iter(costs.settings))) for layer in layers]
    return sum(round(getattr(row, name).median * 1e9) for row in rows)


@pytest.mark.parametrize("seed", range(6))
def test_stage_times_are_those_of_the_type_and_the_best_cut_is_found(seed: int) -> None:
    a, b = two(seed)
    on = machines("a", "b")
    costs = together([a, b], ["a", "b"])
    names = [layer.name for layer in a.graph.layers]
    best = planned(costs, on, pipeline=2, data=1, recompute=False)
    found = []
    for (cut,) in combinations(range(1, LAYERS), 1):
        plan = planned(costs, on, pipeline=2, data=1, recompute=False, stages=[names[:cut], names[cut:]])
        assert not violations(plan, profile=costs, cluster=on)
        for stage, times in zip(plan.stages, plan.times, strict=True):
            at = next(
                p.node for p in plan.places if p.pipeline == plan.schedule.place[0][plan.stages.index(stage)]
            )
            own = (a, b)[at]
            assert times.forward_ns == pytest.approx(taken_ns(own, stage.layers, "forward"), abs=LAYERS)
            assert times.backward_ns == pytest.approx(taken_ns(own, stage.layers, "backward"), abs=LAYERS)
            elements = sum(
                p.bytes // 4 for p in a.graph.trained if any(user in stage.layers for user in p.users)
            )
            step = elements * own.optimizer.seconds_per_parameter.median * 1e9
            assert times.step_ns == pytest.approx(step, abs=1)
        found.append(plan.prediction.step_ns)
    assert best.prediction.step_ns == min(found)
    assert best.certificate is not None and best.certificate.bound_ns <= best.prediction.step_ns


def test_a_plan_that_takes_a_type_for_another_is_refused() -> None:
    a, b = two(3)
    costs, on = together([a, b], ["a", "b"]), machines("a", "b")
    names = [layer.name for layer in a.graph.layers]
    plan = planned(costs, on, pipeline=2, data=1, stages=[names[:3], names[3:]], recompute=False)
    other = machines("b", "a")
    assert any(found.rule == "times" for found in violations(plan, profile=costs, cluster=other))


def test_replicas_on_several_types_take_what_the_slowest_takes() -> None:
    a, b = two(1)
    costs, on = together([a, b], ["a", "b"]), machines("a", "b")
    plan = planned(costs, on, data=2, pipeline=1, recompute=False)
    names = tuple(layer.name for layer in a.graph.layers)
    slowest = max(taken_ns(own, names, "forward") for own in (a, b))
    assert plan.times[0].forward_ns >= slowest
    assert not violations(plan, profile=costs, cluster=on)


def test_one_type_alone_is_the_plan_of_its_profile_to_the_byte() -> None:
    a, b = two(2)
    on = machines("b", "b")
    assert together([a, b], ["b"]) is b and together([a], ["a", "b"]) is a
    assert dump(planned(together([a, b], ["b"]), on)) == dump(planned(b, on))


def test_two_profiles_alike_give_the_plan_of_one() -> None:
    a, _ = two(4)
    b = replace(a, device="b")
    on = machines("a", "b")
    both, alone = planned(together([a, b], ["a", "b"]), on), planned(a, on)
    assert both.prediction == alone.prediction and both.stages == alone.stages and both.times == alone.times


def test_what_does_not_go_together_is_refused_with_the_command_that_is_missing() -> None:
    a, b = two(0)
    with pytest.raises(BadInput) as caught:
        together([a, b], ["a", "b", "P100-16GB"])
    assert "no profile of P100-16GB" in str(caught.value)
    assert "shardwright profile hand.py --device cuda --micro 1 --precision fp32 -o P100-16GB.yaml" in str(
        caught.value
    )
    with pytest.raises(BadInput, match="given twice"):
        together([a, a], ["a"])
    longer = timed(profile(chain(LAYERS + 1, 0), micros=(1,)), "b", 0)
    with pytest.raises(BadInput, match="is of model"):
        together([a, longer], ["a", "b"])
    with pytest.raises(BadInput, match="no setting in common"):
        together([a, timed(profile(chain(LAYERS, 0), micros=(2,)), "b", 0)], ["a", "b"])
    with pytest.raises(BadInput, match="optimizer"):
        together([a, replace(b, optimizer=replace(b.optimizer, name="sgd"))], ["a", "b"])


def test_the_commands_take_a_profile_for_each_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    types, both = ("V100-16GB", "P100-16GB"), list[str]()
    for device in types:
        made = ["profile", "mlp", "--device", f"roofline:{device}", "--micro", "1,2", "-o", f"{device}.yaml"]
        assert shardwright.run(made) == 0
        both += ["--profile", f"{device}.yaml"]
    for name, devices in (("mixed", types), ("three", (*types, "A100-80GB"))):
        Path(f"{name}.yaml").write_text(clusters.dump(machines(*devices)))
    words = ["plan", *both, "--batch", "4", "--schedule", "1f1b", "-o", "plan.yaml", "--force", "--cluster"]
    capsys.readouterr()
    assert shardwright.run([*words, "mixed.yaml", "--json"]) == 0
    assert "is not in cluster" not in capsys.readouterr().err
    assert "V100-16GB+P100-16GB" in Path("plan.yaml").read_text()
    assert shardwright.run(["verify", "plan.yaml", *both, "--cluster", "mixed.yaml"]) == 0
    assert shardwright.run(["verify", "plan.yaml", *both]) == 2
    assert "several profiles without --cluster" in capsys.readouterr().err
    assert shardwright.run(["simulate", "plan.yaml"]) == 0
    assert shardwright.run([*words, "three.yaml"]) == 2
    assert "no profile of A100-80GB" in " ".join(capsys.readouterr().err.split())


def test_in_python_a_list_of_profiles_plans_and_verifies_as_one() -> None:
    first, second = two(3)
    on = machines("a", "b")
    found = shardwright.plan([first, second], on, batch=MICROS, schedule=["1f1b"])
    assert dump(found) == dump(planned(together([first, second], {"a", "b"}), on))
    assert shardwright.verify(found, costs=[second, first], cluster=on) == []
    assert shardwright.verify(found, costs=[first], cluster=on) != []
    with pytest.raises(BadInput, match="no profile"):
        shardwright.plan([], on, batch=MICROS)
