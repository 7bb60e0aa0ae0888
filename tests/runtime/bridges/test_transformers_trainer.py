"""A Trainer of transformers on two ranks: losses, learning rates, norms and weights are those of the plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import shardwright as sw

CLUSTER = Path(__file__).parents[3] / "plans" / "clusters" / "laptop.yaml"
PINNED: dict[str, Any] = {"fix": {"pipeline": 2, "data": 1, "micro": 2}, "schedule": ["1f1b"]}
TOLD = ("loss", "learning_rate", "grad_norm")


@pytest.fixture(scope="module")
def hub() -> Any:
    """The library, which takes seconds to import."""
    pytest.importorskip("accelerate")  # without it, transformers has no Trainer
    return pytest.importorskip("transformers")


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Sequences, some of whose last labels do not count."""

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.rows = torch.randint(64, (40, 16), generator=drawn)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.rows[index].clone()
        labels[16 - index % 5 :] = -100
        return {"input_ids": self.rows[index], "labels": labels}


def model(hub: Any) -> Any:
    torch.manual_seed(0)
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    small = hub.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, **quiet)
    return hub.GPT2LMHeadModel(small)


def settings(hub: Any, folder: Path, **more: Any) -> Any:
    return hub.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        train_sampling_strategy="sequential",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        **{"max_steps": 10, "gradient_accumulation_steps": 2, "save_strategy": "no", **more},
    )


def test_ten_steps_on_two_ranks_are_those_of_the_plain_trainer(hub: Any, tmp_path: Path) -> None:
    how = {"learning_rate": 1e-2, "warmup_steps": 3, "weight_decay": 0.1}
    plain = hub.Trainer(model(hub), settings(hub, tmp_path / "a", **how), train_dataset=Texts())
    plain.train()
    steps: list[int] = []

    class Seen(hub.TrainerCallback):  # type: ignore[misc]
        """What a callback is told of."""

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            steps.append(state.global_step)

    ours = sw.PlanTrainer(
        model(hub),
        settings(hub, tmp_path / "b", **how),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        callbacks=[Seen()],
        cluster=CLUSTER,
        folder=tmp_path / "run",
        **PINNED,
    )
    ours.train()
    assert steps == list(range(1, 11))
    assert ours.prepared is not None and len(ours.prepared.plan.places) == 2
    for one, two in zip(plain.state.log_history[:10], ours.state.log_history[:10], strict=True):
        assert [two[name] for name in TOLD] == pytest.approx([one[name] for name in TOLD], rel=1e-5)
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, plain.model.state_dict()[name], rtol=1e-4, atol=2e-5)
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate(Texts())["eval_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is not the plan's to do"),
        ({"save_strategy": "steps", "save_steps": 2}, "until the last step, and save_strategy is 'steps'"),
        ({"eval_strategy": "epoch"}, "until the last step, and eval_strategy is 'epoch'"),
        ({"per_device_train_batch_size": 3}, "an epoch of 40 samples ends with a smaller step than 6"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, "lr_scheduler_type is not"),
    ],
)
def test_what_ranks_do_not_do_is_refused_by_name(
    more: dict[str, Any], said: str, hub: Any, tmp_path: Path
) -> None:
    asked = settings(hub, tmp_path, **{key: x for key, x in more.items() if not key.startswith("per_")})
    for key in (key for key in more if key.startswith("per_")):
        setattr(asked, key, more[key])
    ours = sw.PlanTrainer(
        model(hub), asked, train_dataset=Texts(), eval_dataset=Texts(), cluster=CLUSTER, **PINNED
    )
    with pytest.raises(sw.BadInput, match=said):
        ours.train()
