"""Configurations as people have them: each form is read, what means nothing is named, and nothing is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.export import Settings, comparison, completed, read_settings
from planner.export.cuts import even_stages
from tests.planner.export.examples import NAMES


def filled(text: str, *, batch: int = 16, devices: int = 4) -> Settings:
    told = read_settings(text, "mine")
    return completed(told, batch=batch, devices=devices, layers=NAMES, where="mine").settings


MEGATRON = """#!/bin/bash
# eight GPUs
GPUS=8
torchrun --nproc-per-node 4 pretrain_gpt.py \\
    --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 \\
    --micro-batch-size 2 --global-batch-size 16 --bf16 --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""


def test_flags_of_megatron_are_read_from_a_script() -> None:
    found = filled(MEGATRON)
    assert (found.data, found.pipeline, found.chunks, found.family) == (2, 2, 2, "interleaved")
    assert (found.micro, found.accumulation, found.batch) == (2, 4, 16)
    assert (found.share, found.recompute, found.precision) == ("state", True, "bf16")


@pytest.mark.parametrize("layout", ["Etttt|ttL", "E,t*4|tt,L", "Et*4|(t)*2L", "E t*4|ttL".replace(" ", "")])
def test_a_layout_of_megatron_says_the_cut(layout: str) -> None:
    text = (
        f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{layout}' --micro-batch-size 2"
    )
    told = read_settings(text, "mine")
    whole = completed(told, batch=16, devices=2, layers=NAMES, where="mine") if told.batch else None
    assert told.blocks == (4, 2)
    assert whole is None or whole.settings.blocks == (4, 2)


def test_torchtitan_is_read_from_flags_and_from_toml() -> None:
    flags = (
        "torchrun -m torchtitan.train --training.local-batch-size 8 --training.global_batch_size=16 "
        "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_microbatch_size 2 "
        "--parallelism.pipeline_parallel_schedule GPipe --training.mixed_precision_param float32 "
        "activation-checkpoint:full"
    )
    toml = """# job
[training]
local_batch_size = 8
global_batch_size = 16
mixed_precision_param = "float32"
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 2
pipeline_parallel_schedule = "GPipe"
[activation_checkpoint]
mode = "full"
"""
    assert filled(flags) == filled(toml)
    found = filled(flags)
    assert (found.family, found.micro, found.data, found.accumulation) == ("gpipe", 2, 2, 4)
    assert (found.share, found.recompute) == ("gradients", True)


def test_a_pipeline_that_drains_within_a_step_is_told() -> None:
    text = (
        "--training.local_batch_size 4 --training.global_batch_size 16 --parallelism.pipeline_parallel_degree 2 "
        "--parallelism.data_parallel_shard_degree 2 activation-checkpoint:none"
    )
    assert filled(text).notes == (
        "it names no modules: stages of equally many blocks",
        "the pipeline drains every 4 micro-batches: priced as once a step",
    )


def test_deepspeed_leaves_the_replicas_to_its_batches() -> None:
    data = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    found = filled(
        json.dumps({**data, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    )
    assert (found.data, found.micro, found.share) == (2, 2, "parameters")
    assert found.notes == ("offloading: priced as none",)


def test_what_a_configuration_leaves_open_is_filled_by_what_is_asked() -> None:
    found = filled('{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}')
    assert (found.batch, found.data, found.micro, found.accumulation) == (16, 4, 4, 1)


def test_the_yaml_of_accelerate_says_nothing_of_batches() -> None:
    text = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
mixed_precision: bf16
num_machines: 1
num_processes: 2
"""
    found = filled(text)
    assert (found.data, found.micro, found.share, found.precision) == (2, 8, "gradients", "bf16")


def test_a_command_of_torchrun_says_its_replicas() -> None:
    found = filled(
        "torchrun --nnodes=2 --nproc_per_node=2 train.py --per_device_train_batch_size 4 --fsdp full_shard"
    )
    assert (found.data, found.micro, found.share) == (4, 4, "parameters")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "--tensor-model-parallel-size 4 --micro-batch-size 1",
            "tensor_model_parallel_size is 4: tensor par",
        ),
        ("--parallelism.context_parallel_degree 2", "context_parallel_degree is 2"),
        ("--micro-batch-size many", "micro_batch_size is 'many'.*whole number"),
        (
            "--micro-batch-size 1 --global-batch-size 32",
            "trains 32 samples a step, 16 are asked for.*--batch 32",
        ),
        ("--micro-batch-size 3 --global-batch-size 16", "micro-batches of 3 do not make 16"),
        ("--micro-batch-size 1 --pipeline-model-parallel-size 8", "needs 8 devices.*at most the 4"),
        (
            "--micro-batch-size 4 --global-batch-size 16 --pipeline-model-parallel-size 2 "
            "--pipeline-model-parallel-layout Et|tL",
            "has 2 transformer layers.*the 6 blocks",
        ),
        (
            "--micro-batch-size 4 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Etm|tL",
            "layout is 'Etm|tL'",
        ),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule Wave",
            "is 'Wave'.*1f1b",
        ),
        ('{"zero_optimization": {"stage": 7}}', "stage is 7"),
        ('{"train_batch_size": 16', "is no JSON"),
        ("[1, 2]", "is no configuration that is known"),
        ("echo 'hello", "is no list of flags"),
        ("", "is no configuration that is known"),
        ("distributed_type: MEGATRON_LM\n", "leaves the split to DeepSpeed or Megatron"),
        ("DP_SHARD = 0\n", "DP_SHARD is 0.*1 to"),
        ("DP_SHARD = 2\nACCUMULATION_STEPS = 10**30\n", "ACCUMULATION_STEPS is computed.*a constant"),
        (
            "DP_SHARD = 2\nGLOBAL_BATCH_SIZE = 16\nACCUMULATION_STEPS = 10000\n",
            "10000 micro-batches of 1 on 2",
        ),
        ("DP_SHARD = 2\nMICRO_BATCH_SIZE = 0\n", "MICRO_BATCH_SIZE is 0"),
        ("PARALLELISM = dict(a=1)\nPARALLELISM = {}\n", "PARALLELISM is computed"),
        ("--micro-batch-size 0 --global-batch-size 16", "micro_batch_size is 0.*1 to"),
        ("--pipeline-model-parallel-size 0 --micro-batch-size 1", "parallel_size is 0"),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_microbatch_size 0",
            "is 0",
        ),
        ("--parallelism.pipeline_parallel_degree -2", "degree is -2"),
        ('{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 0}', "per_gpu is 0"),
        (
            '{"train_batch_size": 16, "gradient_accumulation_steps": 999999999}',
            "999999999 micro-batches of 1 .* do not make 16",
        ),
        ('{"train_batch_size": 16, "gradient_accumulation_steps": 1' + "0" * 30 + "}", "steps is '1000"),
        ('{"train_batch_size": 16, "gradient_accumulation_steps": 1e30}', "steps is '1e"),
        ("torchrun --nproc-per-node 4 x.py --gradient_accumulation_steps 0", "steps is 0"),
        ("torchrun --nproc-per-node 99999999999 x.py", "nproc_per_node is 99999999999"),
    ],
)
def test_what_means_nothing_is_named(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as error:
        filled(text)
    assert str(error.value).startswith("mine:")


def test_modules_that_the_model_has_not_are_named() -> None:
    modules = '[["embed", "blocks.0", "blocks.1", "blocks.2"], ["blocks.3", "blocks.4", "blocks.5", "norm"]]'
    text = (
        f'PARALLELISM = {{"pipeline_parallel_degree": 2, "module_fqns_per_model_part": {modules}}}\n'
        'TRAINING = {"local_batch_size": 4, "global_batch_size": 16}\n'
    )
    with pytest.raises(BadInput, match="'head' is in no stage"):
        filled(text)


def test_a_file_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    filled(f'open({str(mark)!r}, "w")\nDP_SHARD = 2\nMICRO_BATCH_SIZE = 4\nACCUMULATION_STEPS = 2\n')
    filled(f"$(touch {mark}) --micro-batch-size 4 `touch {mark}`")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("present_ns", "missing", "line"),
    [
        (31_000_000, 0, "Your present settings: 31 ms a step; this plan: 24.1 ms, 22.3 % less."),
        (24_100_000, 0, "Your present settings: 24.1 ms a step; this plan: 24.1 ms, the same."),
        (20_000_000, 0, "Your present settings: 20 ms a step; this plan: 24.1 ms, 20.5 % more."),
        (
            None,
            1 << 30,
            "Your present settings do not fit in memory, 1 GiB too many on a device; this plan: 24.1 ms a step.",
        ),
    ],
)
def test_a_comparison_is_one_sentence(present_ns: int | None, missing: int, line: str) -> None:
    assert (
        comparison(present_ns=present_ns, missing_bytes=missing, planned_ns=24_100_000, devices=(4, 4))
        == line
    )


def test_a_comparison_says_how_many_devices_each_uses() -> None:
    line = comparison(present_ns=2000, missing_bytes=0, planned_ns=1000, devices=(8, 4))
    assert line.endswith("50 % less on 4 devices in the place of 8.")


def test_what_stands_before_blocks_and_after_them_is_no_unit_in_common() -> None:
    """Layers of one parent that are no blocks, such as the embedding and the last norm of a language model."""
    blocks = [f"model.layers.{block}.{name}" for block in range(4) for name in ("attention", "mlp")]
    layers = ["model.embed", *blocks, "model.norm", "head", "loss"]
    stages = even_stages(layers, 2)
    assert [name for stage in stages for name in stage] == layers, "the model's order"
    assert [len(stage) for stage in stages] == [7, 5]
