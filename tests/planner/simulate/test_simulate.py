from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import BadInput
from planner.program.lower import global_order
from planner.schedule import Action, Kind, generate
from planner.schedule.actions import from_text
from planner.simulate import (
    StageBytes,
    compile,
    critical_path,
    duration_vector,
    makespans,
    node_ends,
    simulate,
)
from planner.simulate.longest_path import _loop_ends, makespan, neighbour_hops
from planner.timeline import COLLECTIVE, SEND, decode
from tests.planner.cases import Case, cases, random_times, stage_times
from tests.planner.event_queue import EventQueue

few = settings(max_examples=200, deadline=None, derandomize=True)
UPDATES = st.sampled_from(["rolling", "barrier"])


@few
@given(case=cases(), queueing=st.sampled_from(["channel", "card", "none"]), update=UPDATES)
def test_every_action_ends_when_a_plain_event_queue_ends_it(case: Case, queueing: str, update: str) -> None:
    compiled = case.compiled(queueing=queueing, update=update)
    ends = node_ends(compiled, case.vector)
    reference = EventQueue(
        case.schedule, case.hops, case.times, queueing=queueing, barrier=update == "barrier"
    )
    total = reference.run()
    ours = {(0, action): int(ends[node]) for action, node in compiled.graph.node_of.items()}
    assert ours == reference.done
    assert makespan(compiled, case.vector) == total


@few
@given(case=cases())
def test_one_stream_a_worker_is_a_rendezvous_in_the_one_order(case: Case) -> None:
    ranking = global_order(case.compiled(update="rolling"), case.vector)
    compiled = case.compiled(queueing="stream", update="rolling", ranking=ranking)
    ends = node_ends(compiled, case.vector)
    reference = EventQueue(case.schedule, case.hops, case.times, queueing="stream", ranking=ranking)
    reference.run()
    assert {(0, a): int(ends[node]) for a, node in compiled.graph.node_of.items()} == reference.done
    assert int(ends.max()) >= makespan(case.compiled(update="rolling"), case.vector)


@few
@given(case=cases(most_workers=4, most_micros=4), update=UPDATES)
def test_three_steps_in_a_row_are_those_of_an_event_queue(case: Case, update: str) -> None:
    timeline = simulate(case.compiled(update=update), case.vector, steps=3)
    reference = EventQueue(case.schedule, case.hops, case.times, barrier=update == "barrier", steps=3)
    reference.run()
    kinds = {kind.value for kind in Kind}
    ours = {
        (step, Action(Kind(event.name), *event[1:])): end
        for step, event, end in zip(
            timeline.step.tolist(), timeline.events(), timeline.end_ns.tolist(), strict=True
        )
        if event.name in kinds
    }
    assert ours == reference.done
    sends = [decode(code).name == SEND for code in timeline.code.tolist()]
    messages = zip(timeline.start_ns[sends].tolist(), timeline.end_ns[sends].tolist(), strict=True)
    assert sorted(messages) == sorted(reference.messages_sent)


@few
@given(case=cases(), update=UPDATES)
def test_time_is_never_below_the_busiest_worker_or_the_longest_micro_batch(case: Case, update: str) -> None:
    span = makespan(case.compiled(update=update), case.vector)
    cost = EventQueue(case.schedule, case.hops, case.times)._cost
    assert span >= max(sum(map(cost, order)) for order in case.schedule.orders)
    for micro, pipe in enumerate(case.schedule.pipe_of):
        way = [a for order in case.schedule.orders for a in order if (a.micro, a.pipe) == (micro, pipe)]
        compute = sum(cost(a) for a in way if a.kind in (Kind.F, Kind.B, Kind.I))
        place = case.schedule.place[pipe]
        wire = sum(
            hop.ns
            for hop in case.hops
            if abs(hop.sender - hop.receiver) == 1 and place[hop.sender] != place[hop.receiver]
        )
        assert span >= compute + wire


@few
@given(case=cases(), seed=st.integers(0, 999))
def test_time_is_never_below_any_path_and_equals_the_one_it_names(case: Case, seed: int) -> None:
    compiled, draw = case.compiled(), Random(seed)
    graph, costs = compiled.graph, np.append(case.vector, 0)
    ends = node_ends(compiled, case.vector)
    bound = critical_path(compiled, case.vector)
    assert int(bound.counts @ case.vector) == bound.ns == makespan(compiled, case.vector)
    for _ in range(5):
        node, length = draw.randrange(len(ends)), 0
        top = node
        while node > graph.sources:
            length += int(costs[graph.cost[node]])
            node = int(draw.choice([graph.first[node], graph.second[node] or graph.first[node]]))
        assert ends[top] >= length


@few
@given(case=cases(), seed=st.integers(0, 999))
def test_the_row_of_a_critical_path_holds_for_other_costs(case: Case, seed: int) -> None:
    compiled, draw = case.compiled(), Random(seed)
    row = critical_path(compiled, case.vector).counts
    other = np.array([draw.randint(0, 99) for _ in range(compiled.size)])
    assert makespan(compiled, other) >= int(row @ other)


@few
@given(case=cases(), seed=st.integers(0, 999))
def test_a_batch_and_the_level_sweep_give_what_one_at_a_time_gives(case: Case, seed: int) -> None:
    compiled, draw = case.compiled(), Random(seed)
    table = np.array([[draw.randint(0, 99) for _ in range(compiled.size)] for _ in range(7)])
    single = [makespan(compiled, row) for row in table]
    assert makespans(compiled, table).tolist() == single
    assert [int(compiled._sweep.run(np.append(row, 0), None).max()) for row in table] == single


def test_a_batch_larger_than_the_cache_is_cut_into_parts() -> None:
    schedule = generate("1f1b", workers=16, micros=32)
    hops = neighbour_hops(16)
    compiled = compile(schedule, hops)
    table = np.arange(1, 301)[:, None] * duration_vector(stage_times(16), hops)[None, :]
    assert makespans(compiled, table).tolist() == [k * (3 * 32 + 3 * 15) for k in range(1, 301)]


def test_a_wide_pipeline_is_swept_level_by_level_to_the_same_end() -> None:
    schedule = generate("1f1b", workers=64, micros=128)
    hops = neighbour_hops(64, act_ns=3, grad_ns=2)
    compiled = compile(schedule, hops)
    vector = duration_vector(random_times(64, Random(1)), hops)
    assert compiled._wide
    assert makespan(compiled, vector) == max(_loop_ends(compiled, vector.tolist(), None))


def slots(family: str, workers: int, micros: int, *, b: int = 2, pairs: int = 1) -> int:
    """Makespan with F = I = W = 1 a stage and no hops."""
    schedule = generate(family, workers=workers, micros=micros, pairs=pairs)
    hops = neighbour_hops(schedule.stages)
    return makespan(compile(schedule, hops), duration_vector(stage_times(schedule.stages, b=b), hops))


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_makespans_are_the_published_ones(workers: int) -> None:
    for micros in (workers, 2 * workers, 4 * workers):
        fill = workers - 1
        assert slots("gpipe", workers, micros) == 3 * (micros + fill)
        assert slots("1f1b", workers, micros) == 3 * (micros + fill)
        assert slots("zb-h1", workers, micros) == 3 * micros + fill
        assert slots("interleaved", workers, micros) == 3 * (2 * micros + fill)
    assert slots("chimera", workers, workers, b=1) == 3 * workers - 2
    assert slots("chimera", workers, workers) == workers + 2 * (2 * workers - 2)


@pytest.mark.parametrize(("workers", "pairs"), [(4, 1), (4, 2), (8, 1), (8, 2), (8, 4)])
def test_chimera_with_split_gradients_ends_half_a_fill_after_the_work(workers: int, pairs: int) -> None:
    for micros in (workers, 2 * workers):
        work = 3 * micros
        assert slots("chimera-zb", workers, micros, pairs=pairs) == work + workers // (2 * pairs) - 1


def test_units_of_chimera_follow_each_other_as_in_the_paper() -> None:
    assert [slots("chimera", 8, micros) for micros in (8, 16, 32)] == [36, 66, 126]
    assert [slots("chimera", 4, micros, b=1) for micros in (4, 8, 16)] == [10, 18, 34]
    assert slots("chimera-zb", 4, 5) == 16


def test_a_sum_runs_beside_the_computation_and_only_the_step_waits_for_it() -> None:
    schedule = from_text("0F0 0B0 1F1' 1B1' 1SYNC' 0SYNC 0STEP 1STEP'\n1F0 1B0 1SYNC 0F1' 0B1' 0SYNC' 1STEP 0STEP'",
                         place=((0, 1), (1, 0)), pipe_of=(0, 1))  # fmt: skip
    hops = neighbour_hops(2)
    times = stage_times(2, f=10, b=10, sync_ns=100, step_ns=1)
    compiled = compile(schedule, hops, update="rolling")
    timeline = simulate(compiled, duration_vector(times, hops))
    sums = {
        (r, str(e)): (a, b)
        for r, e, a, b in zip(
            timeline.rank.tolist(),
            timeline.events(),
            timeline.start_ns.tolist(),
            timeline.end_ns.tolist(),
            strict=True,
        )
        if e.name == COLLECTIVE
    }
    last = max(
        int(
            node_ends(compiled, duration_vector(times, hops))[compiled.graph.node_of[Action(Kind.B, 1, 1, 1)]]
        ),
        0,
    )
    assert sums[0, "1COLLECTIVE"] == sums[1, "1COLLECTIVE"]
    assert sums[0, "1COLLECTIVE"][0] >= last
    first, second = min(sums.values()), max(sums.values())
    assert second[0] >= first[1], "one sum at a time on a worker"
    assert timeline.makespan_ns == second[1] + 2 * 1


def test_holders_that_sum_in_different_orders_never_start() -> None:
    schedule = from_text("0F0 0B0 1F1' 1B1' 0SYNC 1SYNC' 0STEP 1STEP'\n1F0 1B0 0F1' 0B1' 1SYNC 0SYNC' 1STEP 0STEP'",
                         place=((0, 1), (1, 0)), pipe_of=(0, 1))  # fmt: skip
    with pytest.raises(BadInput, match=r"\[0STEP\].*<-- here: waits for the sum of stage 0"):
        compile(schedule, neighbour_hops(2))


def test_a_circle_of_waiting_is_drawn_with_its_culprits() -> None:
    schedule = from_text(
        "0F0 0B0 0F1 0B1 0SYNC 0STEP\n1F1 1B1 1F0 1B0 1SYNC 1STEP", place=((0, 1),), pipe_of=(0, 0)
    )
    with pytest.raises(BadInput) as error:
        compile(schedule, neighbour_hops(2))
    text = str(error.value)
    assert "worker 0: 0F0 [0B0] 0F1 0B1 0SYNC 0STEP  <-- here: waits for message grad1>0.0" in text
    assert "worker 1: [1F1] 1B1 1F0 1B0 1SYNC 1STEP  <-- here: waits for message act0>1.1" in text


@pytest.mark.parametrize("order", ["0B0 0F0", "0F0 0W0 0I0", "0R0 0F0 0B0", "0F0 0B0 0R0", "1F0 0F0 1B0 0B0"])
def test_an_order_against_the_dependences_of_its_own_worker_is_refused(order: str) -> None:
    schedule = from_text(order, place=((0, 0),), pipe_of=(0,))
    hops = neighbour_hops(2) if "1F0" in order else ()
    with pytest.raises(BadInput, match="can ever start"):
        compile(schedule, hops)


def test_an_action_on_a_worker_that_does_not_hold_its_stage_is_refused() -> None:
    schedule = from_text("0F0 1F0 0B0\n1B0", place=((0, 1),), pipe_of=(0,))
    with pytest.raises(
        BadInput, match=r"1F0 is on worker 0\nworker 0: 0F0 \[1F0\] 0B0  <-- here: worker 0 does not"
    ):
        compile(schedule, neighbour_hops(2))


def test_an_action_nobody_receives_is_drawn() -> None:
    schedule = from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1B1", place=((0, 1),), pipe_of=(0, 0))
    with pytest.raises(BadInput, match=r"0F1 has no receiver: no F of stage 1 for micro-batch 1") as error:
        compile(schedule, neighbour_hops(2))
    assert "0F0 [0F1] 0B0 0B1  <-- here" in str(error.value)


def test_a_hop_that_leads_nowhere_or_the_wrong_way_is_refused() -> None:
    schedule = generate("1f1b", workers=2, micros=2)
    act, grad = neighbour_hops(2)
    for wrong, says in [
        (act.model_copy(update={"receiver": 5}), "joins no two stages"),
        (act.model_copy(update={"direction": "grad"}), "goes the wrong way"),
        (grad, "is listed twice"),
    ]:
        with pytest.raises(BadInput, match=says):
            compile(schedule, (act, grad, wrong))


def test_a_duration_vector_of_the_wrong_length_is_refused() -> None:
    compiled = compile(generate("1f1b", workers=2, micros=2), neighbour_hops(2))
    with pytest.raises(BadInput, match="3 durations"):
        makespan(compiled, [1, 2, 3])


def test_memory_samples_come_with_what_is_always_there() -> None:
    hops = neighbour_hops(4)
    compiled = compile(generate("1f1b", workers=4, micros=8), hops)
    vector = duration_vector(stage_times(4), hops)
    sizes = [StageBytes(saved=10)] * 4
    timeline = simulate(compiled, vector, sizes, static_bytes=[5] * 4)
    assert timeline.peak_bytes == {0: 45, 1: 35, 2: 25, 3: 15}


def test_the_waits_of_a_worker_are_its_idle_time() -> None:
    hops = neighbour_hops(4, act_ns=2, grad_ns=1)
    compiled = compile(generate("1f1b", workers=4, micros=8), hops)
    timeline = simulate(compiled, duration_vector(stage_times(4), hops))
    for rank in range(4):
        own = timeline.of_rank(rank)
        computed = [e.name in {k.value for k in Kind} for e in own.events()]
        busy = int((own.end_ns - own.start_ns)[computed].sum())
        assert busy == 3 * 8
        assert int(own.wait_ns.sum()) + busy == int(own.end_ns[computed].max())


def test_a_timeline_survives_its_files(tmp_path: Path) -> None:
    hops = neighbour_hops(3)
    compiled = compile(generate("1f1b", workers=3, micros=3), hops)
    timeline = simulate(compiled, duration_vector(stage_times(3), hops), [StageBytes(saved=1)] * 3)
    for name in ("timeline.npz", "timeline.jsonl"):
        timeline.save(tmp_path / name)
        assert type(timeline).load(tmp_path / name).to_dict() == timeline.to_dict()
