"""Masks as data and as files: what is chosen, what is read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from planner.errors import BadInput
from planner.kept import (
    KeptEntries,
    Masks,
    Numbers,
    dump,
    kept_asked,
    kept_counts,
    load_masks,
    prune,
    shares_asked,
)
from planner.model import ModelGraph, Parameter
from tests.planner.graphs import chain

RNG = np.random.default_rng(0)
WEIGHTS = {
    "a": RNG.normal(size=(20, 10)).astype(np.float32),
    "b": RNG.normal(size=(40, 5)).astype(np.float32),
    "norm": np.ones(10, np.float32),
}


def numbers(weights: dict[str, np.ndarray] = WEIGHTS) -> Numbers:  # type: ignore[type-arg]
    return Numbers({name: x.shape for name, x in weights.items()}, weights.__getitem__)


def graph() -> ModelGraph:
    """A model with the weights above, and a frozen one."""
    made = chain(2)
    rows = [
        Parameter(
            name=name,
            users=("a0",),
            shape=x.shape,
            dtype="float32",
            bytes=4 * x.size,
            trainable=True,
            aliases=(f"other.{name}",),
        )
        for name, x in WEIGHTS.items()
    ]
    return replace(made, parameters=(*rows, replace(rows[0], name="frozen", aliases=(), trainable=False)))


def test_by_layer_every_weight_keeps_its_largest_entries() -> None:
    masks = prune(numbers(), 0.1)
    assert masks.counts == {"a": 20, "b": 20}
    for name, index in masks.indices.items():
        flat = np.abs(WEIGHTS[name].reshape(-1))
        assert (np.diff(index) > 0).all() and index.dtype == np.int32
        assert flat[index].min() >= np.delete(flat, index).max()


def test_what_has_one_entry_a_channel_in_any_shape_stays_whole_unless_it_is_named() -> None:
    shapes = {"g": (20, 1), "token": (1, 1, 10), "scale": (8, 1, 1), "bias": (10,), "v": (20, 1, 3)}
    every = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    assert prune(numbers(every), 0.5).counts == {"v": 30}
    assert prune(numbers(every), 0.5, only=["g"]).counts == {"g": 10}
    with pytest.raises(BadInput, match="nothing to prune"):
        prune(numbers({"g": every["g"]}), 0.5)
    rows = [
        replace(row, name=name, shape=shapes[name], aliases=())
        for name, row in zip(shapes, [graph().parameters[0]] * len(shapes), strict=True)
    ]
    assert kept_counts(replace(graph(), parameters=tuple(rows)), 0.5) == {"v": 30}


def test_by_global_magnitude_all_weights_together_keep_the_share() -> None:
    masks = prune(numbers({**WEIGHTS, "b": 1.5 * WEIGHTS["b"]}), 0.1, by="global")
    assert sum(masks.counts.values()) == 40 and masks.counts["b"] > 20


def test_of_equal_entries_the_first_stay_so_that_masks_are_the_same_each_time() -> None:
    same = {"w": np.zeros((4, 4), np.float32)}
    assert prune(numbers(same), 0.25).indices["w"].tolist() == [0, 1, 2, 3]


def test_only_names_what_is_pruned_and_may_name_vectors() -> None:
    assert prune(numbers(), 0.5, only=["no*"]).counts == {"norm": 5}


@pytest.mark.parametrize(
    ("keep", "only", "said"),
    [(0.0, (), "keep is 0"), (1.5, (), "keep is 1.5"), (0.5, ("x*",), "matches no weight")],
)
def test_a_share_or_a_name_that_means_nothing_is_refused(
    keep: float, only: tuple[str, ...], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        prune(numbers(), keep, only=only)


def test_a_weight_that_would_keep_nothing_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="'a' would keep no entry"):
        prune(numbers({**WEIGHTS, "a": 1e-6 * WEIGHTS["a"]}), 0.1, by="global")


def test_a_file_gives_back_what_was_written_with_the_same_digest(tmp_path: Path) -> None:
    masks = prune(numbers(), 0.1)
    dump(masks, tmp_path / "kept.safetensors")
    found = load_masks(tmp_path / "kept.safetensors")
    assert found.digest == masks.digest and found.elements == {"a": 200, "b": 200}
    assert prune(numbers(), 0.2).digest != masks.digest


def test_masks_of_a_tensor_in_another_shape_are_refused(tmp_path: Path) -> None:
    turned = prune(numbers({"a": WEIGHTS["a"].T}), 0.1)
    dump(turned, tmp_path / "turned")
    with pytest.raises(
        BadInput, match=r"the mask of 'a' has shape \(10, 20\).*that of the parameter, \(20, 10\)"
    ):
        load_masks(tmp_path / "turned").fitted(graph())


def test_masks_of_bool_are_converted(tmp_path: Path) -> None:
    mask = np.zeros((20, 10), np.bool_)
    mask[3, 4] = mask[0, 1] = True
    save_file({"other.a": mask, "empty": mask[:0]}, tmp_path / "bool.safetensors")
    found = load_masks(tmp_path / "bool.safetensors").fitted(graph())
    assert found.indices["a"].tolist() == [1, 34] and found.elements == {"a": 200}


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": np.array([3, 2], np.int32)}, "index 1 of 'a' is 2 after 3"),
        ({"a": np.array([2, 2], np.int32)}, "index 1 of 'a' is 2 after 2"),
        ({"a": np.array([-1, 2], np.int32)}, "out of range"),
        ({"a": np.array([5, 200], np.int32)}, "for another model, with index 200"),
        ({"a": np.zeros(0, np.int32)}, "keeps no entry"),
        ({"a": np.zeros((20, 10), np.bool_)}, "keeps no entry"),
        ({"a": np.zeros((20, 11), np.bool_) | True}, "for another model, of 220 elements"),
        ({"a": np.ones((10, 20), np.bool_)}, r"the mask of 'a' has shape \(10, 20\)"),
        ({"a": np.ones(200, np.bool_)}, r"the mask of 'a' has shape \(200,\)"),
        ({"a": np.zeros(4, np.float32)}, "F32 of shape"),
        ({"nothing": np.array([0], np.int32)}, "no parameter of this model"),
        ({"frozen": np.array([0], np.int32)}, "not trained"),
        (
            {"a": np.array([0], np.int32), "other.a": np.array([1], np.int32)},
            "another mask under its other name",
        ),
    ],
)
def test_a_wrong_mask_is_refused_by_name(tensors: dict[str, object], said: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.safetensors"
    save_file(tensors, file)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=said):
        load_masks(file).fitted(graph(), str(file))


def test_one_mask_may_stand_under_each_name_of_a_tied_weight(tmp_path: Path) -> None:
    dump(prune(numbers({"a": WEIGHTS["a"], "other.a": WEIGHTS["a"]}), 0.1), tmp_path / "k")
    assert load_masks(tmp_path / "k").fitted(graph()).counts == {"a": 20}


def test_a_tensor_that_is_no_mask_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    for kind, shape, each in (("BOOL", [2**20, 2**20], 1), ("F32", [2**30], 4)):
        size = each * prod(shape)
        header = json.dumps({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}}).encode()
        with (tmp_path / kind).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)  # takes no room on the disk
        with pytest.raises(BadInput, match=r"'a' is (too large|F32 of shape)"):
            load_masks(tmp_path / kind)


def test_sizes_that_a_file_says_of_its_tensors_cost_no_time(tmp_path: Path) -> None:
    told = {"shapes": json.dumps({"a": [2**62] * 500_000})}
    save_file({"a": np.array([0], np.int32)}, tmp_path / "k", told)
    with pytest.raises(BadInput, match="for another model"):
        load_masks(tmp_path / "k").fitted(graph())


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no")
    for name in ("x", "absent", "."):
        with pytest.raises(BadInput, match="cannot be read"):
            load_masks(tmp_path / name)


def test_masks_that_keep_everything_keep_nothing_apart() -> None:
    whole = Masks({"a": np.arange(200, dtype=np.int32)}, {"a": 200}).fitted(graph())
    assert not whole.indices
    assert KeptEntries.of_share(graph(), 1.0).counts == {} == kept_counts(graph(), 1.0)


def test_a_share_is_that_of_every_weight_of_two_dims(tmp_path: Path) -> None:
    assert kept_asked(graph(), "0.1").counts == {"a": 20, "b": 20}
    dump(prune(numbers(), 0.1), tmp_path / "k.safetensors")
    asked = kept_asked(graph(), str(tmp_path / "k.safetensors"))
    assert asked.even and asked.share == 0.1 and asked.digest.startswith("sha256:")
    for wrong in ("2", "0", "nan", "", "0.1,", "0.1;0.2", "0.1," * 200):
        with pytest.raises(BadInput, match="neither a file nor a share"):
            kept_asked(graph(), wrong)


def test_of_several_shares_as_many_as_somebody_likes_the_least_stands_for_all() -> None:
    many = ",".join(f"{number / 1000:g}" for number in range(1000, 99, -1))
    assert len(shares_asked(many)) == 901
    assert kept_asked(graph(), many).counts == {"a": 20, "b": 20}
