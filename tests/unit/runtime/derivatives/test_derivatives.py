"""Gradients of a library's model are those of its loss; one that is not is found."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dayzero.runtime.derivatives.differences import differences
from dayzero.runtime.derivatives.rank import Descent, _derived
from dayzero.runtime.sharding import Mesh
from dayzero.schema import Layout
from dayzero.schema.derivatives import Derivatives, Derived
from dayzero.stages.check.derivatives import SLOPE, _alone

ASKED = Derivatives(steps=3, samples=30, recompute=True)


@pytest.fixture
def descent() -> Descent:
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2)).eval()
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(1))
    rank = SimpleNamespace(model=model, pipeline=None, complete=lambda name, part: part, first_names={})
    return Descent(rank, Mesh(Layout(), 0), ids)


def derived(descent: Descent) -> Derived:
    return _derived(descent, ASKED, lambda text: None)


def failing(found: Derived) -> list[str]:
    return [check.name for check in _alone(found, {}) if not check.passed]


def test_a_right_model(descent: Descent) -> None:
    before = descent.values()
    found = derived(descent)
    assert failing(found) == [] and found.odd == {} and found.absent == () and found.recomputed is not None
    assert len([each for each in found.sampled if not each.skipped]) >= 15
    assert found.losses[2] < found.losses[1] < found.losses[0] and 0 <= found.noise < 1e-4
    assert all(torch.equal(value, before[name]) for name, value in descent.values().items())


@pytest.mark.slow
def test_a_gradient_that_is_twice_what_it_should_be(descent: Descent) -> None:
    """As when a bucket is added up twice."""
    descent.parameters["model.layers.1.mlp.down_proj.weight"].register_hook(lambda gradient: 2 * gradient)
    [worst] = failing(derived(descent))
    assert worst.startswith("gradients against finite differences")


@pytest.mark.slow
def test_a_gradient_of_the_batch_before(descent: Descent) -> None:
    """As when a bucket is stale."""
    name = "model.layers.0.self_attn.o_proj.weight"
    _, stale = descent.gradients()
    descent.batch = torch.roll(descent.batch, 3, 1)
    _, found = descent.gradients()
    right = differences(descent, found, 30)
    wrong = differences(descent, found | {name: stale[name]}, 30)
    off = {each.name: abs(each.difference / each.gradient - 1) for each in wrong if not each.skipped}
    assert max(abs(each.difference / each.gradient - 1) for each in right if not each.skipped) < SLOPE
    assert [each for each, error in off.items() if error > SLOPE] == [name]


def test_what_is_no_number_and_what_no_gradient_reaches(descent: Descent) -> None:
    descent.parameters["model.norm.weight"].register_hook(lambda gradient: gradient * float("nan"))
    descent.parameters["lm_head.weight"].requires_grad_(False)
    _, found = descent.gradients()
    assert "lm_head.weight" not in found and not torch.isfinite(found["model.norm.weight"]).any()


def test_recomputation_that_computes_something_else(descent: Descent) -> None:
    layer = descent.model.model.layers[0]
    inside = []  # the first forward of each training pass, then the recomputed one

    def other(module, args, out):
        if not module.training:
            return out
        inside.append(1)
        return out * (1.01 if len(inside) == 3 else 1.0)

    layer.input_layernorm.register_forward_hook(other)
    found = derived(descent)
    assert len(inside) == 3
    assert "gradients with recomputed activations, largest relative L2 of a parameter" in failing(found)
