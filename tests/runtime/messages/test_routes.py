"""What messages carry: Values straight to each reader, gradients back from reader to reader."""

from __future__ import annotations

import pytest

from planner.errors import BadPlan
from runtime.messages import check_hops, routes_of, stages_of_layers
from tests.captures import captured_of
from tests.runtime.plans import hops_of, plan_for
from tests.runtime.test_equality import HERE

ARGUMENTS = {"double": "False"}


def graph():  # type: ignore[no-untyped-def]
    return captured_of(HERE + "branches.py", ARGUMENTS, 2)[1].graph


def stage_of() -> list[int]:
    """`embedding` alone, then the first layers, the last, and the end."""
    names = [layer.name for layer in graph().layers]
    starts = [1, names.index("mix"), names.index("frozen")]
    return [sum(i >= start for start in starts) for i in range(len(names))]


def test_a_value_goes_straight_to_every_stage_that_reads_it() -> None:
    routes = routes_of(graph(), stage_of())
    readers = sorted(receiver for (sender, receiver), names in routes.act.items() if "embedding:0" in names)
    assert readers == [1, 3]
    assert routes.act[1, 3] != () and (2, 1) not in routes.act


def test_its_gradient_comes_back_from_reader_to_reader_the_last_first() -> None:
    routes = routes_of(graph(), stage_of())
    carried = sorted(edge for edge, names in routes.grad.items() if "embedding:0" in names)
    assert carried == [(1, 0), (3, 1)]


def test_integers_carry_no_gradient() -> None:
    routes = routes_of(graph(), stage_of())
    assert any("gate:0" in names for names in routes.act.values())
    assert not any("gate:0" in names for names in routes.grad.values())


def test_a_plan_whose_messages_lose_a_gradient_is_refused() -> None:
    routes = routes_of(graph(), stage_of())
    hops = hops_of(graph(), stage_of(), 2, 0)
    check_hops(routes, hops)
    with pytest.raises(BadPlan, match=r"hop grad 3>1 carries \[\].*plan the model again"):
        check_hops(
            routes, [hop for hop in hops if (hop.direction, hop.sender, hop.receiver) != ("grad", 3, 1)]
        )


def test_stages_that_are_not_the_model_s_layers_are_refused_by_name() -> None:
    plan = plan_for(graph(), HERE + "branches.py", arguments=ARGUMENTS)
    assert stages_of_layers(plan, graph())[0] == 0
    first, *rest = plan.stages
    spoilt = plan.model_copy(
        update={"stages": (first.model_copy(update={"layers": ("embeddings", *first.layers[1:])}), *rest)}
    )
    with pytest.raises(BadPlan, match="'embeddings' where the model has 'embedding'"):
        stages_of_layers(spoilt, graph())
