"""Plans whose stages sleep: the real runtime with planned times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

from benchmarks.replay import replayed_ns
from planner.plan import Plan, StageTimes, schedule_of
from planner.plan import yaml as plan_yaml
from planner.schedule import Kind, Message
from planner.simulate import compile, duration_vector
from planner.simulate.longest_path import makespan
from planner.timeline import Timeline, decode
from runtime.execute import program_of
from runtime.rank.sleeping import MOST_LATE_S, Sleeper, SleepUpdates
from runtime.runfolder import Paths
from runtime.train import job_of, prepare_folder
from runtime.world import alone
from tests.pool import Pool
from tests.runtime.plans import MS
from tests.runtime.test_equality import HERE, plan_of

TIMES = StageTimes(
    forward_ns=4 * MS, backward_ns=8 * MS, input_grad_ns=4 * MS, weight_grad_ns=4 * MS, sync_ns=MS, step_ns=MS
)


@pytest.mark.parametrize(
    ("family", "shape"), [("1f1b", {"data": 2}), ("zb-v", {}), ("chimera", {"recompute": (1,)})]
)
def test_every_action_takes_its_planned_time(
    family: str, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(
        HERE + "branches.py", {"double": "False"}, family=family, workers=2, micros=4, times=TIMES, **shape
    )
    paths, _ = prepare_folder(plan, tmp_path, job_of(plan, 2, {"content": "sleep"}))
    pool.run("tests.runtime.jobs:sleep", len(plan.places), folder=str(paths.root))
    for rank in range(len(plan.places)):
        timeline = Timeline.load(paths.rank_trace(rank))
        order = plan.schedule.orders[plan.places[rank].pipeline].split()
        assert [str(decode(code)) for code in timeline.of_step(2).code.tolist()] == order
        took = {
            str(e): t
            for e, t in zip(timeline.events(), (timeline.end_ns - timeline.start_ns).tolist(), strict=True)
        }
        forwards = [ns for name, ns in took.items() if decode_kind(name) == Kind.F]
        assert min(forwards) >= 4 * MS - MOST_LATE_S * 1e9 - 1000  # longer on a busy machine


def decode_kind(name: str) -> str:
    return "".join(c for c in name if c.isalpha())


def test_sums_go_over_the_link_as_they_were_launched_however_their_holders_come_together() -> None:
    updates = SleepUpdates((TIMES,) * 3, {}, [(0, 0), (0, 1), (0, 2)], Sleeper())
    updates._groups = dict.fromkeys(range(3), None)  # type: ignore[assignment]
    with patch.object(dist, "all_reduce", lambda tensor, group, async_op: Unfinished()):
        for stage in (2, 0, 1):
            updates.launch(0, stage)
    for stage in (1, 0, 2):
        updates._start(stage)
    ends = [updates._ends[stage].wait() for stage in (2, 0, 1)]
    assert ends == sorted(ends)
    assert ends[2] - ends[0] == pytest.approx(2e-3, abs=1e-6)


class Unfinished:
    def get_future(self) -> Future[None]:
        return Future()


def test_a_replay_of_planned_durations_is_the_simulated_step() -> None:
    plan = plan_of(
        HERE + "branches.py",
        {"double": "False"},
        family="1f1b",
        workers=3,
        micros=5,
        times=TIMES,
        hop_ns=MS // 2,
    )
    program = program_of(plan, alone(torch.device("cpu")))
    names = {Kind.F: 4, Kind.B: 8, Kind.STEP: 1, Kind.SYNC: 1}
    replayed = replayed_ns(program, lambda _, action: names[action.kind] * MS, _hops(plan))
    compiled = compile(schedule_of(plan), plan.hops, update="rolling")
    simulated = makespan(compiled, duration_vector(plan.times, plan.hops))
    assert replayed == pytest.approx(int(simulated), abs=2 * MS)


def test_a_run_folder_keeps_the_plan_to_the_byte(tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, workers=2, micros=2)
    prepare_folder(plan, tmp_path, job_of(plan, 1, {}))
    assert plan_yaml.load(Paths(tmp_path).plan) == plan


def _hops(plan: Plan) -> Callable[[Message], int]:
    table = {(hop.direction, hop.sender, hop.receiver): hop.ns for hop in plan.hops}
    return lambda message: table[message.direction, message.sender, message.receiver]
