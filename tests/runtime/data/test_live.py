"""A model and a loader that stand in a notebook train under plans, and ranks have none of their code."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import shardwright as sw
from planner.capture import LiveLoop, capture
from planner.errors import BadInput
from planner.workload import Workload, load, seeded
from planner.workload.served import ServedSamples
from runtime.data.live import Loaded, Served, live_workload, pair_of
from runtime.data.stream import mix, permutation
from runtime.launch import Run, launch_inline
from tests.runtime.plans import plan_for

LAPTOP = str(Path(__file__).parents[3] / "plans" / "clusters" / "laptop.yaml")


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that draw: the seed of whoever asks decides the noise."""

    def __init__(self) -> None:
        self.x = torch.arange(24.0).reshape(12, 2)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + torch.rand(2), self.x[index, :1]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def live(folder: Path, **given: object) -> Workload:
    module = net()
    loop = LiveLoop(optimizer=torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9), **given)  # type: ignore[arg-type]
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    return live_workload(module, None, nn.functional.mse_loss, loader, loop, folder)


def test_a_folder_gives_the_model_its_weights_its_optimizer_and_its_samples(tmp_path: Path) -> None:
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3)
    live(tmp_path / "net.model", lr_schedule=schedule)
    workload = load(str(tmp_path / "net.model"))
    module = net()
    pair = (torch.zeros(4, 2), torch.zeros(4, 1))
    assert capture(workload).graph == capture(module, pair, nn.functional.mse_loss).graph
    optimizer = workload.optimizer(module.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["momentum"] == 0.9 and len(optimizer.param_groups[0]["params"]) == 4
    assert isinstance(workload.lr_schedule(optimizer), torch.optim.lr_scheduler.StepLR)
    inputs, targets = workload.batch(3)
    assert inputs.shape == (3, 2) and targets.shape == (3, 1)  # type: ignore[attr-defined]


def test_samples_that_are_served_are_drawn_under_the_seed_of_who_asks(tmp_path: Path) -> None:
    workload = live(tmp_path / "net.model")
    data = workload.dataset()
    assert len(data) == 12  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        asked = data[5]  # type: ignore[index]
        torch.manual_seed(7)
        expected = Noisy()[5]
    inputs, targets = workload.collate([asked])
    assert torch.equal(inputs[0], expected[0]) and torch.equal(targets[0], expected[1])  # type: ignore[index]


def test_samples_are_served_on_after_the_notebook_was_interrupted() -> None:
    path = Served({"train": Loaded(DataLoader(Noisy()))}).start()
    server = multiprocessing.active_children()[-1]
    assert server.pid is not None
    os.kill(server.pid, signal.SIGINT)
    data = ServedSamples(f"socket:{path}#train:12")
    inputs, _ = data.joined([data[3]])  # type: ignore[misc]
    assert inputs.shape == (1, 2)


def test_an_error_of_a_served_dataset_is_told_where_it_is_read() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            raise KeyError("no such file")

    answer = Served({"train": Loaded(DataLoader(Broken()))})._answer(
        {"part": "train", "indices": [0], "seeds": [0]}
    )
    assert b"no such file" in answer


def test_a_live_model_trains_as_a_loop_by_hand_does(tmp_path: Path) -> None:
    module = net()[:2].append(nn.Linear(8, 1))  # type: ignore[index]
    start = copy.deepcopy(module.state_dict())
    module[0].weight.data *= 1.5  # as it stands when it is handed over
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    workload = live_workload(
        module, None, nn.functional.mse_loss, loader, LiveLoop(optimizer=optimizer), tmp_path / "net.model"
    )
    costs = sw.profile(workload, device="roofline:H100-80GB", micro=(2,), precision="fp32")
    plan = sw.plan(costs, LAPTOP, batch=4, fix={"data": 1, "pipeline": 2, "micro": 2})
    losses = launch_inline(plan, tmp_path / "run", steps=3).losses
    assert all(torch.equal(start[name], x) for name, x in module.state_dict().items() if name != "0.weight")
    data, order = Noisy(), [int(i) for i in permutation(0, 0, 12)]
    for step in range(3):
        total = 0.0
        for micro in (0, 1):
            rows = []
            for position in range(4 * step + 2 * micro, 4 * step + 2 * micro + 2):
                with seeded(mix(0, position)):
                    rows.append(data[order[position]])
            inputs, targets = (torch.stack(x) for x in zip(*rows, strict=True))
            loss = nn.functional.mse_loss(module(inputs), targets) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        assert losses[step + 1] == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (LiveLoop(optimizer=lambda rows: torch.optim.SGD(rows)), "optimizer is a function"),
        (
            LiveLoop(lr_schedule=functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=abs)),
            "lr_lambda",
        ),
    ],
)
def test_what_a_name_and_settings_cannot_say_is_refused_before_anything_is_written(
    tmp_path: Path, loop: LiveLoop, words: str
) -> None:
    pair = (torch.zeros(4, 2), torch.zeros(4, 1))
    with pytest.raises(BadInput, match=words):
        live_workload(net(), pair, nn.functional.mse_loss, None, loop, tmp_path / "net.model")
    assert not (tmp_path / "net.model").exists()


def test_a_batch_of_names_is_input_and_its_labels_are_targets() -> None:
    words, labels = torch.zeros(2, 3), torch.ones(2)
    assert pair_of({"words": words, "labels": labels}) == ({"words": words, "labels": labels}, labels)
    with pytest.raises(BadInput, match="a batch is Tensor"):
        pair_of(words)


def test_an_optimizer_that_has_taken_steps_is_refused(tmp_path: Path) -> None:
    module = net()
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.zeros(4, 2)).sum().backward()
    optimizer.step()
    pair = (torch.zeros(4, 2), torch.zeros(4, 1))
    with pytest.raises(BadInput, match="has taken steps already"):
        live_workload(
            module, pair, nn.functional.mse_loss, None, LiveLoop(optimizer=optimizer), tmp_path / "m.model"
        )


def test_a_batch_without_a_loader_is_the_dataset(tmp_path: Path) -> None:
    pair = (torch.arange(6.0).reshape(3, 2), torch.arange(3.0)[:, None])
    workload = live_workload(net(), pair, nn.functional.mse_loss, None, LiveLoop(), tmp_path / "m.model")
    data = workload.dataset()
    assert len(data) == 3  # type: ignore[arg-type]
    inputs, targets = workload.collate([data[2], data[0]])  # type: ignore[index]
    assert torch.equal(inputs, pair[0][[2, 0]]) and torch.equal(targets, pair[1][[2, 0]])  # type: ignore[arg-type]


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0] >= 8, "too few"
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_model_that_asks_for_many_samples_serves_what_its_example_has(tmp_path: Path) -> None:
    pair = (torch.zeros(16, 2), torch.zeros(16, 1))
    workload = live_workload(Picky(), pair, nn.functional.mse_loss, None, LiveLoop(), tmp_path / "m.model")
    graph = capture(workload).graph
    assert graph.serves(8) and graph.serves(16) and not graph.serves(2)


def test_arrays_are_refused_as_what_they_are(tmp_path: Path) -> None:
    pair = (np.zeros((4, 2)), np.zeros((4, 1)))
    with pytest.raises(BadInput, match=r"holds numpy\.ndarray and no tensor"):
        live_workload(net(), pair, nn.functional.mse_loss, None, LiveLoop(), tmp_path / "m.model")


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return 3 * found if x.shape[0] == 1 and not self.training else found


def test_a_batch_of_one_is_evaluated_as_the_module_itself_does(tmp_path: Path) -> None:
    module = Branching()
    pair = (torch.randn(4, 2), torch.randn(4, 1))
    workload = live_workload(
        module,
        pair,
        nn.functional.mse_loss,
        None,
        LiveLoop(),
        tmp_path / "m.model",
        valid=TensorDataset(*pair),
    )
    plan = plan_for(capture(workload).graph, workload.name, workers=1, micros=1)
    with Run.open(plan, tmp_path / "run", workload=workload) as run:
        three = TensorDataset(pair[0][:3], pair[1][:3])
        with torch.no_grad():  # a micro-batch of two, and one of one
            parts = [
                nn.functional.mse_loss(module.eval()(pair[0][a:b]), pair[1][a:b]) for a, b in ((0, 2), (2, 3))
            ]
        assert run.evaluate(three)["loss"] == pytest.approx(float(2 * parts[0] + parts[1]) / 3, rel=1e-6)


def test_a_loader_gives_its_own_order_and_a_sampler_of_its_own_is_asked_under_the_seed(
    tmp_path: Path,
) -> None:
    plain, shuffled = DataLoader(Noisy()), DataLoader(Noisy(), shuffle=True)
    weighted = DataLoader(Noisy(), sampler=WeightedRandomSampler(torch.arange(1.0, 13.0).tolist(), 12))
    assert Loaded(plain).ordered and not Loaded(shuffled).ordered and Loaded(weighted).ordered
    assert Loaded(plain).order(0, 3) == list(range(12))
    first, again, other = (Loaded(weighted).order(*x) for x in ((1, 0), (1, 0), (1, 1)))
    assert first == again != other
    workload = live_workload(net(), None, nn.functional.mse_loss, weighted, LiveLoop(), tmp_path / "m.model")
    sampler = workload.sampler(workload.dataset())
    assert sampler is not None and sampler(1, 0) == first
