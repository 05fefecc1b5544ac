"""What a call of a torch function might have been instead."""

from __future__ import annotations

import torch
from torch.nn import functional

from dayzero.runtime.substitution.causes.variants import variants
from dayzero.runtime.substitution.causes.weights import whole


def test_a_product_in_bf16_rounds_what_goes_in_and_what_comes_out() -> None:
    x, w = torch.randn(5, 7), torch.randn(3, 7)
    made = {each.name: each.compute for each in variants("linear", (x, w), {}, functional.linear(x, w))}
    wanted = (x.bfloat16() @ w.bfloat16().T).float()
    assert torch.equal(made["product in bf16"](), wanted)
    assert not torch.equal(made["product in bf16"](), functional.linear(x, w).bfloat16().float())
    assert not variants("linear", (x.double(), w.double()), {}, functional.linear(x.double(), w.double()))


def test_a_softmax_over_one_channel_is_no_activation() -> None:
    one, more = torch.randn(4, 1), torch.randn(4, 3)
    names = [{each.name for each in variants("sigmoid", (x,), {}, x.sigmoid())} for x in (one, more)]
    assert "softmax instead" not in names[0] and "softmax instead" in names[1] and "tanh instead" in names[0]


def test_weights_are_told_by_their_own_names_and_in_thirds() -> None:
    module = torch.nn.Linear(4, 6)
    words = {each.words for each in whole(module, "layers.0.proj")}
    assert "has zeros in the place of bias of layers.0.proj" in words
    for each in whole(module, "layers.0.proj"):
        if each.name == "weight: rows first two thirds exchanged":
            before = module.weight.clone()
            with each.change():
                assert torch.equal(module.weight, before[[2, 3, 0, 1, 4, 5]])
            assert torch.equal(module.weight, before)
            break
    else:
        raise AssertionError("not tried")
