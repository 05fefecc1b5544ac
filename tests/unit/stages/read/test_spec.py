"""ModelSpec from headers and config: dimensions, totals, what counts when they disagree, what is not understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dayzero.ops import cache_bytes_per_token
from dayzero.schema import Column, ModelSpec, TensorGroup, TensorTable, from_json, to_json
from dayzero.stages.read.spec import model_spec

Row = tuple[str, tuple[int, ...], str, list[int], int]
"""Pattern, shape, dtype, layers (empty: none), experts."""
EMPTY = TensorTable(files=(), groups=())
CONFIG: dict[str, Any] = {
    "model_type": "some", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 100, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "torch_dtype": "bfloat16",
}  # fmt: skip


def rows(layers: int = 3) -> list[Row]:
    """A small model with experts in all layers but the first, and one layer more than `layers` says if it is 4."""
    every, sparse = list(range(layers)), list(range(1, layers))
    at = "model.layers.{L}."
    return [
        ("model.embed_tokens.weight", (100, 64), "BF16", [], 0), ("model.norm.weight", (64,), "BF16", [], 0),
        ("lm_head.weight", (100, 64), "BF16", [], 0), (at + "input_layernorm.weight", (64,), "BF16", every, 0),
        (at + "self_attn.q_proj.weight", (128, 64), "BF16", every, 0),
        (at + "self_attn.k_proj.weight", (32, 64), "BF16", every, 0),
        (at + "self_attn.v_proj.weight", (24, 64), "BF16", every, 0),
        (at + "self_attn.o_proj.weight", (64, 96), "BF16", every, 0),
        (at + "self_attn.q_norm.weight", (128,), "BF16", every, 0),
        (at + "self_attn.k_norm.weight", (16,), "BF16", every, 0),
        (at + "mlp.gate_proj.weight", (128, 64), "BF16", [0], 0),
        (at + "mlp.up_proj.weight", (128, 64), "BF16", [0], 0),
        (at + "mlp.down_proj.weight", (64, 128), "BF16", [0], 0), (at + "mlp.gate.weight", (4, 64), "F32", sparse, 0),
        (at + "mlp.experts.{E}.up_proj.weight", (32, 64), "BF16", sparse, 4),
        (at + "mlp.experts.{E}.down_proj.weight", (64, 32), "BF16", sparse, 4),
        (at + "mlp.shared_experts.down_proj.weight", (64, 40), "BF16", sparse, 0),
        ("visual.blocks.{L}.attn.qkv.weight", (30, 10), "BF16", [0, 1, 2, 3, 4], 0),
    ]  # fmt: skip


def table(rows: list[Row]) -> TensorTable:
    groups = []
    for pattern, shape, dtype, layers, experts in rows:
        pairs = [(layer, expert) for layer in layers or [-1] for expert in (range(experts) if experts else [-1])]
        layer, expert = zip(*pairs, strict=True)
        groups.append(TensorGroup(pattern=pattern, shape=shape, dtype=dtype, layer=Column(layer), expert=Column(expert),
                                  file=Column([-1] * len(pairs)), start=Column([0] * len(pairs))))
    return TensorTable(files=(), groups=tuple(groups))


def spec(changed: dict[str, Any] | None = None, layers: int = 3, without: str = "\0",
         more: list[Row] | None = None) -> ModelSpec:
    chosen = [row for row in rows(layers) if without not in row[0]] + (more or [])
    return model_spec("some", {**CONFIG, **(changed or {})}, table(chosen))


def family(model: ModelSpec, pattern: str) -> Any:
    return next(family for family in model.families if pattern in family.pattern)


def test_dimensions_and_totals() -> None:
    model = spec()
    attention, experts = model.attentions["full"], model.feed_forwards["experts"]
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.v_head_dim) == (8, 2, 16, 12)
    assert (experts.experts, experts.top_k, experts.width, experts.input_width) == (4, 2, 32, 64)
    assert (experts.shared_experts, experts.shared_width) == (1, 40)
    assert [layer.feed_forward for layer in model.layers] == ["dense", "experts", "experts"]
    attention_each = 128 * 64 + 32 * 64 + 24 * 64 + 64 * 96 + 128 + 16 + 64
    text = 2 * 6400 + 64 + 3 * attention_each + 3 * 128 * 64 + 2 * (256 + 4 * 2 * 2048 + 2560)
    assert (model.parameters, model.parameters_text) == (text + 5 * 300, text)
    active = text - 2 * 4 * 2 * 2048 // 2
    assert model.parameters_active == {
        "all": active, "no_embedding": active - 6400, "no_embedding_no_head": active - 12800}  # fmt: skip
    assert model.checkpoint_bytes == 2 * model.parameters + 2 * 2 * 256
    assert (model.dtype, model.tied_embeddings, model.mtp_layers) == ("bf16", False, 0)
    assert model.sources["tied"] == "header: there is an output head"


def test_norms_are_cut_with_the_heads_only_if_they_are_as_wide() -> None:
    model = spec()
    assert (family(model, "q_norm").split, family(model, "q_norm").axis) == ("heads", 0)
    assert (family(model, "k_norm").split, family(model, "k_norm").axis) == ("replicated", None)
    assert family(model, "model.norm").role == "norm.final"


def test_layers_after_the_last_are_multi_token_prediction() -> None:
    model = spec(layers=4)
    mtp = [family for family in model.families if family.role.startswith("mtp.")]
    assert model.mtp_layers == 1 and len(model.layers) == 3
    assert {family.layers for family in mtp} == {(3,)}
    assert model.parameters_active == spec().parameters_active
    assert sum(family.experts for family in mtp) == 8


def test_a_part_of_its_own_is_counted_on_from_the_last_layer() -> None:
    model = spec(more=[("mtp.layers.{L}.self_attn.q_proj.weight", (128, 64), "BF16", [0], 0)])
    assert family(model, "mtp.").role == "mtp.attention.q"
    assert (family(model, "mtp.").layers, model.mtp_layers) == ((3,), 1)


def test_headers_count_and_the_config_is_noted_beside() -> None:
    model = spec({"head_dim": 99, "moe_intermediate_size": 48, "n_routed_experts": 5})
    assert model.attentions["full"].head_dim == 16
    assert "config.json: head_dim says 99" in model.sources["head_dim"]
    assert "config.json: moe_intermediate_size says 48" in model.sources["expert_width"]
    assert "config.json: n_routed_experts says 5" in model.sources["experts"]
    assert spec().sources["experts"] == "config.json: n_routed_experts"


def test_one_wrong_tensor_does_not_change_the_model() -> None:
    wrong = [row if "k_proj" not in row[0] else (row[0], row[1], row[2], [0, 2], 0) for row in rows()]
    wrong.append(("model.layers.{L}.self_attn.k_proj.weight", (64, 32), "BF16", [1], 0))
    model = model_spec("some", CONFIG, table(wrong))
    assert model.attentions["full"].head_dim == 16


def test_a_sample_of_the_tensors_leaves_the_rest_to_the_config() -> None:
    sample: list[Row] = [("model.layers.{L}.mlp.experts.{E}.up_proj.weight", (32, 64), "BF16", [2], 1)]
    model = model_spec("some", CONFIG, table(sample))
    assert [layer.feed_forward for layer in model.layers] == ["dense", "experts", "experts"]
    assert (model.feed_forwards["experts"].experts, model.feed_forwards["experts"].top_k) == (4, 2)
    assert {layer.attention for layer in model.layers} == {"full"}


def test_a_missing_head_means_tied_embeddings() -> None:
    model = spec(without="lm_head")
    assert model.tied_embeddings
    assert model.parameters_active["no_embedding"] == model.parameters_active["all"]
    assert model.parameters_active["all"] - model.parameters_active["no_embedding_no_head"] == 6400


def test_a_stored_head_of_a_tied_model_takes_no_part_in_it() -> None:
    model, lean = spec({"tie_word_embeddings": True}), spec(without="lm_head")
    assert family(model, "lm_head").role == "unused.head"
    assert (model.parameters, model.parameters_text) == (lean.parameters, lean.parameters_text)
    assert model.parameters_active == lean.parameters_active
    assert model.checkpoint_bytes == lean.checkpoint_bytes + 2 * 6400


def test_a_fused_latent_projection_holds_the_compressed_query_too() -> None:
    # Widths of DeepSeek-V3: query rank 1536, key/value rank 512, positional key 64.
    config = {**CONFIG, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 12}
    at = "model.layers.{L}.self_attn."
    fused: list[Row] = [(at + "fused_qkv_a_proj_with_mqa.weight", (1536 + 512 + 64, 64), "BF16", [0, 1, 2], 0),
                        (at + "q_b_proj.weight", (8 * 76, 1536), "BF16", [0, 1, 2], 0),
                        (at + "kv_b_proj.weight", (8 * 24, 512), "BF16", [0, 1, 2], 0)]
    model = model_spec("some", config, table([row for row in rows() if "self_attn" not in row[0]] + fused))
    attention = model.attentions["latent"]
    assert (attention.rope_dim, attention.kv_rank, attention.q_rank) == (64, 512, 1536)
    assert model.sources["rope_dim"] == "config.json: qk_rope_head_dim"


@pytest.mark.parametrize(("changed", "kv_heads", "source"), [
    ({}, 2, "header: model.layers.{L}.self_attn.query_key_value.weight"),
    ({"multi_query": True}, 1, "config.json: multi_query"),
    ({"multi_query": True, "num_kv_heads": 8}, 1, "config.json: multi_query"),
    ({"multi_query": True, "num_kv_heads": 4}, 4, "config.json: num_kv_heads"),
])  # fmt: skip
def test_key_value_heads_of_a_fused_projection(changed: dict[str, Any], kv_heads: int, source: str) -> None:
    config = {key: value for key, value in {**CONFIG, **changed}.items() if key != "num_key_value_heads"}
    fused: Row = ("model.layers.{L}.self_attn.query_key_value.weight", ((8 + 2 * 2) * 8, 64), "BF16", [0, 1, 2], 0)
    model = model_spec("some", config, table([row for row in rows() if "self_attn" not in row[0]] + [fused]))
    assert (model.attentions["full"].kv_heads, model.sources["kv_heads"]) == (kv_heads, source)


def test_a_state_space_is_a_linear_attention_as_wide_as_its_state() -> None:
    # Nemotron-H-8B's config: 128 heads of 64, states of 128, 8 groups; its in_proj has 18,560 rows.
    config = {"model_type": "some", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32,
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072, "intermediate_size": 21504,
              "hybrid_override_pattern": "M-M*", "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128,
              "n_groups": 8, "conv_kernel": 4, "tie_word_embeddings": False}  # fmt: skip
    model = model_spec("some", config, EMPTY)
    state = model.attentions["linear"]
    assert (state.heads, state.kv_heads, state.head_dim, state.v_head_dim) == (128, 8, 128, 64)
    assert model.sources["linear_head_dim"] == "config.json: ssm_state_size"
    assert family(model, "mixer.in_proj").shape == (18560, 4096) and family(model, "mixer.conv1d").shape[0] == 10240
    assert [layer.feed_forward for layer in model.layers] == ["none", "dense", "none", "none"]
    assert family(model, "up_proj").layers == (1,) and model.unknowns == ()


def test_a_state_whose_heads_are_not_stated_is_listed() -> None:
    # Jamba's config: inner width 2 x hidden, states of 16, no heads.
    config = {**CONFIG, "layers_block_type": ["mamba", "mamba", "attention"], "mamba_d_state": 16, "mamba_expand": 2}
    model = model_spec("some", config, EMPTY)
    state = model.attentions["linear"]
    assert state.heads * state.head_dim * state.v_head_dim == 2 * 64 * 16
    assert any("heads of its state not stated" in text for text in model.unknowns)
    assert any("estimate of state_space" in text for text in model.unknowns)


def test_a_dense_width_that_is_not_stated() -> None:
    config = {"n_embed": 64, "n_layer": 2, "num_attention_heads": 4, "vocab_size": 100}
    model = model_spec("some", config, EMPTY)
    assert (model.feed_forwards["dense"].width, model.sources["dense_width"]) == (256, "default: 4 x hidden size")
    assert family(model, "fc_in").shape == (256, 64)


def test_an_estimate_lists_the_parts_that_it_leaves_out() -> None:
    config = {**CONFIG, "vision_config": {"depth": 3}, "num_nextn_predict_layers": 1, "generation_config": {"x": 1}}
    assert [text for text in model_spec("some", config, EMPTY).unknowns if text.startswith("estimate")] == [
        "estimate: what vision_config describes is left out",
        "estimate: what num_nextn_predict_layers describes is left out"]  # fmt: skip
    assert not any(text.startswith("estimate") for text in model_spec("some", config, table(rows())).unknowns)


def test_tensors_and_keys_that_nothing_understands_are_listed() -> None:
    model = spec({"strange_width": 7}, more=[("model.layers.{L}.strange.weight", (7, 64), "BF16", [0], 0)])
    assert model.unknowns == ("strange_width", "tensor model.layers.{L}.strange.weight")
    assert family(model, "strange").role == "other"


def test_a_config_alone_is_estimated_and_says_so() -> None:
    model = model_spec("some", CONFIG, EMPTY)
    assert model.sources["families"].startswith("estimate")
    assert model.sources["head_dim"] == "default: hidden size / heads"
    assert {family.role.split(".")[0] for family in model.families} == {
        "embedding", "head", "norm", "attention", "mlp", "router", "experts", "shared_experts"}  # fmt: skip
    assert any("tied embeddings are not stated" in text for text in model.unknowns) and not model.tied_embeddings


@pytest.mark.parametrize(("word", "dtype", "unknown"), [("half", "F16", False), ("torch.float32", "F32", False),
                                                        ("float7", "BF16", True), ("float8_e4m3fn", "BF16", True)])
def test_a_config_alone_states_its_dtype(word: str, dtype: str, unknown: bool) -> None:
    model = model_spec("some", {**CONFIG, "torch_dtype": word}, EMPTY)
    assert family(model, "embed_tokens").dtype == dtype
    assert (f"dtype: {word} (taken for bf16)" in model.unknowns) is unknown


@pytest.mark.parametrize(("quantization", "scheme"), [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "fp8"),
    ({"format": "float-quantized", "ignore": ["re:.*self_attn.*"], "modules_to_not_convert": []}, "fp8"),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "mxfp4"),
    ({"format": "pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}}, "int4"),
    ({"quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
])  # fmt: skip
def test_a_config_alone_states_its_quantisation(quantization: dict[str, Any], scheme: str) -> None:
    wide = {**CONFIG, "hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256}
    model = model_spec("some", {**wide, "quantization_config": quantization}, EMPTY)
    plain = model_spec("some", wide, EMPTY)
    assert family(model, "experts.{E}.up_proj").scheme == scheme
    assert family(model, "embed_tokens").scheme == "bf16"
    assert model.parameters == plain.parameters
    assert model.checkpoint_bytes < plain.checkpoint_bytes
    ignored = "modules_to_not_convert" in quantization
    assert (family(model, "q_proj").scheme == "bf16") == (ignored or scheme == "mxfp4")


def test_what_an_estimate_lacks_is_listed() -> None:
    config = {**CONFIG, "layer_types": ["linear_attention"] * 3, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
              "linear_key_head_dim": 8, "linear_value_head_dim": 8}  # fmt: skip
    model = model_spec("some", config, EMPTY)
    assert any("conv_kernel" in text for text in model.unknowns)


def test_round_trip() -> None:
    model = spec()
    assert from_json(to_json(model), ModelSpec) == model


def test_a_real_release(real_model: Path) -> None:
    """SmolLM2-135M: 134,515,008 parameters (its hub page), 9 heads, 3 KV heads, tied embeddings."""
    from dayzero.stages.read import read

    model = read(real_model, metadata_only=True).model
    assert (model.parameters, model.tied_embeddings, model.unknowns) == (134_515_008, True, ())
    assert (model.attentions["full"].heads, model.attentions["full"].kv_heads) == (9, 3)


def test_experts_one_below_the_other_have_the_stated_width() -> None:
    """dbrx-base, narrower: w1, v1 and w2 are all stored [experts * width, input]."""
    below: list[Row] = [(f"model.layers.{{L}}.mlp.experts.mlp.{name}", (4 * 32, 64), "BF16", [1, 2], 0)
                        for name in ("w1", "v1", "w2")]
    model = spec(without="experts.{E}", more=below)
    block = model.feed_forwards["experts"]
    assert (block.experts, block.width, block.input_width) == (4, 32, 64)
    assert model.sources["expert_width"] == "config.json: moe_intermediate_size"


NEMOTRON = {  # Nemotron-3-Nano-30B-A3B
    "model_type": "nemotron_h", "hidden_size": 2688, "vocab_size": 131072, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1856, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "expand": 2, "mlp_hidden_act": "relu2", "tie_word_embeddings": False,
}  # fmt: skip
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


@pytest.mark.parametrize("words", [
    {"M": "linear_attention", "E": "moe", "*": "full_attention"}, {"M": "mamba", "E": "moe", "*": "attention"}])
def test_a_list_of_layers_with_one_block_each_is_what_its_letters_say(words: dict[str, str]) -> None:
    # transformers builds 31,577,937,344 parameters from either config on the meta device
    letters = model_spec("nano", {**NEMOTRON, "hybrid_override_pattern": PATTERN, "num_hidden_layers": 52}, table([]))
    listed = model_spec("nano", {**NEMOTRON, "layers_block_type": [words[letter] for letter in PATTERN]}, table([]))
    assert listed.parameters == letters.parameters == 31_577_937_344
    assert listed.layers == letters.layers
    assert [layer.attention for layer in listed.layers].count("none") == 23
    assert not listed.unknowns


def test_stacked_experts_are_known_by_their_shape_where_their_name_says_nothing() -> None:
    # ibm-granite/granite-3.0-3b-a800m-base: block_sparse_moe.input_linear [40, 1024, 1536]; 800M active, its card says
    config = {"model_type": "granitemoe", "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 32,
              "num_attention_heads": 24, "num_key_value_heads": 8, "num_local_experts": 40, "num_experts_per_tok": 8,
              "vocab_size": 49155, "tie_word_embeddings": True}
    layers, at = list(range(32)), "model.layers.{L}."
    shapes = {"self_attn.q_proj": (1536, 1536), "self_attn.k_proj": (512, 1536), "self_attn.v_proj": (512, 1536),
              "self_attn.o_proj": (1536, 1536), "input_layernorm": (1536,), "post_attention_layernorm": (1536,),
              "block_sparse_moe.input_linear": (40, 1024, 1536), "block_sparse_moe.output_linear": (40, 1536, 512),
              "block_sparse_moe.router.layer": (40, 1536)}  # fmt: skip
    rows_ = [("model.embed_tokens.weight", (49155, 1536), "BF16", [], 0), ("model.norm.weight", (1536,), "BF16", [], 0),
             *((f"{at}{name}.weight", shape, "BF16", layers, 0) for name, shape in shapes.items())]
    model = model_spec("granite", config, table(rows_))
    assert {layer.feed_forward for layer in model.layers} == {"experts"}
    assert model.parameters == 3_298_793_472
    assert model.parameters_active["no_embedding"] == 882_874_368
    stacked = next(family for family in model.families if "input_linear" in family.pattern)
    assert (stacked.role, stacked.experts, stacked.split) == ("experts.gate_up", 40, "experts")


def test_a_layer_that_mixes_tokens_twice_has_two_caches() -> None:
    # LongCat-Flash: 560 B parameters and about 27 B active, its technical report says (arXiv:2509.01322); two latent
    # caches of 576 values in each of 28 layers (transformers, models/longcat_flash)
    config = {"model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
              "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "q_lora_rank": 1536, "kv_lora_rank": 512,
              "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 512,
              "zero_expert_num": 256, "moe_topk": 12, "vocab_size": 131072}  # fmt: skip
    model = model_spec("longcat", config, table([]))
    assert model.parameters == pytest.approx(560e9, rel=0.005)
    assert model.parameters_active["no_embedding"] == pytest.approx(27e9, rel=0.01)
    assert {kind.times for kind in model.attentions.values()} == {2}
    assert sum(cache_bytes_per_token(model.attentions[layer.attention]) for layer in model.layers) == 28 * 2 * 576 * 2


def test_the_files_show_how_often_a_layer_mixes_tokens() -> None:
    layers = [0, 1, 2]
    twice = [(f"model.layers.{{L}}.self_attn.{part}.{name}.weight", (64, 64), "BF16", layers, 0)
             for part in (0, 1) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    beside = [*twice[:4], ("model.layers.{L}.mamba.out_proj.weight", (64, 64), "BF16", layers, 0)]
    config = {**CONFIG, "num_hidden_layers": 3}
    assert model_spec("some", config, table(twice)).attentions["full"].times == 2
    assert {kind.times for kind in model_spec("some", config, table(beside)).attentions.values()} == {1}
