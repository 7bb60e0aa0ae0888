"""A Strategy of Lightning on two ranks: losses, weights and what is logged are those of Lightning alone."""

from __future__ import annotations

import importlib
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import shardwright as sw

CLUSTER = Path(__file__).parents[3] / "plans" / "clusters" / "laptop.yaml"
PINNED: dict[str, Any] = {"fix": {"pipeline": 2, "data": 1, "micro": 4}, "schedule": ["1f1b"]}
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own


@pytest.fixture(scope="module")
def nets() -> Any:
    pytest.importorskip("lightning.pytorch")
    return importlib.import_module("tests.runtime.bridges.lightning_nets")


def samples() -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(80, 8), torch.randint(3, (80,)))


def fitted(nets: Any, strategy: Any, folder: Path, net: Any = None, **more: Any) -> tuple[Any, Any, Any]:
    net, seen, data = net or nets.Net(), nets.Seen(), samples()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = nets.pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        default_root_dir=folder,
        **{"max_epochs": 1, "callbacks": [seen], **quiet, **more},
    )
    trainer.fit(net, DataLoader(data, batch_size=8), DataLoader(data, batch_size=8))
    return net, seen, trainer


def test_ten_steps_on_two_ranks_are_those_of_lightning_alone(nets: Any, tmp_path: Path) -> None:
    alone, told, by_itself = fitted(nets, "auto", tmp_path / "a", gradient_clip_val=0.5)
    strategy = sw.PlanStrategy(cluster=CLUSTER, folder=tmp_path / "run", **PINNED)
    with pytest.warns(UserWarning, match="logs accuracy, which stays on the ranks"):
        net, seen, trainer = fitted(nets, strategy, tmp_path / "b", gradient_clip_val=0.5)
    assert strategy.prepared is not None and len(strategy.prepared.plan.places) == 2
    assert len(seen.losses) == 10 and seen.losses == pytest.approx(told.losses, rel=1e-6)
    assert seen.logged == seen.losses
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name])
    evaluated = float(trainer.callback_metrics["valid_loss"])
    assert evaluated == pytest.approx(float(by_itself.callback_metrics["valid_loss"]), rel=1e-6)


def test_a_module_trains_on_a_dataset_that_every_machine_makes_for_itself(
    nets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", here)  # of ranks, which import the dataset by its name
    name = f"{__name__}:samples"
    mine = sw.Workload(
        nets.Net(), loader=DataLoader(samples(), batch_size=8), dataset=name, folder=tmp_path / "net.model"
    )
    costs = sw.profile(mine, device="roofline:A100-80GB", micro=(4,), precision="fp32")
    how: dict[str, Any] = {"schedule": ["1f1b"], "effort": "quick", "fix": {"data": 1, "pipeline": 2}}
    plan = sw.plan(costs, CLUSTER, batch=8, **how)
    run = sw.launch(plan, tmp_path / "run", steps=3, on="local").wait().check()
    assert len(run.losses) == 3 and all(map(isfinite, run.losses.values()))


def test_a_module_with_its_loader_is_a_workload_for_machines_that_are_not_here(
    nets: Any, tmp_path: Path
) -> None:
    net, loader = nets.Net(), DataLoader(samples(), batch_size=8)
    mine = sw.Workload(net, loader=loader, folder=tmp_path / "net.model")
    assert net._trainer is None and "log" not in vars(net), "the module is left as it was"
    costs = sw.profile(mine, device="roofline:A100-80GB", micro=(4,), precision="fp32")
    plan = sw.plan(costs, "a100x8", nodes=16, batch=512, schedule=["1f1b"], effort="quick")
    assert sw.verify(plan, costs=costs, cluster="a100x8", nodes=16) == []
    how: dict[str, Any] = {"schedule": ["1f1b"], "effort": "quick", "fix": {"data": 1, "pipeline": 2}}
    run = sw.launch(sw.plan(costs, CLUSTER, batch=8, **how), tmp_path / "run", steps=10, on="local")
    _, seen, _ = fitted(nets, "auto", tmp_path / "a")
    assert list(run.wait().check().losses.values()) == pytest.approx(seen.losses, rel=1e-6)


def test_a_schedule_that_a_module_configures_is_asked_for_by_name(nets: Any, tmp_path: Path) -> None:
    loader = DataLoader(samples(), batch_size=8)
    with pytest.raises(sw.BadInput, match=r"more than an optimizer.*lr_schedule=functools\.partial"):
        sw.Workload(nets.Scheduled(), loader=loader, folder=tmp_path / "m")
    net, decay = nets.Scheduled(), partial(torch.optim.lr_scheduler.StepLR, step_size=2)
    made = torch.optim.AdamW(net.parameters(), lr=1e-2)
    mine = sw.Workload(net, loader=loader, optimizer=made, lr_schedule=decay, folder=tmp_path / "m")
    run = sw.launch(
        sw.plan(sw.profile(mine, micro=4), CLUSTER, batch=8, effort="quick"), tmp_path / "run", steps=4
    )
    run.wait().check()
    assert [row["learning_rate"] for row in run.metrics()] == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3])


@pytest.mark.parametrize(
    ("net", "more", "said"),
    [
        ("Net", {"accumulate_grad_batches": 2}, "accumulate_grad_batches is not the plan's to do"),
        ("Net", {"precision": "bf16-mixed"}, "precision bf16-mixed is not"),
        ("Net", {"limit_train_batches": 3}, "limit_train_batches is not"),
        ("Clipped", {}, "the module's on_after_backward is not"),
        ("Counting", {}, "asks the Trainer for global_step"),
    ],
)
def test_what_ranks_do_not_do_is_refused_by_name(
    net: str, more: dict[str, Any], said: str, nets: Any, tmp_path: Path
) -> None:
    strategy = sw.PlanStrategy(cluster=CLUSTER, folder=tmp_path / "run", **PINNED)
    with pytest.raises(sw.BadInput, match=said):
        fitted(nets, strategy, tmp_path, net=getattr(nets, net)(), num_sanity_val_steps=0, **more)
