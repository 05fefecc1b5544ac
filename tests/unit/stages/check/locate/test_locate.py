"""Faults in runs that are recorded: the module, what the error looks like, and what explains it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import tiny

from dayzero.errors import NotPossible, ReleaseError, StoreError, UsageError
from dayzero.runtime.recording import record
from dayzero.runtime.recording.rank import cache_of
from dayzero.runtime.substitution.reference import reference
from dayzero.schema.located import Errors, Location
from dayzero.stages.check.locate import locate, words
from dayzero.stages.check.locate.bisect import bisect
from dayzero.stages.check.locate.errors import FAR, Tally
from dayzero.stages.check.locate.judging import tolerances
from dayzero.stages.check.locate.layers import locate_layers

Fault = Callable[[Any], None]
_ROUTED = tiny.DENSE | {
    "moe_intermediate_size": 32, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 0, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "num_hidden_layers": 2, "num_key_value_heads": 4}
_TWO_KINDS = tiny.DENSE | {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"] * 2,
                           "sliding_window": 12, "query_pre_attn_scalar": 16}
SEQUENCES = (range(40, 66), range(210, 229))


def none(model: Any) -> None:
    pass


@pytest.fixture(scope="module")
def dense(tmp_path_factory: Any) -> Any:
    return tiny.dense(tmp_path_factory.mktemp("dense") / "model")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: Any) -> Any:
    return tiny.experts(tmp_path_factory.mktemp("experts") / "model")


def dumped(root: Path, folder: Path, fault: Fault = none, *, dtype: str = "f32", decode: int = 0) -> Path:
    """Every sequence: a prefill, then tokens one by one with a cache."""
    with reference(root, dtype) as made, torch.no_grad():
        model: Any = made.watched
        fault(model)
        with record(model, folder):
            for tokens in SEQUENCES:
                ids = torch.tensor([list(tokens)])
                end = ids.shape[1] - decode
                output = model(input_ids=ids[:, :end], use_cache=decode > 0)
                for at in range(end, ids.shape[1]):
                    output = model(input_ids=ids[:, at:at + 1], use_cache=True, **cache_of(output))
    return folder


def found(root: Path, folder: Path, fault: Fault, **options: Any) -> Any:
    location = locate(root, dumped(root, folder, fault, **options))
    assert location.first is not None
    return location.first


def layer(model: Any, number: int) -> Any:
    return model.model.layers[number]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_right_run_is_not_blamed(experts: Path, tmp_path: Path, dtype: str) -> None:
    location = locate(experts, dumped(experts, tmp_path / "dump", dtype=dtype, decode=3))
    assert location.first is None and not location.guilty and len(location.places) > 80
    told = words.to_contract(location)
    assert told["passed"] and told["first_divergence"] is None and told["pattern"] is None


def test_a_weight_in_another_order(dense: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        weight = layer(model, 1).self_attn.q_proj.weight
        weight.copy_(weight.roll(32, 0))
    first = found(dense, tmp_path / "dump", fault, dtype="bf16")
    assert (first.layer, first.module, first.op) == (1, "model.layers.1.self_attn.q_proj", "linear")
    assert "halves" in first.patterns[0].words and "halves exchanged" in first.cause.name
    assert first.cause.explained > 0.99


def test_a_softmax_scale_that_no_one_would_guess(dense: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        layer(model, 2).self_attn.scaling = 0.337
    first = found(dense, tmp_path / "dump", fault)
    assert (first.layer, first.module, first.op) == (2, "model.layers.2.self_attn", "attention")
    assert "scaling" in first.cause.name and "0.33" in first.cause.words


def test_a_key_of_the_config_left_at_its_default(tmp_path: Path) -> None:
    root = tiny.dense(tmp_path / "model", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})

    def fault(model: Any) -> None:
        model.model.rotary_emb.inv_freq.copy_(1 / 10000 ** (torch.arange(0, 16, 2) / 16))
    first = found(root, tmp_path / "dump", fault)
    assert (first.layer, first.module) == (None, "model.rotary_emb")
    assert first.cause.name == "config: rope_parameters.rope_theta" and "default" in first.cause.words


def test_a_rotary_table_of_one_kind_of_layer(tmp_path: Path) -> None:
    """Asked for by a text, in any order: each kind's table is its own place."""
    root = tiny._save(tmp_path / "model", "gemma3_text", _TWO_KINDS, 0, "float32")

    def fault(model: Any) -> None:
        rotary = model.model.rotary_emb
        rotary.full_attention_inv_freq = rotary.sliding_attention_inv_freq
    location = locate(root, dumped(root, tmp_path / "dump", fault))
    assert {(each.module, each.slot) for each in location.guilty} == {
        ("model.rotary_emb", f"{part}@full_attention") for part in (0, 1)}
    assert any(each.slot == "0@sliding_attention" and not each.guilty for each in location.places)
    assert location.first is not None and location.first.cause is not None
    assert "theta" in location.first.cause.words


def test_a_token_of_the_future_in_the_prefill_alone(dense: Path, tmp_path: Path) -> None:
    """A step of decoding cannot see what is not there yet: the mask is wrong only where it matters."""
    def fault(model: Any) -> None:
        attention = layer(model, 1).self_attn

        def leak(module: Any, args: Any, named: Any) -> Any:
            mask = named["attention_mask"]
            if mask is not None and mask.shape[-2] > 1:
                at = torch.arange(mask.shape[-1])
                named["attention_mask"] = mask.masked_fill(at == at[:, None] + 1, 0.0)
            return args, named
        attention.register_forward_pre_hook(leak, with_kwargs=True)
    first = found(dense, tmp_path / "dump", fault, decode=4)
    assert first.module == "model.layers.1.self_attn" and first.cause.name == "mask: one token ahead"


def test_weights_of_two_experts_exchanged(experts: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        for weight in layer(model, 3).mlp.experts.parameters():
            weight[[1, 6]] = weight[[6, 1]]
    first = found(experts, tmp_path / "dump", fault)
    assert first.module == "model.layers.3.mlp.experts" and first.op == "experts"
    assert first.patterns[0].name == "experts" and "1 and 6" in first.patterns[0].words
    assert "experts 1 and 6 exchanged" in first.cause.words


def test_a_router_that_chooses_otherwise_is_blamed_and_its_experts_are_not(experts: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        layer(model, 0).mlp.gate.weight[3] *= 1.5
    location = locate(experts, dumped(experts, tmp_path / "dump", fault), causes=False)
    assert {each.module for each in location.guilty} == {"model.layers.0.mlp.gate"}
    assert location.located[0].tried == 0 and "no change was tried" in _shown(location)
    assert any(each.error.flips for each in location.guilty)


def test_one_value_that_is_no_number(dense: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        def poison(module: Any, args: Any, output: Any) -> None:
            if output.shape[1] > 1:
                output[0, 4, 7] = float("nan")
        layer(model, 2).mlp.down_proj.register_forward_hook(poison)
    first = found(dense, tmp_path / "dump", fault)
    assert first.module == "model.layers.2.mlp.down_proj" and first.patterns[0].name == "no numbers"
    assert first.place.error.overall == FAR


def test_a_layer_that_is_skipped(dense: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        layer(model, 3).forward = lambda hidden_states, **_: hidden_states
    first = found(dense, tmp_path / "dump", fault)
    assert (first.module, first.cause.name) == ("model.layers.3", "skipped")


def test_a_dump_that_is_none(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        locate(dense, tmp_path)
    with reference(dense) as made, torch.no_grad(), record(made.watched, tmp_path / "few", mode="statistics"):
        made.watched(input_ids=torch.tensor([[3, 4]]))
    with pytest.raises(NotPossible, match="statistics"):
        locate(dense, tmp_path / "few")


def test_layers_alone_against_a_dump_and_without_one(experts: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        weight = layer(model, 2).mlp.experts.down_proj
        weight.copy_(weight.roll(1, 0))
    folder = dumped(experts, tmp_path / "dump", fault)
    one = locate_layers(experts, folder, "2", causes=False)
    assert {each.module for each in one.guilty} == {"model.layers.2.mlp.experts"}
    kinds = locate_layers(experts, None, "kinds", dtype="bf16", causes=False)
    assert not kinds.guilty and len(kinds.places) > 15 and "layers 0 (as 4 layers are)" in kinds.reference


@pytest.mark.parametrize("which", ["9", "-1", "some", ""])
def test_layers_that_there_are_not(dense: Path, which: str) -> None:
    with pytest.raises(UsageError):
        locate_layers(dense, None, which)


def test_the_setting_that_makes_a_run_wrong(dense: Path, monkeypatch: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    right = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def wrong(module: Any, *args: Any, **named: Any) -> Any:
        return right(module, *args, **{**named, "scaling": named["scaling"] * (1 + (module.layer_idx == 1))})
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", wrong)
    result = bisect(tiny.release(dense), {"batch": "2", "attention": "sdpa", "decode": "2"})
    assert result.blamed == {"attention": "sdpa"} and not result.plain_is_wrong
    assert result.location is not None and result.location.first is not None
    assert result.location.first.module == "model.layers.1.self_attn"
    assert "doubled" in result.location.first.causes[0].words
    assert [each.settings for each in result.tried][:2] == [{}, {"batch": "2", "attention": "sdpa", "decode": "2"}]


def test_settings_that_make_no_difference(dense: Path) -> None:
    result = bisect(tiny.release(dense), {"chunk": "7", "batch": "2"})
    assert not result.blamed and len(result.tried) == 2 and result.location is None


def test_a_setting_that_cannot_be_run_is_no_setting_that_makes_no_difference(dense: Path) -> None:
    result = bisect(tiny.release(dense), {"compile": "no_such_backend", "batch": "2"})
    assert not result.blamed and result.not_run == {"compile": "no_such_backend"}


def test_errors_add_up_over_sequences_and_count_what_is_no_number() -> None:
    tally = Tally()
    tally.add(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]]))
    tally.add(np.array([[3.0, 5.0]]), np.array([[3.0, 4.0]]))
    assert tally.errors.overall == pytest.approx(1 / 30**0.5)  # squares of 1 2 3 4
    assert tally.errors.row == pytest.approx(1 / 5)
    assert tally.errors.channel == pytest.approx((1 / 20) ** 0.5)
    assert tally.errors.scale == pytest.approx(4 / 30)
    both = Tally()
    both.add(np.array([[np.nan, np.inf]]), np.array([[np.nan, np.inf]]))
    assert both.errors.overall == 0
    both.add(np.array([[np.nan]]), np.array([[1.0]]))
    assert both.errors.overall == FAR


def test_tolerances_follow_noise_and_have_a_floor() -> None:
    noise = Errors(overall=0.01, row=0.02, channel=0.02, scale=0.001)
    assert tolerances(noise, "bf16").overall == 0.02
    nothing = Errors(overall=0, row=0, channel=0)
    assert tolerances(nothing, "bf16").overall == 2**-8
    assert tolerances(nothing, "f32").overall == pytest.approx(2**-18)
    assert tolerances(nothing, "f32").flips == 0


def _shown(location: Location) -> str:
    from rich.console import Console

    console = Console(record=True, width=160, file=io.StringIO())
    console.print(words.overview(location))
    return console.export_text()


def test_what_is_told(dense: Path, tmp_path: Path) -> None:
    def fault(model: Any) -> None:
        layer(model, 0).mlp.gate_proj.weight.copy_(layer(model, 0).mlp.up_proj.weight)
    location: Location = locate(dense, dumped(dense, tmp_path / "dump", fault))
    told = words.to_contract(location)
    assert told["first_divergence"] == {"layer": 0, "module": "model.layers.0.mlp.gate_proj", "op": "linear",
                                        "place": "model.layers.0.mlp.gate_proj output 0"}
    assert told["suspicion"]["name"] == "weight: exchanged with one beside it" and told["suspicion"]["explained"] > 0.99
    text = _shown(location)
    assert "layer 0, model.layers.0.mlp.gate_proj: linear" in text and "explains 100.0%" in text


def test_a_dump_of_another_model_and_a_folder_without_a_release(dense: Path, experts: Path, tmp_path: Path) -> None:
    wide = tiny.dense(tmp_path / "wide", hidden_size=96)
    with pytest.raises(NotPossible, match="another model"):
        locate(dense, dumped(wide, tmp_path / "dump"))
    with pytest.raises(ReleaseError, match=r"no config\.json"):
        locate(tmp_path / "nowhere", tmp_path / "dump")


def test_a_small_change_of_a_routers_bias_shows_in_what_is_chosen_alone(tmp_path: Path) -> None:
    """No value of such a run is wrong: it is judged by the rows with other experts."""
    root = tiny._save(tmp_path / "model", "deepseek_v3", _ROUTED, 0, "float32")

    def fault(model: Any) -> None:
        layer(model, 1).mlp.gate.e_score_correction_bias.copy_(torch.linspace(0.0, 0.2, 16))
    location = locate(root, dumped(root, tmp_path / "dump", fault), causes=False)
    assert {(each.module, each.slot) for each in location.guilty} == {("model.layers.1.mlp.gate", "indices")}
    assert location.first is not None and location.first.op == "routing"
    assert location.first.place.error.flips > 5
