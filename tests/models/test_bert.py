from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from models import bert

Count = Callable[..., int]


def test_bert_base_has_110_106_428_parameters(count: Count) -> None:
    assert count(bert.build, size="base") == 110_106_428


def test_bert_large_has_336_226_108_parameters(count: Count) -> None:
    assert count(bert.build, size="large") == 336_226_108


def test_bert48_has_669_790_012_parameters(count: Count) -> None:
    assert count(bert.build, size="bert48") == 669_790_012


def test_every_sample_has_masked_words_and_at_most_30_percent_of_them() -> None:
    inputs, targets = bert.batch(200, size="tiny", seq=32)
    masked = targets["words"] != bert.NOT_MASKED
    assert masked.sum(1).min() >= 1
    assert masked.float().mean(1).max() <= 0.3
    assert torch.equal(inputs["tokens"][masked].unique(), torch.tensor([bert.MASK_TOKEN]))


def test_both_sentences_have_words() -> None:
    segments = bert.batch(50, size="tiny", seq=8)[0]["segments"]
    assert (segments[:, 0] == 0).all()
    assert (segments[:, -1] == 1).all()


def test_with_as_many_masked_words_everywhere_the_loss_is_the_sum_of_two_means() -> None:
    outputs = {"words": torch.randn(3, 10, 256), "follows": torch.randn(3, 2)}
    words = torch.full((3, 10), bert.NOT_MASKED)
    words[:, 2:5] = torch.randint(256, (3, 3))
    targets = {"words": words, "follows": torch.randint(2, (3,))}
    error, masked = bert.loss(outputs, targets)
    expected = F.cross_entropy(outputs["words"][:, 2:5].flatten(0, 1), words[:, 2:5].flatten())
    expected += F.cross_entropy(outputs["follows"], targets["follows"])
    assert masked == 9
    torch.testing.assert_close(error / masked, expected)


def test_a_single_token_is_refused() -> None:
    with pytest.raises(ValueError, match="seq=1: size 'tiny' has positions for 2 to 128 tokens"):
        bert.batch(1, size="tiny", seq=1)
