"""Volumes on disk: every kind gives back what was written in boxes, and says what is wrong in one message."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner.errors import BadInput
from runtime.infer.storage import created, opened, written

LIBRARIES = {".npy": "numpy", ".zarr": "zarr", ".h5": "h5py", ".precomputed": "numpy"}
SHAPE, CHUNKS = (3, 10, 7, 9), (3, 4, 7, 4)


@pytest.mark.parametrize("suffix", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_boxes_come_back_as_they_were_written(tmp_path: Path, suffix: str, dtype: str) -> None:
    pytest.importorskip(LIBRARIES[suffix])
    numbers = np.random.default_rng(0).integers(0, 200, SHAPE).astype(dtype)
    path = tmp_path / f"volume{suffix}"
    volume = created(path, SHAPE, np.dtype(dtype), CHUNKS)
    assert not volume.read(((0, 3), (0, 10), (0, 7), (0, 9))).any()
    for a in range(0, 10, 4):
        for b in range(0, 9, 4):
            box = ((0, 3), (a, min(a + 4, 10)), (0, 7), (b, min(b + 4, 9)))
            volume.write(box, numbers[:, a : a + 4, :, b : b + 4])
    again = opened(str(path))
    assert again.shape == SHAPE and again.dtype == dtype
    assert np.array_equal(again.read(((0, 3), (0, 10), (0, 7), (0, 9))), numbers)
    assert np.array_equal(written(path).read(((1, 2), (3, 9), (2, 5), (4, 6))), numbers[1:2, 3:9, 2:5, 4:6])


def test_any_box_of_an_npy_file_may_be_written(tmp_path: Path) -> None:
    numbers, random = np.zeros(SHAPE, "f4"), np.random.default_rng(0)
    volume = created(tmp_path / "volume.npy", SHAPE, np.dtype("f4"), CHUNKS)
    for _ in range(30):
        box = tuple(tuple(sorted(random.choice(n + 1, 2, replace=False).tolist())) for n in SHAPE)
        place = tuple(slice(*rows) for rows in box)
        numbers[place] = random.standard_normal(numbers[place].shape)
        volume.write(box, numbers[place])
    assert np.array_equal(np.load(tmp_path / "volume.npy"), numbers)


def test_an_array_inside_of_a_file_is_named_behind_a_colon(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["raw"], file["labels"] = np.ones((2, 3)), np.zeros((2, 3))
    assert opened(f"{tmp_path}/scan.h5:raw").read(((0, 2), (0, 3))).all()
    with pytest.raises(BadInput, match=r"scan\.h5:labels, .*scan\.h5:raw"):
        opened(f"{tmp_path}/scan.h5")


def test_slices_of_tiff_are_one_volume_in_the_order_of_their_names(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    numbers = np.random.default_rng(0).integers(0, 99, (4, 5, 6)).astype("uint16")
    for i, page in enumerate(numbers):
        tifffile.imwrite(tmp_path / f"{i:03d}.tif", page)
    volume = opened(str(tmp_path))
    assert volume.shape == numbers.shape
    assert np.array_equal(volume.read(((1, 3), (0, 5), (2, 4))), numbers[1:3, :, 2:4])


def test_slices_whose_numbers_and_names_say_two_orders_are_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    for i in (1, 2, 10):
        tifffile.imwrite(tmp_path / f"slice{i}.tif", np.zeros((4, 4), "u1"))
    with pytest.raises(BadInput, match=r"'slice10' comes before 'slice2' by name.*007 and 010"):
        opened(str(tmp_path))


def test_a_volume_that_is_none_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01")
    (tmp_path / "text.txt").write_text("no")
    for name in ("torn.npy", "text.txt", "missing.npy"):
        with pytest.raises(BadInput, match=name):
            opened(str(tmp_path / name))
    with pytest.raises(BadInput, match=r"\.npy, \.zarr, \.h5 or"):
        created(tmp_path / "out.png", (1,), np.dtype("f4"), (1,))


def test_a_pickle_in_an_npy_file_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="cannot be read"):
        opened(str(tmp_path / "objects.npy"))


def test_a_disk_with_too_little_room_is_an_error_before_anything_is_computed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        created(tmp_path / "huge.npy", (2**20, 2**20, 2**12), np.dtype("f8"), (1, 1, 1))
    assert not (tmp_path / "huge.npy").exists()


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-8], lambda raw: raw.replace(b"(4, 4)", b"(4,\n((")])
def test_an_npy_file_with_less_than_its_head_says_or_no_head_is_one_message(
    spoil: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    np.save(tmp_path / "torn.npy", np.ones((4, 4)))
    (tmp_path / "torn.npy").write_bytes(spoil((tmp_path / "torn.npy").read_bytes()))
    with pytest.raises(BadInput, match=r"torn\.npy.*cannot be read"):
        opened(str(tmp_path / "torn.npy"))


def test_an_archive_under_the_name_of_an_array_is_one_message(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.ones(3))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(BadInput, match=r"x\.npy"):
        opened(str(tmp_path / "x.npy"))


def test_chunks_of_neuroglancer_have_x_first_and_those_without_a_file_are_zeros(tmp_path: Path) -> None:
    path, numbers = tmp_path / "scan", np.arange(2 * 3 * 4 * 5, dtype="<u2").reshape(2, 3, 4, 5)
    scale = {"key": "8_8_40", "size": [5, 4, 3], "chunk_sizes": [[3, 4, 3]], "encoding": "raw"}
    info = {"data_type": "uint16", "num_channels": 2, "scales": [scale | {"voxel_offset": [100, 0, 7]}]}
    (path / "8_8_40").mkdir(parents=True)
    (path / "info").write_text(json.dumps(info))
    packed = gzip.compress(numbers[..., :3].tobytes())
    (path / "8_8_40" / "100-103_0-4_7-10.gz").write_bytes(packed)
    volume, whole = opened(str(path)), ((0, 2), (0, 3), (0, 4), (0, 5))
    assert np.array_equal(volume.read(whole)[..., :3], numbers[..., :3])
    assert not volume.read(whole)[..., 3:].any()
    (path / "8_8_40" / "103-105_0-4_7-10").write_bytes(numbers[..., 3:].tobytes())
    assert np.array_equal(volume.read(((1, 2), (1, 3), (2, 4), (2, 5))), numbers[1:2, 1:3, 2:4, 2:5])
    assert opened(f"{path}:8_8_40").shape == numbers.shape
    with pytest.raises(BadInput, match=r"no scale '4_4_40' \(allowed: 8_8_40"):
        opened(f"{path}:4_4_40")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"encoding": "jpeg"}, "raw chunks"),
        ({"sharding": {"@type": "x"}}, "raw chunks"),
        ({"size": [5, 0, 3]}, "a scale without a key or a size"),
        ({"size": [5, 4]}, "cannot be read"),
        ({"key": "../../etc"}, "a scale without a key or a size"),
    ],
)
def test_a_precomputed_volume_that_is_not_raw_or_says_nothing_right_is_one_message(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    scale = {"key": "1", "size": [5, 4, 3], "chunk_sizes": [[3, 4, 3]], "encoding": "raw"} | changed
    info = {"data_type": "uint8", "num_channels": 1, "scales": [scale]}
    (tmp_path / "info").write_text(json.dumps(info))
    with pytest.raises(BadInput, match=said):
        opened(str(tmp_path))
    with pytest.raises(BadInput, match="three axes of one of int8"):
        created(tmp_path / "new.precomputed", (1, 4, 4, 4), np.dtype("f8"), (1, 4, 4, 4))
