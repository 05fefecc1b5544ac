"""Roles by name alone: what a weight is, what of it is cut, and what its suffix says."""

from __future__ import annotations

import pytest

from dayzero.stages.read.roles import role_of

LAYER = "model.layers.{L}."


@pytest.mark.parametrize(("name", "role", "split", "axis"), [
    ("model.embed_tokens.weight", "embedding", "vocab", 0),
    ("transformer.wte.weight", "embedding", "vocab", 0),
    ("lm_head.weight", "head", "vocab", 0),
    ("output.weight", "head", "vocab", 0),
    (LAYER + "self_attn.q_proj.weight", "attention.q", "heads", 0),
    (LAYER + "attention.wq.weight", "attention.q", "heads", 0),
    (LAYER + "self_attn.k_proj.weight", "attention.k", "kv_heads", 0),
    (LAYER + "self_attn.v_proj.bias", "attention.v", "kv_heads", 0),
    (LAYER + "self_attention.query_key_value.weight", "attention.qkv", "heads", 0),
    (LAYER + "self_attention.dense.weight", "attention.o", "heads", 1),
    (LAYER + "attention.wo.weight", "attention.o", "heads", 1),
    (LAYER + "linear_attn.out_proj.weight", "attention.o", "heads", 1),
    (LAYER + "self_attn.q_a_proj.weight", "attention.q_down", "replicated", None),
    (LAYER + "self_attn.kv_a_proj_with_mqa.weight_scale_inv", "attention.kv_down", "replicated", None),
    (LAYER + "self_attn.kv_b_proj.weight", "attention.kv_up", "heads", 0),
    (LAYER + "self_attn.g_proj.weight", "attention.gate", "heads", 0),
    (LAYER + "self_attn.sinks", "attention.sink", "heads", 0),
    (LAYER + "self_attn.A_log", "linear.decay", "heads", 0),
    (LAYER + "self_attn.q_conv1d.weight", "linear.conv", "heads", 0),
    (LAYER + "linear_attn.in_proj_qkvz.weight", "linear.in", "heads", 0),
    (LAYER + "self_attn.indexer.wq_b.weight", "indexer", "replicated", None),
    (LAYER + "self_attn.indexer.k_norm.weight", "indexer", "replicated", None),
    (LAYER + "mlp.gate_proj.weight", "mlp.gate", "width", 0),
    (LAYER + "feed_forward.w2.weight", "mlp.down", "width", 1),
    (LAYER + "mlp.dense_h_to_4h.weight", "mlp.up", "width", 0),
    (LAYER + "mlp.c_proj.weight", "mlp.down", "width", 1),
    (LAYER + "mlp.gate_up_proj.weight", "mlp.gate_up", "width", 0),
    (LAYER + "mlp.gate.weight", "router", "replicated", None),
    (LAYER + "mlp.gate.e_score_correction_bias", "router", "replicated", None),
    (LAYER + "block_sparse_moe.gate.weight", "router", "replicated", None),
    (LAYER + "mlp.router.bias", "router", "replicated", None),
    (LAYER + "mlp.experts.{E}.up_proj.weight", "experts.up", "experts", 0),
    (LAYER + "block_sparse_moe.experts.{E}.w2.weight_packed", "experts.down", "experts", 1),
    (LAYER + "mlp.experts.gate_up_proj", "experts.gate_up", "experts", 0),
    (LAYER + "mlp.experts.down_proj_bias", "experts.down", "experts", 1),
    (LAYER + "mlp.shared_experts.down_proj.weight", "shared_experts.down", "shared_width", 1),
    (LAYER + "mlp.shared_expert.gate_proj.weight", "shared_experts.gate", "shared_width", 0),
    (LAYER + "mlp.shared_expert_gate.weight", "shared_experts.router", "replicated", None),
    (LAYER + "block_sparse_moe.routed_expert_down_proj.weight", "latent_experts.down", "replicated", None),
    (LAYER + "input_layernorm.weight", "norm", "replicated", None),
    ("transformer.ln_f.weight", "norm", "replicated", None),
    ("transformer.word_embeddings_layernorm.weight", "embedding.norm", "replicated", None),
    (LAYER + "eh_proj.weight", "mtp.projection", "replicated", None),
    ("mtp.layers.{L}.self_attn.q_proj.weight", "mtp.attention.q", "heads", 0),
    ("vision_tower.encoder.blocks.{L}.wqkv.weight", "vision", "replicated", None),
    ("model.visual.merger.linear_fc1.weight", "vision", "replicated", None),
    ("mm_projector.proj.{L}.weight", "projector", "replicated", None),
    (LAYER + "self_attn.rotary_emb.inv_freq", "buffer", "replicated", None),
    (LAYER + "self_attn.never_seen.weight", "other", "replicated", None),
])  # fmt: skip
def test_roles(name: str, role: str, split: str, axis: int | None) -> None:
    found = role_of(name)
    assert (found.name, found.split, found.axis) == (role, split, axis)


@pytest.mark.parametrize(("end", "form"), [
    (".weight", "weight"), (".bias", "bias"), (".weight_packed", "packed"), (".qweight", "packed_transposed"),
    (".weight_scale_inv", "scale"), (".weight_scale", "scale"), (".scales", "scale"), ("_scales", "scale"),
    (".weight_scale_2", "global_scale"), (".input_scale", "global_scale"), (".qzeros", "zero_point"),
    (".g_idx", "buffer"), (".weight_shape", "buffer"), ("_blocks", "packed"), ("_bias", "bias"), ("", "weight"),
    (".weight.absmax", "scale"), (".weight.quant_state.bitsandbytes__nf4", "buffer"),
])  # fmt: skip
def test_a_weight_and_what_belongs_to_it_have_one_stem(end: str, form: str) -> None:
    stem = LAYER + "mlp.experts.gate_up_proj"
    found = role_of(stem + end)
    assert (found.form, found.stem, found.name) == (form, stem, "experts.gate_up")


@pytest.mark.parametrize(("pattern", "role"), [
    # names of transformers' models: gemma4, apertus, deepseek_v4, lfm2, jamba, bert, diffllama, llava_next, mistral
    ("model.layers.{L}.self_attn.q_proj.linear.weight", "attention.q"),
    ("model.layers.{L}.per_layer_input_gate.weight", "per_layer"),
    ("model.layers.{L}.mlp.act_fn.alpha_p", "mlp.activation"),
    ("model.layers.{L}.self_attn.o_a_proj.weight", "attention.o_down"),
    ("model.layers.{L}.conv.conv.weight", "linear.conv"),
    ("model.layers.{L}.mamba.x_proj.weight", "linear.step_down"),
    ("bert.encoder.layer.{L}.intermediate.dense.weight", "mlp.up"),
    ("bert.encoder.layer.{L}.output.dense.weight", "mlp.down"),
    ("bert.encoder.layer.{L}.attention.output.dense.weight", "attention.o"),
    ("model.layers.{L}.self_attn.lambda_q1", "attention.lambda"),
    ("model.image_newline", "projector"),
    ("model.multi_modal_projector.weight", "projector"),
    ("layers.{L}.gate.weight", "router"),
    ("layers.{L}.mlp.shared_mlp.input_linear.weight", "shared_experts.gate_up"),
])  # fmt: skip
def test_roles_of_other_architectures(pattern: str, role: str) -> None:
    assert role_of(pattern).name == role
