import math
from collections.abc import Callable

import pytest
import torch

from models import gpt2

Count = Callable[..., int]


def test_gpt2_small_has_124_439_808_parameters(count: Count) -> None:
    assert count(gpt2.build, size="small") == 124_439_808


def test_gpt2_medium_has_354_823_168_parameters(count: Count) -> None:
    assert count(gpt2.build, size="medium") == 354_823_168


def test_gpt2_large_has_774_030_080_parameters(count: Count) -> None:
    assert count(gpt2.build, size="large") == 774_030_080


def test_gpt2_xl_has_1_557_611_200_parameters(count: Count) -> None:
    assert count(gpt2.build, size="xl") == 1_557_611_200


def test_the_gpt2_of_chimera_has_1_389_327_360_parameters(count: Count) -> None:
    assert count(gpt2.build, size="chimera") == 1_389_327_360


def test_the_175b_has_174_604_259_328_parameters(count: Count) -> None:
    assert count(gpt2.build, size="175b") == 174_604_259_328


def test_the_head_is_the_embedding_but_for_chimera() -> None:
    with torch.device("meta"):
        tied, untied = gpt2.build(size="small"), gpt2.build(size="chimera")
    assert tied.get_parameter("head.weight") is tied.get_parameter("token.weight")
    assert untied.get_parameter("head.weight") is not untied.get_parameter("token.weight")


def test_a_token_does_not_see_the_tokens_after_it() -> None:
    model = gpt2.build(size="tiny")
    tokens, _ = gpt2.batch(2, size="tiny", seq=16)
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_an_untrained_model_knows_no_more_than_the_size_of_its_vocabulary() -> None:
    tokens, targets = gpt2.batch(8, size="tiny", seq=64)
    with torch.no_grad():
        error = gpt2.loss(gpt2.build(size="tiny")(tokens), targets)
    assert error.item() == pytest.approx(math.log(256), abs=0.1)


def test_targets_are_the_tokens_that_come_next() -> None:
    tokens, targets = gpt2.batch(2, size="tiny", seq=16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_biases_and_norms_do_not_decay() -> None:
    model = gpt2.build(size="tiny")
    decayed, free = gpt2.optimizer(model.named_parameters()).param_groups
    assert decayed["weight_decay"] > free["weight_decay"] == 0
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in free["params"]} == {1}


def test_a_stage_without_norms_and_biases_still_gets_an_optimizer() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    assert len(gpt2.optimizer([("token.weight", weight)]).param_groups) == 2


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="seq=129: size 'tiny' has positions for 1 to 128 tokens"):
        gpt2.batch(1, size="tiny", seq=129)
