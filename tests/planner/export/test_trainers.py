"""What is written is what trainers read: their own parsers and configurations, where they are installed.

Each library is imported in a process of its own, since some warn, and change settings of torch, when they are.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor

from planner.export import export, fsdp2
from planner.export.constants import constants_of
from planner.export.settings import Settings
from planner.export.words import flags_of, words_of
from planner.plan import Plan, shard_of
from planner.schedule import generate
from tests.planner.export.examples import EXAMPLES, planned


def stated(to: str) -> dict[str, Plan]:
    """Returns the examples that a trainer can state."""
    return {name: planned(name) for name in EXAMPLES if to in EXAMPLES[name].by}


def asked_of(library: str, program: str, to: str) -> Mapping[str, dict[str, object]]:
    """Returns what a library makes of every example that is exported to it.

    Args: `program` reads {name: text} from `texts` and fills `found`.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}: the extras `test` and `bench` have it")
    texts = {name: export(plan, to) for name, plan in stated(to).items()}
    whole = f"import json, sys\ntexts, found = json.load(sys.stdin), {{}}\n{program}\nprint('\\n' + json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", whole],
        input=json.dumps(texts),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: Mapping[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    assert made.keys() == texts.keys()
    return made


TORCHTITAN = """
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
for name, text in texts.items():
    file = {}
    exec(text, file)
    parts = ParallelismConfig(**file["PARALLELISM"]), TrainingConfig(**file["TRAINING"]), CompileConfig(**file["COMPILE"])
    class Whole:
        parallelism, training, compile = parts
        activation_checkpoint = "selective"
    whole = file["apply"](Whole) if file["ACTIVATION_CHECKPOINT"] == "none" else Whole
    found[name] = {
        "data": whole.parallelism.data_parallel_replicate_degree * whole.parallelism.data_parallel_shard_degree,
        "pipeline": whole.parallelism.pipeline_parallel_degree,
        "stages": len(whole.parallelism.module_fqns_per_model_part or [0]),
        "schedule": whole.parallelism.pipeline_parallel_schedule,
        "local": whole.training.local_batch_size,
        "batch": whole.training.global_batch_size,
        "again": file["ACTIVATION_CHECKPOINT"] == "full",
    }
"""


@pytest.mark.usefixtures("warm_starts")
def test_torchtitan_takes_every_setting() -> None:
    for name, seen in asked_of("torchtitan", TORCHTITAN, "torchtitan").items():
        plan = planned(name)
        assert (seen["data"], seen["pipeline"]) == (plan.axes.data, plan.axes.pipeline)
        assert seen["stages"] == len(plan.stages)
        assert schedules.get_schedule_class(str(seen["schedule"]))
        own = plan.batch.micros if plan.axes.pipeline > 1 else 1
        assert (seen["local"], seen["batch"]) == (plan.batch.micro * own, plan.batch.samples)
        assert seen["again"] == all(stage.recompute for stage in plan.stages)


DEEPSPEED = """
import os, tempfile
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
from deepspeed.runtime import config as configs
from deepspeed.runtime.pipe.module import ds_utils
for name, text in texts.items():
    data = json.loads(text)
    world = data["train_batch_size"] // data["train_micro_batch_size_per_gpu"] // data["gradient_accumulation_steps"]
    configs.dist.get_world_size = lambda *_, world=world: world
    configs.dist.is_initialized = lambda: True
    configs.dist.get_rank = lambda *_: 0
    made = configs.DeepSpeedConfig(data)
    layers = 9
    found[name] = {
        "data": world,
        "micro": made.train_micro_batch_size_per_gpu,
        "micros": made.gradient_accumulation_steps,
        "batch": made.train_batch_size,
        "zero": int(made.zero_optimization_stage),
        "pipeline": made.pipeline["stages"],
        "cuts": list(ds_utils.partition_uniform(layers, made.pipeline["stages"])) if data.get("pipeline") else [],
    }
"""


@pytest.mark.usefixtures("warm_starts")
def test_deepspeed_takes_every_setting_and_cuts_where_the_plan_does() -> None:
    for name, seen in asked_of("deepspeed", DEEPSPEED, "deepspeed").items():
        plan = planned(name)
        assert (seen["data"], seen["batch"]) == (plan.axes.data, plan.batch.samples)
        assert (seen["micro"], seen["micros"]) == (plan.batch.micro, plan.batch.micros)
        if plan.axes.pipeline > 1:
            assert seen["pipeline"] == plan.axes.pipeline
            assert seen["cuts"] == [0, 3, 6, 9]
            starts = [stage.layers[0] for stage in plan.stages]
            assert starts == ["embed", "blocks.2.norm", "blocks.5.norm"]
        shard = shard_of(plan, 0)
        what = "" if shard is None else shard.what
        assert seen["zero"] == ["", "state", "gradients", "parameters"].index(what)


MEGATRON = """
import argparse, dataclasses, shlex, warnings
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
from megatron.core.transformer import TransformerConfig
TRAIN = {"micro_batch_size", "global_batch_size", "use_tp_pp_dp_mapping"}
for name, text in texts.items():
    words = shlex.split(text.replace("\\\\\\n", " "), comments=True)
    own = words[words.index("pretrain_gpt.py") + 1 :]
    flags = {}
    while own:
        key = own.pop(0).removeprefix("--").replace("-", "_")
        flags[key] = own.pop(0) if own and not own[0].startswith("--") else True
    flags = {key: int(value) if str(value).isdecimal() and value is not True else value for key, value in flags.items()}
    ddp = {field.name for field in dataclasses.fields(DistributedDataParallelConfig)}
    model = {field.name for field in dataclasses.fields(TransformerConfig)}
    assert set(flags) <= ddp | model | TRAIN, set(flags) - ddp - model - TRAIN
    made = TransformerConfig(num_layers=6, hidden_size=8, num_attention_heads=2, params_dtype=__import__("torch").bfloat16 if flags.get("bf16") else __import__("torch").float32, pipeline_dtype=__import__("torch").float32,
        **{key: value for key, value in flags.items() if key in model})
    DistributedDataParallelConfig(**{key: value for key, value in flags.items() if key in ddp})
    nodes, each = (int(word.partition("=")[2]) for word in words[1:3])
    data = nodes * each // made.pipeline_model_parallel_size
    micros = ConstantNumMicroBatchesCalculator(
        flags["global_batch_size"], flags["micro_batch_size"], data, False, 0
    ).get()
    layout = made.pipeline_model_parallel_layout
    found[name] = {
        "data": data,
        "pipeline": made.pipeline_model_parallel_size,
        "chunks": made.virtual_pipeline_model_parallel_size or 1,
        "micros": micros,
        "again": made.recompute_granularity == "full",
        "blocks": [
            sum(layer.name == "decoder" for layer in layout.layout[worker][chunk])
            for chunk in range(made.virtual_pipeline_model_parallel_size or 1)
            for worker in range(made.pipeline_model_parallel_size)
        ] if layout else [],
    }
"""


@pytest.mark.usefixtures("warm_starts")
def test_megatron_takes_every_setting() -> None:
    for name, seen in asked_of("megatron", MEGATRON, "megatron").items():
        plan = planned(name)
        assert (seen["data"], seen["pipeline"]) == (plan.axes.data, plan.axes.pipeline)
        assert (seen["micros"], seen["chunks"]) == (plan.batch.micros, plan.schedule.chunks)
        assert seen["again"] == all(stage.recompute for stage in plan.stages)
        if plan.axes.pipeline > 1:
            blocks = [sum(name.endswith(".up") for name in stage.layers) for stage in plan.stages]
            assert seen["blocks"] == blocks


ACCELERATE = """
import shlex
from accelerate.commands.launch import launch_command_parser
for name, text in texts.items():
    words = shlex.split(text.replace("\\\\\\n", " "), comments=True)
    assert words[:2] == ["accelerate", "launch"]
    made = launch_command_parser().parse_args(words[2:])
    found[name] = {
        "data": made.num_processes,
        "nodes": made.num_machines,
        "shared": made.use_fsdp,
        "kept": made.fsdp_reshard_after_forward,
        "version": made.fsdp_version,
        "ranks": made.parallelism_config_dp_shard_size,
        "precision": made.mixed_precision,
        "script": [made.training_script, *made.training_script_args],
    }
"""


@pytest.mark.usefixtures("warm_starts")
def test_accelerate_takes_every_setting() -> None:
    for name, seen in asked_of("accelerate", ACCELERATE, "accelerate").items():
        plan = planned(name)
        shard = plan.stages[0].shard
        assert seen["data"] == plan.axes.data
        assert seen["precision"] == {"fp32": "no", "bf16": "bf16"}[plan.precision]
        assert seen["shared"] == (shard is not None)
        if shard is not None:
            assert (seen["version"], seen["kept"]) == ("2", str(shard.what == "parameters").lower())
            assert seen["ranks"] == (shard.ranks or 1)
        script = seen["script"]
        assert isinstance(script, list)
        assert arguments_of(script) == (plan.batch.micro, plan.batch.micros)


def arguments_of(script: list[str]) -> tuple[int, int]:
    """Returns the micro-batch and the number of micro-batches, as transformers reads them."""
    transformers = pytest.importorskip("transformers")
    assert script[0] == "train.py"
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    made = parser.parse_args(script[1:])
    return made.per_device_train_batch_size, made.gradient_accumulation_steps


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "torchrun" in EXAMPLES[name].by])
def test_torchrun_and_transformers_take_every_setting(name: str) -> None:
    from torch.distributed.run import get_args_parser

    plan = planned(name)
    words = words_of(export(plan, "torchrun"), "text")
    made = get_args_parser().parse_args(words[1:])
    assert int(made.nnodes) * int(made.nproc_per_node) == plan.axes.data
    script = [made.training_script, *made.training_script_args]
    assert arguments_of(script) == (plan.batch.micro, plan.batch.micros)


@contextmanager
def ranks(count: int) -> Iterator[None]:
    """One rank of a world in which nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.up(self.norm(x)))
        return found


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = (
            torch.nn.Linear(8, 8),
            torch.nn.LayerNorm(8),
            torch.nn.Linear(8, 8),
        )
        self.blocks = torch.nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (self.embed, *self.blocks, self.norm, self.head):
            x = block(x)
        return x


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "fsdp2" in EXAMPLES[name].by])
def test_fully_shard_does_what_the_file_says(name: str) -> None:
    plan, file = planned(name), dict[str, object]()
    exec(export(plan, "fsdp2"), file)
    with ranks(plan.axes.data):
        model = file["shard"](Blocks(), "cpu")  # type: ignore[operator]
        weight = model.blocks[0].up.weight
        assert isinstance(weight, DTensor)
        shard = plan.stages[0].shard
        own = 1 if shard is None else shard.ranks or plan.axes.data
        assert tuple(weight.device_mesh.shape) == (plan.axes.data // own, own)
        assert isinstance(model.blocks[0], FSDPModule)
        model(torch.zeros(2, 8)).sum().backward()
        assert weight.grad is not None


class Tied(torch.nn.Module):
    """As models of transformers are: blocks in a part of its own, and a head that has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = Blocks(), torch.nn.Linear(8, 8)
        self.head.weight = self.model.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.model(x))
        return found


@pytest.mark.parametrize("recompute", [False, True])
def test_fully_shard_takes_parts_around_blocks_and_tied_weights_with_the_whole_model(recompute: bool) -> None:
    blocks = [f"model.blocks.{block}.{part}" for block in range(6) for part in ("norm", "up", "down")]
    layers = ("model.embed", *blocks, "model.norm", "model.head", "head", "loss")
    settings = Settings(batch=4, micro=2, data=2, share="parameters", recompute=recompute, stages=(layers,))
    text = fsdp2.write(settings, "a plan")
    units = constants_of(text, "text")["UNITS"]
    assert units == [*(f"model.blocks.{block}" for block in range(6)), "head"]
    file = dict[str, object]()
    exec(text, file)
    with ranks(2):
        model = file["shard"](Tied(), "cpu")  # type: ignore[operator]
        assert [isinstance(model.get_submodule(name), FSDPModule) for name in ("model", "head")] == [
            False
        ] * 2
        assert isinstance(model.model.blocks[5].up.weight, DTensor)
        assert isinstance(model.head.weight, DTensor) and model.head.weight is model.model.embed.weight
        model(torch.zeros(2, 8)).sum().backward()
        assert all(x.grad is not None for x in model.parameters())


def test_files_of_python_are_the_constants_that_are_read() -> None:
    for to in ("torchtitan", "fsdp2"):
        for plan in stated(to).values():
            text, ran = export(plan, to), dict[str, object]()
            exec(text, ran)
            for name, value in constants_of(text, "text").items():
                assert ran[name] == value


def test_commands_have_every_flag_once() -> None:
    for to in ("megatron", "accelerate", "torchrun"):
        for plan in stated(to).values():
            words = words_of(export(plan, to), "text")
            flags = [word.partition("=")[0] for word in words if word.startswith("--")]
            assert len(flags) == len(set(flags))
            assert set(flags_of(words)) == {flag.removeprefix("--").replace("-", "_") for flag in flags}


@pytest.mark.parametrize(
    ("family", "theirs"), [("interleaved", "Interleaved1F1B"), ("interleaved-zb", "InterleavedZeroBubble")]
)
@pytest.mark.parametrize(("workers", "micros"), [(2, 4), (2, 8), (4, 8), (4, 16), (3, 9)])
def test_orders_are_those_of_the_schedules_that_torchtitan_names(
    family: str, theirs: str, workers: int, micros: int
) -> None:
    ours = generate(family, workers=workers, micros=micros, chunks=2)
    kind = schedules.get_schedule_class(theirs)
    for worker, order in enumerate(ours.orders):
        parts = [_Part(worker, workers, 2 * workers, worker + chunk * workers) for chunk in range(2)]
        made = kind(parts, micros, loss_fn=None)  # type: ignore[call-arg, arg-type]
        seen = [str(action) for action in made.pipeline_order[worker] if action is not None]  # type: ignore[attr-defined]
        assert seen == [f"{a.stage}{a.kind.name}{a.micro}" for a in order if a.kind.name in "FBIW"]


class _Part:
    """As much of a stage as torch's schedules ask for."""

    has_backward = backward_requires_autograd = True

    def __init__(self, rank: int, size: int, stages: int, index: int) -> None:
        self.group_rank, self.group_size, self.num_stages, self.stage_index = rank, size, stages, index
        self.is_first, self.is_last, self.submod = index == 0, index == stages - 1, torch.nn.Identity()
