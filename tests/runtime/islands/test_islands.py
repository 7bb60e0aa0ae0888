"""Islands: their rounds are one data-parallel training, and any number of them in any order makes the same bytes."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planner.errors import BadInput
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import launch
from runtime.checkpoint import Checkpoint, CheckpointPart, Facts
from runtime.islands import (
    IslandsAsked,
    IslandsFolder,
    IslandsStatus,
    Outer,
    begin,
    islands_status,
    islands_text,
    queue_islands,
    start_islands,
)
from runtime.islands.folder import checksum
from runtime.islands.least_steps import advised
from runtime.islands.outer import added_up
from runtime.slurm import Options
from tests.captures import captured_of
from tests.runtime.plans import plan_for
from tests.warm_python import WarmPython

pytestmark = pytest.mark.usefixtures("warm_starts")

NET = "tests/runtime/workloads/dropped.py"
SHARDS, ROUNDS = 3, 2
ONE = Outer()
MOMENTUM = IslandsAsked(rounds=2, inner_steps=2, shards=3, outer=Outer(rate=0.7, momentum=0.9))


def plan(data: int = 1, workers: int = 1, **arguments: str) -> Plan:
    graph = captured_of(NET, arguments, 2)[1].graph
    return plan_for(graph, NET, arguments=arguments, workers=workers, micros=2, data=data)


def asked(steps: int = 1, outer: Outer = ONE, rounds: int = ROUNDS) -> IslandsAsked:
    return IslandsAsked(rounds=rounds, inner_steps=steps, shards=SHARDS, outer=outer)


def until_done(folder: IslandsFolder, count: int) -> IslandsStatus:
    for process in start_islands(folder, count):
        process.wait(timeout=120)
    return islands_status(folder)


def trained(root: Path, wanted: IslandsAsked, count: int = 2, **settings: object) -> IslandsStatus:
    found = until_done(begin(plan(), root, wanted, **settings), count)
    assert found.state == "done", "\n".join(path.read_text() for path in (root / "logs").glob("*"))
    return found


def weights(folder: Path) -> dict[str, Tensor]:
    last = checkpoints.latest(folder / "checkpoints")
    assert last is not None
    return last.whole()


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_one_step_a_round_is_the_data_parallel_training_to_rounding(tmp_path: Path) -> None:
    found = trained(tmp_path / "islands", asked())
    run = launch.launch_local(plan(data=SHARDS), tmp_path / "parallel", steps=ROUNDS).wait().check()
    assert apart(weights(tmp_path / "islands"), weights(tmp_path / "parallel")) < 1e-6
    for number, loss in found.losses.items():
        assert loss == pytest.approx(run.losses[number], rel=1e-6)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> str:
    """The checksum of the last version of one island that nobody disturbs, with steps and momentum of their own."""
    root = tmp_path_factory.mktemp("undisturbed") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_python.python))
        return trained(root, MOMENTUM, 1).checksum


def test_four_islands_of_which_some_are_killed_make_the_same_bytes(undisturbed: str, tmp_path: Path) -> None:
    folder, draw = begin(plan(), tmp_path / "run", MOMENTUM), random.Random(0)
    running, kills, end = start_islands(folder, 4), 0, time.monotonic() + 120
    while islands_status(folder).state != "done":
        assert time.monotonic() < end, islands_text(islands_status(folder))
        if kills < 6:
            victim = draw.choice(running)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            kills += 1
            running.remove(victim)
            running += start_islands(folder, 1)
        time.sleep(draw.uniform(0.2, 0.8))
    for process in running:
        process.wait(timeout=60)
    assert islands_status(folder).checksum == undisturbed


def test_spoiled_versions_and_results_are_made_again_and_stale_ones_change_nothing(
    undisturbed: str, tmp_path: Path
) -> None:
    folder = begin(plan(), tmp_path / "run", replace(MOMENTUM, rounds=1))
    assert until_done(folder, 1).version == 1
    rows = sorted(folder.results.iterdir())
    for path, size in ((folder.version(1, folder.read()), 99), (rows[0], 0), (rows[1], 64)):
        torn = next(path.glob("part-*.safetensors"))
        os.truncate(torn, size)
    (rows[2] / "index.json").unlink()
    folder.longer(ROUNDS)
    found = until_done(folder, 2)
    assert (found.state, found.checksum) == ("done", undisturbed), logs_of(folder)
    assert "version 1 is spoiled" in logs_of(folder) and "results are spoiled" in logs_of(folder)
    late = {"result": rows[0].name, "losses": [1.0], "seconds": 1.0, "host": "elsewhere"}
    folder.tasks(0, folder.read()).finish("shard-00000", late)  # an island that has slept for a round
    (folder.paths.checkpoints / "step-00000004.elsewhere-1.partial").mkdir()
    assert until_done(folder, 1).checksum == undisturbed


def test_two_that_add_up_at_once_publish_one_version(undisturbed: str, tmp_path: Path) -> None:
    folder = begin(plan(), tmp_path / "run", replace(MOMENTUM, rounds=1))
    until_done(folder, 1)
    job, first = folder.read(), weights(folder.root)
    version = Checkpoint.open(folder.version(0, job))
    results = [Checkpoint.open(path) for path in sorted(folder.results.iterdir())]
    assert len(results) == SHARDS
    part = added_up(version, results, job.outer)
    there = checksum(folder.version(1, job))
    facts = Checkpoint.open(folder.version(1, job)).facts
    made = checkpoints.write_alone(folder.paths.checkpoints, part, facts, version.names, by="another")
    assert checksum(made.folder) == there and not apart(weights(folder.root), first)
    assert not list(folder.paths.checkpoints.glob("*.partial"))


def test_the_step_taken_together_is_that_of_sgd_with_nesterovs_momentum(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 2, generator=draw)
    own = torch.nn.Parameter(weight.clone())
    known = torch.optim.SGD([own], lr=0.7, momentum=0.9, nesterov=True)
    before = weight
    momentum: dict[str, Tensor] = {}
    for number in range(3):
        after = [before + 0.1 * torch.randn(3, 2, generator=draw) for _ in range(4)]
        made = [
            checkpoint_of(tmp_path / f"{number}-{i}", {"w": x, "n": torch.tensor(i)}, trained=["w"])
            for i, x in enumerate(after)
        ]
        start = checkpoint_of(tmp_path / f"{number}", {"w": before, "n": torch.tensor(7)}, momentum=momentum)
        part = added_up(start, made, Outer(rate=0.7, momentum=0.9))
        own.grad = before - torch.stack(after).mean(0)
        known.step()
        assert torch.allclose(part.tensors["w"], own, atol=1e-6)
        assert int(part.tensors["n"]) == 0  # whole numbers are the first shard's
        before, momentum = part.tensors["w"], dict(part.momentum)


def checkpoint_of(
    folder: Path,
    tensors: dict[str, Tensor],
    trained: Sequence[str] = (),
    momentum: dict[str, Tensor] | None = None,
) -> Checkpoint:
    part = CheckpointPart(
        rank=0, tensors=tensors, momentum=momentum or {}, settings={name: {} for name in trained}
    )
    facts = Facts(step=0, sample=0, seed=0, fingerprint="")
    return checkpoints.write_alone(folder, part, facts, {name: name for name in tensors})


@pytest.mark.parametrize("text", ["adam", "sgd:", "sgd:0", "sgd:1:1", "sgd:-1", "sgd:1:0.9:3", "sgd:1e", ""])
def test_words_that_are_no_step_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="sgd:RATE:MOMENTUM"):
        Outer.parse(text)


def test_what_islands_do_not_have_is_refused_by_name(tmp_path: Path) -> None:
    for name, value in (
        ("ema", 0.9),
        ("eval_every", 2),
        ("save_every", 3),
        ("store", "ram"),
        ("restarts", 1),
    ):
        with pytest.raises(BadInput, match="islands"):
            begin(plan(), tmp_path / "run", asked(), **{name: value})
    assert not (tmp_path / "run").exists()


def test_a_folder_is_joined_with_its_own_words_only_and_holds_no_other_run(tmp_path: Path) -> None:
    begin(plan(), tmp_path / "run", asked())
    assert begin(plan(), tmp_path / "run", asked(rounds=9)).read().rounds == 9
    for wanted, seed, said in (
        (asked(steps=5), 0, "another inner_steps"),
        (asked(outer=Outer(rate=0.5)), 0, "another rate"),
        (asked(), 1, "another seed"),
    ):
        with pytest.raises(BadInput, match=said):
            begin(plan(), tmp_path / "run", wanted, seed=seed)
    with pytest.raises(BadInput, match="another plan"):
        begin(plan(workers=2), tmp_path / "run", asked())
    with pytest.raises(BadInput, match="islands share"):
        launch.launch_local(plan(), tmp_path / "run", steps=1)
    launch.launch_local(plan(), tmp_path / "alone", steps=1).wait()
    with pytest.raises(BadInput, match="a run without islands"):
        begin(plan(), tmp_path / "alone", asked(rounds=1))


def test_the_least_steps_of_a_round_keep_its_cost_at_a_tenth() -> None:
    known = {"weight_bytes": 10**9, "state_bytes": 2 * 10**9, "bytes_per_s": 1e9, "step_s": 0.5}
    found = advised(islands=4, shards=4, **known)
    assert found.overhead_s == pytest.approx(4 * 4 * 3 + 1 + 0.5)
    assert found.inner_steps == 891  # 9 * 49.5 / 0.5
    assert found.reducers == 1  # 2 * 1e9 * 4 / (1e9 * 445)
    halved = advised(islands=2, shards=4, **known)
    assert halved.overhead_s == pytest.approx(50) and halved.inner_steps == 450
    quick = advised(islands=4, shards=4, **(known | {"bytes_per_s": 1e15}))
    assert quick.inner_steps == 10  # 9 * 0.50005 / 0.5, rounded up: what is left is the start of ranks


def test_an_array_of_islands_is_a_script_and_a_plan_for_several_nodes_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "run"
    text = queue_islands(plan(workers=2), there, asked(), 5, Options(), test=True, device="cpu")
    assert '--array="0-4"' in text and "--cpus-per-task=2" in text
    assert f"-P -m runtime.islands.work {there}" in text and not there.exists()
    wide = plan(workers=2)
    far = wide.model_copy(update={"places": (wide.places[0], wide.places[1].model_copy(update={"node": 1}))})
    with pytest.raises(BadInput, match="the plan needs 2 nodes"):
        queue_islands(far, there, asked(), 5, Options(), test=True)


def logs_of(folder: IslandsFolder) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.logs.glob("*")))
