"""Runs the search of PKU-DAIR/Hetu-Galvatron, and prices plans by its cost model: `python galvatron_search.py REQUEST`.

It runs in a process of its own, with what that program imports (hydra-core, omegaconf, scipy, pybind11, transformers).
REQUEST is a JSON file with the checkout, an empty folder to work in, overrides of its configuration, whether to
search, strategies to price, and the path of the answer.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any


def main(request: Path) -> None:
    asked = json.loads(request.read_text())
    work = Path(asked["work"])
    _install(Path(asked["checkout"]), work)
    sys.path.insert(0, str(work))
    model = work / "galvatron" / "models" / "gpt"
    os.chdir(model)
    engine = _engine(model, [*asked["overrides"], f"search_engine.options_info.log_dir={work / 'logs'}"])
    answer: dict[str, Any] = {"priced": [_priced(engine, **x) for x in asked["strategies"]]}
    if asked["search"]:
        answer |= _searched(engine)
    Path(asked["answer"]).write_text(json.dumps(answer))


def _install(checkout: Path, work: Path) -> None:
    """Copies the program and builds its core, so that the checkout stays as it is.

    Its package `runtime` imports kernels that need a GPU; the search uses none of it.
    """
    import pybind11

    shutil.copytree(checkout / "galvatron", work / "galvatron", ignore=shutil.ignore_patterns("site_package"))
    (work / "galvatron" / "core" / "runtime" / "__init__.py").write_text("")
    core = work / f"galvatron_dp_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [pybind11.get_include(), sysconfig.get_paths()["include"]]
    options = ["-O3", "-shared", "-std=c++17", "-fPIC", *(f"-I{folder}" for folder in folders)]
    subprocess.run(
        ["g++", *options, str(checkout / "csrc" / "dp_core.cpp"), "-o", str(core)], check=True
    )  # its own options but for the standard, which is today's pybind11's


def _engine(model: Path, overrides: list[str]) -> Any:
    from galvatron.core.arguments import load_with_hydra
    from galvatron.core.search_engine.search_engine import GalvatronSearchEngine
    from galvatron.utils.hf_config_adapter import model_layer_configs, model_name, resolve_model_config

    args = load_with_hydra("scripts/search_dist.yaml", overrides=overrides, mode="search")
    resolve_model_config(args)
    engine = GalvatronSearchEngine(args)
    engine.set_search_engine_info(
        path=str(model), model_layer_configs=model_layer_configs(args), model_name=model_name(args)
    )
    engine.initialize_search_engine(show_all_strategy_list=False)
    return engine


def _searched(engine: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    write = engine.save_results

    def keep(optimal: dict[str, Any], batch: int, chunks: int) -> None:
        write(optimal, batch, chunks)
        kept.update(step_s=float(optimal["time_cost"]), memory_mib=[int(x) for x in optimal["memory_cost"]])

    engine.save_results = keep
    wall, before = time.perf_counter(), _processor_s()
    engine.parallelism_optimization()
    kept |= {"wall_s": time.perf_counter() - wall, "processor_s": _processor_s() - before}
    newest = max(Path("configs").glob("galvatron_config_*.json"), key=lambda path: path.stat().st_mtime)
    return kept | {"config": json.loads(newest.read_text())}


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _priced(
    engine: Any,
    pipeline: int,
    data: int,
    chunks: int,
    sharing: str,
    layers: list[int],
    recomputed: list[int],
    tensor: int,
    embedding_tensor: int,
) -> dict[str, Any]:
    """Returns the seconds of a step and the mebibytes of each stage by their formulas."""
    from galvatron.core.cost_model.cost_model_handler import pipeline_costmodel
    from galvatron.utils.strategy_utils import DPType, EmbeddingLMHeadStrategy, LayerStrategy

    kind = {"ddp": DPType.DDP, "zero2": DPType.ZERO2, "zero3": DPType.ZERO3}[sharing if data > 1 else "ddp"]
    known = {"pp_size": pipeline, "dp_size": data, "dp_type": kind, "tp_size": tensor}
    ways = [
        [LayerStrategy(**known, checkpoint=i < again) for i in range(count)]
        for count, again in zip(layers, recomputed, strict=True)
    ]
    parts = data * tensor // embedding_tensor
    ends = EmbeddingLMHeadStrategy(
        pp_size=pipeline, tp_size=embedding_tensor, dp_size=parts, dp_type=kind if parts > 1 else DPType.DDP
    )
    lists = ("model_args", "train_args", "parallel_args", "profile_model_args", "profile_hardware_args")
    tables = {f"{name}_list": getattr(engine, f"{name}_list") for name in lists}
    step_s = pipeline_costmodel(
        engine.layernum_list,
        **tables,
        strategy_list=[way for stage in ways for way in stage],
        partition=layers,
        chunks=chunks,
        gbsz=engine.args.batch_size_info.min_bsz,
        pp_size=pipeline,
        other_time_cost=_ends_s(engine, ends, chunks),
    )
    return {"step_s": float(step_s), "memory_mib": _memory_mib(engine, ways, ends, chunks)}


def _ends_s(engine: Any, ends: Any, chunks: int) -> list[float]:
    from galvatron.core.cost_model.components.embedding_lmhead_cost import EmbeddingLMHeadTimeCostModel

    names = ("model_args", "train_args", "parallel_args", "profile_model_args", "profile_hardware_args")
    model = EmbeddingLMHeadTimeCostModel(
        strategy=ends,
        global_batch_size=engine.args.batch_size_info.min_bsz,
        chunks=chunks,
        sequence_length_list=engine.seqlen_list,
        **{name: getattr(engine, f"{name}_list")[0] for name in names},
    )
    return model.gen_result()[1]  # type: ignore[no-any-return]


def _memory_mib(engine: Any, ways: list[list[Any]], ends: Any, chunks: int) -> list[float]:
    from galvatron.core.cost_model.components.embedding_lmhead_cost import EmbeddingLMHeadMemoryCostModel
    from galvatron.core.cost_model.components.layer_cost import MemoryCostModelBase

    names = ("model_args", "train_args", "parallel_args", "profile_model_args")
    known = {name: getattr(engine, f"{name}_list")[0] for name in names}
    known |= {"global_batch_size": engine.args.batch_size_info.min_bsz, "chunks": chunks}
    found = EmbeddingLMHeadMemoryCostModel(strategy=ends, **known).get_memory_cost()["enc_total"]
    return [
        float(
            own
            + sum(
                MemoryCostModelBase(strategy=way, stage_idx=i, **known).get_memory_cost()["enc_total"]
                for way in stage
            )
        )
        for i, (own, stage) in enumerate(zip(found, ways, strict=True))
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
