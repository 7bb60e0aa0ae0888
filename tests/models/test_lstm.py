import torch

from models import lstm


def test_one_layer_of_each_size_is_a_problem_of_deepbench() -> None:
    problems = {(256, 150), (512, 25), (1024, 25), (1536, 50), (2048, 25), (4096, 25)}
    assert {tuple(shape) for size, shape in lstm.SIZES.items() if size != "tiny"} == problems


def test_a_layer_has_eight_matrices_and_eight_biases() -> None:
    with torch.device("meta"):
        layer = lstm.build(size="h512", layers=1).get_submodule("layers.0")
    assert sum(p.numel() for p in layer.parameters()) == 8 * 512 * 512 + 8 * 512


def test_targets_are_the_frames_that_come_next() -> None:
    frames, targets = lstm.batch(2, size="tiny", seq=6)
    assert frames.shape == targets.shape == (2, 6, 32)
    assert torch.equal(frames[:, 1:], targets[:, :-1])


def test_without_a_length_a_batch_has_the_time_steps_of_its_size() -> None:
    assert lstm.batch(1, size="h256")[0].shape == (1, 150, 256)
