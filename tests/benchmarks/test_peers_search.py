"""Layouts and plans go into a peer's words and back unchanged; peers that are not there are said, not guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers_search
from benchmarks.adapters import autoparallel, galvatron
from benchmarks.adapters.autoparallel import OurSearch, placement
from benchmarks.adapters.galvatron import GPUS, LAYERS, MIB, Strategy
from planner.group import on_cluster
from planner.layout import DimCut, GroupLayout
from planner.milp import Question, solve
from tests.planner.choose.transformer_layer import work_of_a_layer

LAYER = work_of_a_layer(65536, 128, element_bytes=4, flop_per_s=1e13)
MACHINES = autoparallel.cluster(1, 2)


def search() -> OurSearch:
    return OurSearch(LAYER, on_cluster((2,), MACHINES), fold=False)


def test_a_tensor_is_told_along_each_axis_as_cut_whole_or_an_addend() -> None:
    layout = GroupLayout((8, 4), (None, DimCut((0,), (0, 2, 4))), partial=frozenset({1}))
    owed = GroupLayout((8, 4), (None, None), owed=frozenset({0}))
    assert [placement(layout, axis) for axis in (0, 1)] == ["S1", "P"]
    assert [placement(owed, axis) for axis in (0, 1)] == ["R", "R"]


@pytest.mark.parametrize("share", [None, 0.5])
def test_our_layout_handed_over_and_back_is_granted_whole_and_costs_no_more(share: float | None) -> None:
    asked = search()
    total = peers_search.weights(LAYER)
    found = asked.best(None if share is None else share * total)
    back = asked.with_theirs(found.operations, found.resting)
    assert back.granted == back.asked == len(found.operations)
    assert back.ns == pytest.approx(found.ns, rel=1e-6)
    assert back.elements == pytest.approx(found.elements)


def test_a_limit_of_weights_is_kept_and_takes_time() -> None:
    asked, total = search(), peers_search.weights(LAYER)
    free, tight = asked.best(None), asked.best(total / 2)
    assert tight.elements <= total / 2 * (1 + 1e-9) < free.elements
    assert tight.ns > free.ns


def test_a_layout_that_we_do_not_have_is_counted_and_left_free() -> None:
    asked = search()
    found = asked.best(None)
    name = next(iter(found.operations))
    odd = {**found.operations, name: {"input": ["P"], "output": ["P"]}}
    back = asked.with_theirs(odd, found.resting)
    assert (back.asked, back.granted) == (len(odd), len(odd) - 1)


def checkout(folder: Path, layer_mib: float = 100.0) -> Path:
    """Writes what Galvatron's repository ships, with round numbers."""
    model = folder / "galvatron" / "models" / "gpt" / "configs"
    machine = folder / "galvatron" / "profile_hardware" / "hardware_configs"
    model.mkdir(parents=True)
    machine.mkdir(parents=True)
    times = {f"layertype_0_bsz{m}_seq2048": 4.0 for m in (1, 2, 4, 8)}
    times |= {f"layertype_other_bsz{m}_seq2048": 3.0 for m in (1, 2, 4, 8)}
    ends = {"model_states": {"1": 2048.0}, "activation": {"1": 300.0}}
    held = {
        "layertype_0_sp": {"2048": {"parameter_size": layer_mib, "tp_activation_per_bsz_dict": {"1": 50.0}}},
        "other_memory_pp_on_first_sp": {"2048": ends},
        "other_memory_pp_on_last_sp": {"2048": ends},
        "other_memory_pp_off_sp": {"2048": {"model_states": {"1": 4096.0}, "activation": {"1": 400.0}}},
    }
    for path, content in (
        (model / "computation_profiling_bf16_llama2-7b_all.json", times),
        (model / "memory_profiling_bf16_llama2-7b_all.json", held),
        (
            machine / "allreduce_bandwidth_1nodes_8gpus_per_node.json",
            {"allreduce_size_8_consec_1": 100.0},
        ),
        (machine / "sp_time_1nodes_8gpus_per_node.json", {"allreduce_size_8_1MB_time": 0.08}),
    ):
        path.write_text(json.dumps(content))
    return folder


def test_galvatrons_tables_become_a_profile_of_its_layers_between_embedding_and_head(tmp_path: Path) -> None:
    costs = galvatron.costs(checkout(tmp_path))
    assert len(costs.graph.layers) == LAYERS + 2
    assert costs.graph.parameter["w1"].bytes == 50 * MIB  # half precision
    assert costs.graph.parameter["w0"].bytes == 256 * MIB  # an eighth of its states
    block = next(cost for key, cost in costs.costs.items() if key.signature == "s1" and key.micro == 2)
    assert (block.forward.median, block.backward.median) == pytest.approx((0.008, 0.016))
    assert block.own_saved_bytes == 100 * MIB
    assert (
        costs.costs[next(k for k in costs.costs if k.signature == "s0" and k.micro == 1)].own_saved_bytes
        == 100 * MIB
    )


def test_galvatrons_smallest_all_reduce_is_met_by_the_link(tmp_path: Path) -> None:
    machines = galvatron.cluster(checkout(tmp_path))
    link = machines.links.node
    assert link is not None and link.bandwidth_bytes_per_s == 100e9
    ring_s = 2 * (GPUS - 1) * (link.latency_s + MIB / GPUS / link.bandwidth_bytes_per_s)
    assert ring_s == pytest.approx(0.08e-3)


def test_a_plan_of_galvatron_becomes_pins_and_a_plan_of_ours_its_strategy(tmp_path: Path) -> None:
    config = {
        "pp_deg": 2,
        "tp_sizes_enc": ",".join(["1"] * LAYERS),
        "dp_types_enc": ",".join(["1"] * LAYERS),
        "checkpoint": ",".join(["1"] * 4 + ["0"] * 28),
        "global_bsz": 16,
        "chunks": 2,
        "pp_division": "16,16",
        "default_dp_type": "zero2",
        "vtp": 2,
    }
    theirs = galvatron.strategy_of(config)
    assert theirs == Strategy(
        pipeline=2,
        data=4,
        chunks=2,
        sharing="zero3",
        layers=(16, 16),
        recomputed=(4, 0),
        embedding_tensor=2,
    )
    folder = checkout(tmp_path)
    question = Question(
        profile=galvatron.costs(folder),
        cluster=galvatron.cluster(folder),
        batch=galvatron.BATCH,
        fix=galvatron.pinned(theirs),
    )
    ours = galvatron.told(solve(question))
    assert (ours.pipeline, ours.data, ours.chunks, ours.sharing) == (2, 4, 2, "zero3")
    assert sum(ours.layers) == LAYERS
    assert ours.recomputed == (0, 0)  # everything fits


def test_peers_that_are_not_there_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDWRIGHT_DATA", raising=False)
    found = peers_search.run(quick=True)
    assert not found.tables and not found.missed
    assert "no folder 'autoparallel'" in found.claim and "no folder 'galvatron'" in found.claim


def test_a_peer_that_fails_is_said_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text("import sys\nsys.exit('no GPU here')\n")
    with pytest.raises(peers_search.PeerFailed, match="no GPU here"):
        peers_search.asked(str(script), {}, tmp_path)
