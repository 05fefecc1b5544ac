"""Relations hold for the library's models, and each fails where it should."""

from contextlib import contextmanager

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GptOssConfig, GptOssForCausalLM

from dayzero.errors import NotPossible
from dayzero.runtime.metamorphic.caching import caching
from dayzero.runtime.metamorphic.experts import FACTORS, PERMUTED, experts
from dayzero.runtime.metamorphic.positions import SWAPPED, positions
from dayzero.runtime.metamorphic.sampling import SETTINGS, sampling
from dayzero.runtime.metamorphic.sequences import sequences
from dayzero.runtime.metamorphic.subject import FAR, Subject, distance
from dayzero.runtime.serving.sampling import draw
from dayzero.schema import Layout, Sampling
from dayzero.schema.relation import DRAWN, DRAWN_STEPS, Held
from dayzero.stages.check.relations import same_tokens

VOCABULARY = 97


def latent():
    torch.manual_seed(1)
    return DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=1, n_shared_experts=1,
        num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, routed_scaling_factor=2.5, initializer_range=0.2)).eval()


def sliding():
    torch.manual_seed(2)
    return GptOssForCausalLM(GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
        initializer_range=0.2)).eval()


MODELS = {"latent": latent, "sliding": sliding}


def tried(model) -> dict:
    subject = Subject(model, "f32", 0, VOCABULARY)
    found = [*sequences(subject), *caching(subject, {"window": 27}), *positions(subject, 3),
             *experts(subject, ["routed_scaling_factor", "another"], 2)]
    return {each.name: each for each in found}


@pytest.mark.parametrize("name", MODELS)
def test_right_models_keep_all_of_them(name: str) -> None:
    model = MODELS[name]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = tried(model)
    assert all(each.passed for each in found.values()), [each for each in found.values() if not each.passed]
    assert len(found) == (14 if name == "latent" else 13)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@contextmanager
def changed(module, change):
    """What the module gives goes through `change`."""
    def hook(_module, _args, output):
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    handle = module.register_forward_hook(hook)
    yield
    handle.remove()


def failing(model) -> set[str]:
    return {each.name for each in tried(model).values() if not each.passed and not each.skipped}


def test_a_token_that_sees_the_next_one_is_found() -> None:
    model = latent()
    with changed(model.model.layers[1].self_attn, lambda out: out + 0.01 * torch.roll(out, -1, dims=1)):
        found = failing(model)
    assert "later tokens change nothing before them" in found


def test_a_sequence_that_sees_its_neighbour_is_found() -> None:
    model = latent()
    with changed(model.model.layers[1].self_attn, lambda out: out + 0.01 * torch.roll(out, 1, dims=0)):
        assert {"a batch gives what its sequences give alone", "sequences in another order"} <= failing(model)


def test_what_a_call_leaves_behind_is_found() -> None:
    left: list[torch.Tensor] = []

    def carry(out: torch.Tensor) -> torch.Tensor:
        before = left.pop() if left else torch.zeros(())
        left.append(out.mean())
        return out + 0.01 * before

    model = latent()
    with changed(model.model.layers[0].mlp, carry):
        assert "the same again, with another sequence in between" in failing(model)


def test_a_window_that_is_one_longer_with_a_cache_is_found() -> None:
    """In pieces only: the mask of a chunk lets one token more through than that of a whole prompt."""
    model = sliding()
    whole = model.model.layers[0].self_attn.forward

    def forward(*args, **named):
        mask = named.get("attention_mask")
        if mask is not None and mask.shape[-1] > mask.shape[-2]:
            seen = (mask == 0) if mask.is_floating_point() else mask
            wider = seen | torch.roll(seen, -1, dims=-1) & torch.ones_like(seen).tril(-1)
            named["attention_mask"] = torch.where(wider, 0.0, float("-inf")) if mask.is_floating_point() else wider
        return whole(*args, **named)

    model.model.layers[0].self_attn.forward = forward
    found = failing(model)
    assert any("window" in name for name in found) and not any("batch" in name for name in found)


def test_a_factor_that_is_applied_twice_is_found() -> None:
    model = latent()
    router = model.model.layers[1].mlp
    with changed(router.experts, lambda out: out * router.gate.routed_scaling_factor):
        assert failing(model) == {f"{FACTORS} (routed_scaling_factor) doubled"}


def test_a_factor_that_is_not_applied_is_found() -> None:
    model = latent()
    for layer in model.model.layers[1:]:
        with torch.no_grad():
            layer.mlp.experts.down_proj.zero_()
    found = tried(model)[f"{FACTORS} (routed_scaling_factor) doubled"]
    assert not found.passed and "not applied" in found.detail


def test_experts_that_know_their_number_are_found() -> None:
    model = latent()
    pinned = model.model.layers[1].mlp.experts
    first = pinned.down_proj.detach()[0].clone()

    def pin(_module, _args):
        with torch.no_grad():
            pinned.down_proj[0] = first

    pinned.register_forward_pre_hook(pin)
    assert PERMUTED in failing(model)


def test_a_model_that_sees_no_order_shows_nothing() -> None:
    model = latent()
    with changed(model.model.layers[-1], lambda out: out.mean(1, keepdim=True).expand_as(out).contiguous()):
        assert SWAPPED in failing(model) or "later tokens change nothing before them" in failing(model)


def test_distances() -> None:
    rows = torch.ones(2, 3, 4)
    assert distance(rows, rows) == 0.0
    assert distance(rows * 1.5, rows) == pytest.approx(0.5)
    assert distance(rows[:1], rows) == FAR
    assert distance(rows * float("nan"), rows) == FAR


def drawn(model: torch.nn.Module) -> dict[str, Held]:
    return {each.name: each for each in sampling(Subject(model, "f32", 0, VOCABULARY))}


def test_tokens_are_drawn_by_probability_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sliding()
    found = drawn(model)
    assert len(found) == len(SETTINGS) + 2 and all(each.passed for each in found.values()), found
    assert len(found[DRAWN].tokens) == 3 * DRAWN_STEPS and 0 < found[DRAWN].tolerance < 0.05
    assert f"0 of {DRAWN_STEPS}" not in found[f"{DRAWN}, again"].detail

    def colder(logits: torch.Tensor, how: Sampling, position: int) -> int:
        return draw(logits * 1.6, how, position)
    monkeypatch.setattr("dayzero.runtime.metamorphic.sampling.draw", colder)
    monkeypatch.setattr("dayzero.runtime.metamorphic.sampling.SETTINGS", SETTINGS[:2])
    assert {name.partition(",")[0] for name, each in drawn(model).items() if not each.passed} >= {
        "draws at temperature 1", "draws at temperature 0.5"}


def test_drawn_tokens_of_layouts_are_compared_up_to_near_ties() -> None:
    def held(*tokens: int, margin: float = 1.0) -> list[Held]:
        return [Held(name=DRAWN, observed=0.0, tolerance=0.01, source="", tokens=tokens,
                     margins=(margin,) * len(tokens))]
    one = tuple(range(2 * DRAWN_STEPS))
    other = (*one[:5], 99, *one[6:])
    assert same_tokens(held(*one), held(*one), Layout(tp=2)).passed
    wrong = same_tokens(held(*one), held(*other), Layout(tp=2))
    assert not wrong.passed and wrong.observed == 1
    assert same_tokens(held(*one, margin=0.005), held(*other), Layout(tp=2)).passed
    with pytest.raises(NotPossible, match="nothing was drawn"):
        same_tokens([], held(*one), Layout(tp=2))
