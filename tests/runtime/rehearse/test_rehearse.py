"""A rank alone does what it does among others: the same bytes at its peak, the same actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from planner.capture import LiveBytes
from planner.errors import BadInput
from planner.plan import Plan
from planner.terminal import console
from planner.timeline import Timeline
from runtime.launch import compare_with_one_process as rehearse_check
from runtime.launch.compare_with_one_process import Checked
from runtime.rank import assemble
from runtime.rehearse import rehearse
from runtime.rehearse import report as rehearse_report
from runtime.rehearse.fake_world import MADE_UP, MadeUpStates, world_of
from runtime.runfolder import Paths
from runtime.train import Model, NoPulse, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.plans import MS
from tests.runtime.spatial.test_plans import VOLUME
from tests.runtime.spatial.test_plans import plan_of as spatial_plan
from tests.runtime.test_equality import HERE, plan_of

Workload = tuple[str, dict[str, str]]
BRANCHES: Workload = (HERE + "branches.py", {"double": "False"})
UNET: Workload = ("unet3d", {"size": "tiny"})
NORMALISED: Workload = (HERE + "normalised.py", {})
COUNTED: Workload = (HERE + "branches.py", {"double": "False", "counted": "True"})


def run_peaks(pool: Pool, plan: Plan, folder: Path) -> list[int]:
    """Of every rank of a real run, in its third step."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    prepare(model, folder, job_of(plan, 3, {"memory_step": 3}))
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(folder))
    ranks = range(len(plan.places))
    return [Timeline.load(Paths(folder).rank_trace(rank)).peak_bytes[rank] for rank in ranks]


def check_peaks(pool: Pool, plan: Plan, folder: Path) -> None:
    real = run_peaks(pool, plan, folder)
    found = rehearse(plan, steps=1)
    here = {each.rank: each.rehearsed_bytes for each in found.peaks}
    assert here == {rank: real[rank] for rank in here}


@pytest.mark.usefixtures("captures_once")
@pytest.mark.parametrize(
    ("workload", "shape"),
    [
        (BRANCHES, {"family": "chimera", "workers": 2, "micros": 4}),
        (BRANCHES, {"family": "zb-v", "workers": 2, "micros": 5}),
        (BRANCHES, {"family": "zb-h1", "workers": 3, "micros": 6, "recompute": (0, 2)}),
        (UNET, {"family": "1f1b", "workers": 3, "micros": 6}),
        (UNET, {"family": "chimera-zb", "workers": 2, "micros": 4}),
        (NORMALISED, {"family": "1f1b", "workers": 2, "micros": 3, "data": 2}),
        (COUNTED, {"family": "gpipe", "workers": 2, "micros": 4, "data": 2, "shard": True}),
    ],
    ids=lambda part: Path(part[0]).stem if isinstance(part, tuple) else part["family"],
)
def test_the_rehearsed_peak_is_that_of_a_run(
    workload: Workload, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    check_peaks(pool, plan_of(workload[0], workload[1], **shape), tmp_path)


@pytest.mark.usefixtures("captures_once")
def test_shards_of_samples_are_rehearsed_as_they_are(pool: Pool, tmp_path: Path) -> None:
    plan = spatial_plan(VOLUME, {0: (2,), 1: (2,)}, 2, micros=2, workers=2, family="zb-h1")
    real, found = run_peaks(pool, plan, tmp_path), rehearse(plan, steps=1)
    assert found.ranks == (0, 1, 2, 3)
    by_worker = {worker: max(real[2 * worker : 2 * worker + 2]) for worker in (0, 1)}
    assert {each.worker: each.rehearsed_bytes for each in found.peaks} == by_worker


@pytest.mark.usefixtures("captures_once")
def test_replicas_are_rehearsed_once_and_the_step_is_replayed_from_what_was_found() -> None:
    plan = plan_of(*UNET, family="1f1b", workers=2, micros=3, data=3, hop_ns=7 * MS)
    found = rehearse(plan, steps=2)
    assert found.ranks == (0, 1)
    assert [(each.stage, each.kind) for each in found.durations] == [
        (stage, kind) for stage in (0, 1) for kind in ("F", "B", "STEP")
    ]
    assert found.predicted_step_ns == found.durations[0].predicted_ns * 13 + 2 * 2 * 7 * MS - 1 * MS
    took = {(each.stage, each.kind): each.rehearsed_ns for each in found.durations}
    busiest = max(3 * (took[stage, "F"] + took[stage, "B"]) for stage in (0, 1))
    assert found.rehearsed_step_ns >= busiest + 2 * 7 * MS  # messages as planned
    assert found.most_different is not None


def test_every_part_of_a_rehearsal_that_lasts_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "FIRST_LINE_S", 1e-4)
    rehearse(plan_of(*BRANCHES, family="1f1b", workers=2, micros=2), steps=1)
    said = {line.rpartition(": ")[0].partition(": ")[2] for line in capsys.readouterr().err.splitlines()}
    assert said == {"the model", "rank 0, 1 of 2", "rank 1, 2 of 2"}


def test_what_a_rank_would_keep_of_a_sum_is_its_own_part() -> None:
    """Between GPUs replicas add up parts by `reduce_scatter`; the other ranks of a rehearsal add nothing."""
    with world_of(1, 3, torch.device("cpu")) as world:
        group, found = world.new_group([0, 1, 2]), torch.zeros(2)
        torch.distributed.reduce_scatter(found, list(torch.arange(6.0).split(2)), group=group)
    assert found.tolist() == [2, 3]


def test_what_cannot_be_rehearsed_is_refused() -> None:
    plan = plan_of(*UNET, family="1f1b", workers=2, micros=2)
    for arguments, why in (
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"steps": 0}, "0 steps"),
        *([] if torch.cuda.is_available() else [({"device": "cuda"}, "no GPU is here")]),
    ):
        with pytest.raises(BadInput, match=why):
            rehearse(plan, **arguments)  # type: ignore[arg-type]


@pytest.mark.usefixtures("warm_starts")
def test_a_check_runs_two_steps_against_one_process_where_they_fit(tmp_path: Path) -> None:
    plan = plan_of(*BRANCHES, family="1f1b", workers=2, micros=2)
    found = rehearse_check.checked(plan)
    assert found.agree and found.together == found.alone  # one pipe: to the bit
    apart = Checked(together=(1.0, 2.0), alone=(1.0, 2.1), tolerance=1e-6)
    assert not apart.agree and "they differ by more than 1e-06" in rehearse_check.check_text(apart)
    memory = plan.prediction.memory[0].model_copy(update={"parameters": 2**60})
    large = plan.prediction.model_copy(update={"memory": (memory, memory)})
    with pytest.raises(BadInput, match="GiB together"):
        rehearse_check.checked(plan.model_copy(update={"prediction": large}))


@pytest.mark.usefixtures("captures_once")
def test_a_worker_that_takes_more_than_was_planned_is_named() -> None:
    plan = plan_of(*UNET, family="1f1b", workers=2, micros=2)  # predicts that nothing is taken
    found = rehearse(plan, steps=1)
    assert [each.worker for each in found.too_full] == [0, 1]
    assert "worker 1 takes" in rehearse_report.text(found)
    assert rehearse_report.as_dict(found)["too_full"] == [0, 1]


@pytest.mark.parametrize("shape", [{"family": "1f1b", "workers": 4}, {"family": "chimera", "workers": 4}])
def test_a_rank_loads_and_makes_no_more_than_its_own_part(shape: dict[str, object]) -> None:
    """Before its weights it makes nothing; then it asks for its own names alone, and holds what they take."""
    plan = plan_of("mlp", {"width": "128", "layers": "8"}, micros=4, **shape)
    workload, captured = captured_of("mlp", {"width": "128", "layers": "8"}, 2)
    whole = sum(row.bytes for row in captured.graph.parameters)
    for rank in range(4):
        asked: set[str] = set()

        class Own(MadeUpStates):
            def parameters(self, names: Sequence[str], asked: set[str] = asked) -> dict[str, torch.Tensor]:
                assert asked or live.peak < 64 * 1024
                asked.update(names)
                return super().parameters(names)

        with world_of(rank, 4, torch.device("cpu")) as world, LiveBytes(()) as live:
            made = assemble(
                plan,
                captured,
                world,
                make_optimizer=workload.optimizer,
                lr_schedule=workload.lr_schedule,
                load=Own(captured.graph),
                options=MADE_UP,
                pulse=NoPulse(),
            )
        part = sum(captured.graph.parameter[name].bytes for name in asked)
        stages = {stage for _, stage in made.mesh.held(rank)}
        assert asked == {
            row.name
            for row in captured.graph.parameters
            if any(user in plan.stages[stage].layers for stage in stages for user in row.users)
        }
        assert part <= 0.75 * whole
        assert (
            live.now <= 2.1 * part and live.peak <= 3.1 * part
        )  # gradients beside, and one copy while loading
