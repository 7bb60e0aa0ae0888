"""Whole inferences by the command's own function: exact numbers, any workers, kills, and one message for what is wrong."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import shardwright as sw
from planner.errors import BadInput
from planner.workload import load
from runtime.infer import InferFolder, InferRequest, InferStatus, prepared, run, status_of, status_text
from runtime.infer.storage import NpyVolume
from runtime.infer.work import begin
from tests.runtime.infer.conftest import SIZE, Place

pytestmark = pytest.mark.usefixtures("warm_starts")


def request(folder: Path, output: Path, **changed: Any) -> InferRequest:
    given: dict[str, Any] = {"chunk": "10", "input": str(folder / "in.npy"), "output": str(output)}
    weights = str(folder / "weights.safetensors")
    return InferRequest(**({"workload": str(folder / "net.py"), "weights": weights} | given | changed))


def inferred(folder: Path, output: Path, **changed: Any) -> InferStatus:
    return run(prepared(request(folder, output, **changed)), lambda line: None)


@pytest.mark.parametrize("suffix", [".npy", ".zarr", ".h5"])
def test_an_exact_inference_gives_what_the_whole_volume_gives(
    place: Place, tmp_path: Path, suffix: str
) -> None:
    library = {".zarr": "zarr", ".h5": "h5py"}.get(suffix)
    if library:
        pytest.importorskip(library)
    from runtime.infer.storage import opened

    folder, expected = place
    found = inferred(folder, tmp_path / f"out{suffix}")
    made = opened(str(tmp_path / f"out{suffix}"))
    assert found.state == "done" and found.total == 12 and found.odd == 0
    assert made.shape == expected.shape
    assert (
        np.abs(made.read(tuple((0, n) for n in made.shape)) - expected).max() <= 1e-6 * np.abs(expected).max()
    )


def test_the_facade_infers_from_a_run_folder_or_a_file(place: Place, tmp_path: Path) -> None:
    folder, expected = place
    found = sw.infer(
        folder / "net.py",
        weights=folder / "weights.safetensors",
        input=folder / "in.npy",
        output=tmp_path / "out.npy",
        chunk="37,10",
    )
    assert found.state == "done" and found.total == 3
    assert np.allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-5)


def test_the_same_command_joins_what_is_there_and_another_is_refused(place: Place, tmp_path: Path) -> None:
    folder, _ = place
    first = inferred(folder, tmp_path / "out.npy")
    assert inferred(folder, tmp_path / "out.npy") == first
    with pytest.raises(BadInput, match="begun with another dtype"):
        inferred(folder, tmp_path / "out.npy", dtype="float64")
    os.utime(folder / "in.npy", ns=(0, 0))  # as if it had been written anew
    with pytest.raises(BadInput, match="begun with another state of the input or mask"):
        inferred(folder, tmp_path / "out.npy")
    (tmp_path / "theirs.npy").write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"theirs\.npy: exists"):
        inferred(folder, tmp_path / "theirs.npy")


def test_an_output_that_is_gone_is_one_message(place: Place, tmp_path: Path) -> None:
    inferred(place[0], tmp_path / "out.npy", chunk="40")
    (tmp_path / "out.npy").unlink()
    with pytest.raises(BadInput, match=r"out\.npy: is gone.*remove .*out\.npy\.tasks, too"):
        inferred(place[0], tmp_path / "out.npy", chunk="40")


def worker(folder: InferFolder) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "runtime.infer.work", str(folder.root)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_killed_workers_leave_what_an_undisturbed_run_makes(place: Place, tmp_path: Path) -> None:
    folder, _ = place
    expected = inferred(folder, tmp_path / "undisturbed.npy", chunk="4")
    plan = prepared(request(folder, tmp_path / "out.npy", chunk="4"))
    tasks = begin(plan.job, plan.applied, plan.unit)
    draw = random.Random(0)
    workers = [worker(tasks) for _ in range(2)]
    end = time.monotonic() + 60
    while not tasks.tasks().finished() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.05))
    for process in workers:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    torn = np.load(tmp_path / "out.npy", mmap_mode="r+")
    unfinished = sorted(set(tasks.tasks().names) - tasks.tasks().finished())
    if unfinished:  # a chunk that was written by half
        (low, high), (first, _) = (map(int, rows.split("-")) for rows in unfinished[0].split("_"))
        torn[:, low:high, first] = 7.0
    del torn
    found = run(plan, lambda line: None)
    assert found.state == "done" and found.checksum == expected.checksum
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()


def test_a_task_done_twice_by_two_workers_is_the_same(place: Place, tmp_path: Path) -> None:
    folder, _ = place
    plan = prepared(request(folder, tmp_path / "out.npy"))
    first = run(plan, lambda line: None)
    for path in (tmp_path / "out.npy.tasks" / "done").iterdir():
        path.unlink()
    assert run(plan, lambda line: None).checksum == first.checksum


def test_a_full_disk_ends_with_one_message_and_the_same_command_goes_on(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = place
    expected = inferred(folder, tmp_path / "undisturbed.npy")
    whole, count = NpyVolume.write, 0

    def full(self: NpyVolume, *given: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, *given)

    monkeypatch.setattr(NpyVolume, "write", full)
    with pytest.raises(BadInput, match="the disk is full; nothing that is done is lost"):
        inferred(folder, tmp_path / "out.npy")
    found = inferred(folder, tmp_path / "out.npy")
    assert found.checksum == expected.checksum and not found.aside


def test_a_task_that_always_fails_is_set_aside_and_named(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = place
    whole = NpyVolume.write

    def broken(self: NpyVolume, box: Any, values: Any) -> None:
        if box[1] == (10, 20) and box[2] == (0, 10):
            raise OSError(errno.EIO, "bad block")
        whole(self, box, values)

    monkeypatch.setattr(NpyVolume, "write", broken)
    found = inferred(folder, tmp_path / "out.npy")
    assert found.state == "failed" and list(found.aside) == ["10-20_0-10"]
    assert "bad block" in status_text(found) and "10-20_0-10" in status_text(found)
    assert status_of(InferFolder.beside(str(tmp_path / "out.npy"))) == found


def test_numbers_that_are_not_finite_are_said(place: Place, tmp_path: Path) -> None:
    folder, expected = place
    volume = np.load(folder / "in.npy")
    volume[5, 5] = np.nan
    np.save(tmp_path / "in.npy", volume)
    found = inferred(folder, tmp_path / "out.npy", input=str(tmp_path / "in.npy"))
    assert found.odd >= 1 and found.odd_made >= 1
    assert "not finite (NaN or infinite)" in status_text(found)
    made = np.load(tmp_path / "out.npy")
    assert np.isnan(made[:, 5, 5]).all() and np.allclose(made[:, 20:], expected[:, 20:], rtol=0, atol=1e-5)


def test_a_mask_leaves_zeros_and_computes_nothing_for_empty_boxes(place: Place, tmp_path: Path) -> None:
    folder, expected = place
    mask = np.zeros(SIZE, "u1")
    mask[3:12, 4:20] = 1
    np.save(tmp_path / "mask.npy", mask)
    inferred(folder, tmp_path / "out.npy", mask=str(tmp_path / "mask.npy"))
    made = np.load(tmp_path / "out.npy")
    assert np.allclose(made, np.where(mask, expected, 0), rtol=0, atol=1e-5)


def test_a_chunk_is_chosen_that_fits_and_is_told_beside_the_cube(place: Place, tmp_path: Path) -> None:
    folder, _ = place
    plan = prepared(request(folder, tmp_path / "out.npy", chunk="auto", memory=2**30))
    assert plan.choice is not None and plan.choice.measured
    assert plan.choice.peak_bytes <= 2**30 and plan.choice.overcompute >= 1
    for word in ("chunk", "margin", "overcompute", "alignment 2 x 2", "cube", "peak", "tasks"):
        assert word in plan.text()
    small = prepared(request(folder, tmp_path / "out.npy", chunk="auto", memory=30000), measure=False)
    assert small.choice is not None and small.tasks > 1 and small.choice.overcompute > 1
    assert all(rows % 2 == 0 or rows == n for rows, n in zip(small.job.chunk, SIZE, strict=True))
    assert not (tmp_path / "out.npy").exists()


def test_a_norm_in_a_module_without_a_line_of_the_user_is_refused_by_the_modules_path_alone(
    place: Place, tmp_path: Path
) -> None:
    before, _, after = (place[0] / "net.py").read_text().partition('def build(norm: str = "batch"):')
    made = "def build():\n    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3))\n\ndef batch"
    (tmp_path / "net.py").write_text(before + made + after.partition("def batch")[2])
    with pytest.raises(BadInput, match=r"^module '1.*: aten\.instance_norm needs all of space"):
        prepared(request(place[0], tmp_path / "out.npy", workload=str(tmp_path / "net.py")))


def test_a_norm_over_space_is_refused_and_blended_instead(place: Place, tmp_path: Path) -> None:
    folder, _ = place
    module = load(str(folder / "net.py"), {"norm": "instance"}).build()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    given = {"settings": {"norm": "instance"}, "weights": str(tmp_path / "weights.safetensors")}
    with pytest.raises(BadInput, match=r"net\.py:13, module 'norm.*aten\.instance_norm needs all of space"):
        prepared(request(folder, tmp_path / "out.npy", **given))
    blended = {**given, "mode": "blend", "patch": "16", "overlap": "8"}
    plan = prepared(request(folder, tmp_path / "out.npy", **blended))
    assert plan.error is not None and "blended differs from whole by" in plan.text()
    first = run(plan, lambda line: None)
    again = inferred(folder, tmp_path / "other.npy", **(blended | {"workers": 2}))
    assert first.state == "done" and again.checksum == first.checksum
    flipped = inferred(folder, tmp_path / "flipped.npy", **(blended | {"flips": True}))
    assert flipped.checksum != first.checksum


@pytest.mark.parametrize("devices", [1, 2])
def test_devices_that_share_the_whole_volume_are_exact_with_norms_over_space(
    place: Place, tmp_path: Path, devices: int
) -> None:
    folder, _ = place
    module = load(str(folder / "net.py"), {"norm": "instance"}).build().eval()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    with torch.no_grad():
        expected = module(torch.from_numpy(np.load(folder / "in.npy"))[None, None])[0].numpy()
    given: dict[str, Any] = {
        "settings": {"norm": "instance"},
        "weights": str(tmp_path / "weights.safetensors"),
    }
    found = inferred(folder, tmp_path / "out.npy", chunk="auto", devices=devices, **given)
    assert found.state == "done" and found.total == 1
    assert np.abs(np.load(tmp_path / "out.npy") - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mode": "guess"}, "exact or blend"),
        ({"dtype": "int8"}, "float64"),
        ({"device": "tpu"}, "--device: 'tpu' (allowed: cpu"),
        ({"chunk": "4,x"}, "--chunk: '4,x'"),
        ({"chunk": "4,4,4"}, "2 with commas"),
        ({"devices": 2}, "--devices"),
        ({"workers": 0}, "--workers"),
        ({"weights": "nowhere"}, "neither a run nor a file"),
        ({"input": "nowhere.npy"}, "cannot be read"),
        ({"patch": "8"}, "of --mode blend"),
        ({"mask": "nowhere.npy"}, "nowhere.npy: cannot be read"),
        ({"mode": "blend", "patch": "8", "overlap": "5"}, "0 to half of the patch"),
        ({"output": "out.png"}, ".npy, .zarr, .h5 or .precomputed"),
        ({"output": "out.h5", "workers": 2}, "written by one process"),
        ({"output": "/proc/out.npy"}, "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_message(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as error:
        inferred(place[0], **({"output": tmp_path / "out.npy"} | changed))
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())


def test_wrong_channels_and_a_read_only_folder_are_one_message(place: Place, tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.zeros((2, 9, 9), "f4"))
    with pytest.raises(BadInput, match=r"two\.npy: has the shape \(2, 9, 9\) .*1 channels, then 2 axes"):
        inferred(place[0], tmp_path / "out.npy", input=str(tmp_path / "two.npy"))


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        (np.zeros((9, 9), "c8"), "complex64.*real numbers"),
        (np.zeros((9, 9), "datetime64[s]"), "datetime64.*real numbers"),
        (np.zeros((9, 9), "g"), "real numbers of at most 64 bits"),
        (np.zeros((9, 0), "f4"), "at least one row along each axis"),
    ],
)
def test_volumes_of_other_numbers_and_of_none_are_refused(
    place: Place, tmp_path: Path, volume: np.ndarray[Any, Any], said: str
) -> None:
    np.save(tmp_path / "in.npy", volume)
    with pytest.raises(BadInput, match=rf"in\.npy: .*{said}"):
        prepared(request(place[0], tmp_path / "out.npy", input=str(tmp_path / "in.npy")))


def test_weights_without_a_buffer_that_the_model_reads_are_refused(place: Place, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found = load_file(place[0] / "weights.safetensors")
    del found["norm.num_batches_tracked"]  # which evaluation does not read
    save_file(found, tmp_path / "fewer.safetensors")
    prepared(request(place[0], tmp_path / "out.npy", weights=str(tmp_path / "fewer.safetensors")))
    del found["norm.running_mean"]
    save_file(found, tmp_path / "none.safetensors")
    with pytest.raises(BadInput, match=r"none\.safetensors: has no 'norm\.running_mean'"):
        prepared(request(place[0], tmp_path / "out.npy", weights=str(tmp_path / "none.safetensors")))


def test_a_read_only_input_is_read_and_one_smaller_than_the_margin_is_exact(
    place: Place, tmp_path: Path
) -> None:
    folder, _ = place
    small = np.load(folder / "in.npy")[:3, :2]
    np.save(tmp_path / "small.npy", small)
    (tmp_path / "small.npy").chmod(0o444)
    module = load(str(folder / "net.py")).build().eval()
    from safetensors.torch import load_file

    module.load_state_dict(load_file(folder / "weights.safetensors"))
    inferred(folder, tmp_path / "out.npy", input=str(tmp_path / "small.npy"), chunk="1")
    with torch.no_grad():
        expected = module(torch.from_numpy(small)[None, None])[0].numpy()
    assert np.allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-5)
