"""The whole stage on small architectures of the installed library, compared with hand-computed counts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from logging import Handler, LogRecord
from math import prod

import pytest

from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.schema import OpGraph, from_json, to_json
from dayzero.stages.trace import trace

HIDDEN, WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 48, 80, 6, 2, 8, 100, 2
ATTENTION = HIDDEN * HEAD_DIM * (HEADS + 2 * KV_HEADS) + HEADS * HEAD_DIM * HIDDEN
LINEAR = LAYERS * (ATTENTION + 3 * HIDDEN * WIDTH) + VOCAB * HIDDEN


def flops(graph: OpGraph, phase: str, *kinds: str) -> int:
    return sum(call.flops for call in graph.operators if call.phase == phase and call.kind in kinds)


def test_operations_of_a_dense_model_in_closed_form(make, configs) -> None:
    batch, tokens, context = 2, 5, 7
    graph = trace(make(configs["dense"]), batch=batch, tokens=tokens, context=context)
    assert graph.parameters == LINEAR + (2 * LAYERS + 1) * HIDDEN  # the tied embedding is the head: counted once
    assert flops(graph, "prefill", "linear") == 2 * LINEAR * batch * tokens
    assert flops(graph, "decode", "linear") == 2 * LINEAR * batch
    scores_and_values = 2 * 2 * LAYERS * batch * HEADS * HEAD_DIM
    assert flops(graph, "prefill", "attention") == scores_and_values * tokens * tokens
    assert flops(graph, "decode", "attention") == scores_and_values * (context + 1)
    prefill, decode = graph.phases["prefill"], graph.phases["decode"]
    assert prefill.flops == flops(graph, "prefill", "linear", "attention")
    assert (prefill.batch, prefill.tokens, prefill.context) == (2, 5, 0)
    assert (decode.batch, decode.tokens, decode.context) == (2, 1, 7)
    assert decode.operators == sum(call.count for call in graph.operators if call.phase == "decode")
    assert not graph.missing


def test_a_call_says_where_it_ran_and_what_it_cost(make, configs) -> None:
    graph = trace(make(configs["dense"]), tokens=5)
    [call] = [call for call in graph.operators if call.phase == "prefill" and call.op == "aten.mm"
              and call.module == "model.layers.1.mlp.down_proj"]
    assert (call.module_type, call.kind, call.dtype, call.count) == ("Linear", "linear", "bf16", 1)
    assert call.inputs == ((5, WIDTH), (WIDTH, HIDDEN)) and call.outputs == ((5, HIDDEN),)
    assert call.flops == 2 * 5 * WIDTH * HIDDEN
    assert call.bytes == 2 * (5 * WIDTH + WIDTH * HIDDEN + 5 * HIDDEN)


def test_kinds_of_a_dense_model(make, configs) -> None:
    graph = trace(make(configs["dense"]))
    kinds = {(call.module.rpartition(".")[2], call.op): call.kind for call in graph.operators}
    assert kinds["q_proj", "aten.mm"] == "linear"
    assert kinds["self_attn", "aten.scaled_dot_product_attention"] == "attention"
    assert kinds["self_attn", "aten.neg"] == "rotary"  # the half that is rotated, in a function of the attention
    assert kinds["rotary_emb", "aten.cos"] == "rotary"
    assert kinds["input_layernorm", "aten.rsqrt"] == "norm"
    assert kinds["embed_tokens", "aten.embedding"] == "embedding"
    assert kinds["act_fn", "aten.silu"] == "activation"
    assert kinds["1", "aten.add"] == "elementwise"  # the residual stream
    assert kinds["self_attn", "aten.cat"] in ("copy", "rotary", "cache")
    assert not [call for call in graph.operators if call.kind == "other"]
    assert all(call.flops == call.bytes == 0 for call in graph.operators if call.kind == "view")


def test_operations_of_a_model_with_experts(make, configs) -> None:
    tokens, top_k, experts, width = 5, 2, 8, 16
    graph = trace(make(configs["experts"]), tokens=tokens)
    assert flops(graph, "prefill", "experts") == 2 * tokens * top_k * 3 * HIDDEN * width
    assert flops(graph, "prefill", "router") == 2 * tokens * HIDDEN * experts
    linear = LAYERS * ATTENTION + 3 * HIDDEN * WIDTH + VOCAB * HIDDEN
    assert flops(graph, "prefill", "linear") == 2 * tokens * linear
    weights = [call for call in graph.operators if call.phase == "decode" and call.op == "aten._grouped_mm"]
    rows_and_offsets = sum(2 * (prod(call.inputs[0]) + prod(call.outputs[0])) + 4 * experts for call in weights)
    assert sum(call.bytes for call in weights) == 2 * top_k * 3 * HIDDEN * width + rows_and_offsets
    assert [(kind.kind, kind.layers) for kind in graph.layer_kinds] == [
        ("full_attention + dense", (0,)), ("full_attention + experts", (1,))]


def test_the_graph_survives_its_file(make, configs) -> None:
    graph = trace(make(configs["dense"]))
    assert from_json(to_json(graph), OpGraph) == graph


def test_two_traces_are_alike(make, configs) -> None:
    first, second = (trace(make(configs["experts"])) for _ in range(2))
    assert first.operators == second.operators and first.modules == second.modules


def test_tracing_keeps_the_answer_of_the_model(make, configs) -> None:
    graph = trace(make(configs["dense"]), batch=3, tokens=4)
    [head] = [call for call in graph.operators if call.module == "lm_head" and call.op == "aten.mm"
              and call.phase == "prefill"]
    assert head.outputs == ((12, VOCAB),)


@pytest.mark.parametrize("name", ["batch", "tokens", "context"])
def test_sizes_below_one_are_refused(make, configs, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        trace(make(configs["dense"]), **{name: 0})


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_the_library_it_is_not_possible(make, configs, monkeypatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(NotPossible) as caught:
        trace(make(configs["dense"]))
    assert caught.value.reason == f"{package} is not installed"
    assert "dayzero[torch]" in caught.value.hint


def test_a_model_that_fails_in_prefill_names_operator_and_module(make, configs) -> None:
    # 6 query heads on 4 key/value heads: the library builds it, and attention cannot be computed.
    with pytest.raises(StageError) as caught:
        trace(make({**configs["dense"], "num_key_value_heads": 4}))
    assert "model.layers.0.self_attn" in caught.value.message and "\n" not in caught.value.message
    assert "(RuntimeError at " in caught.value.message and not caught.value.log


def test_a_decode_that_fails_is_missing_and_prefill_stays(make, configs, monkeypatch) -> None:
    from dayzero.stages.trace.capture import recorder as capture

    def broken(model, batch, cache):
        model(input_ids=capture._token_ids(batch, 1), past_key_values=cache)
        raise RuntimeError("no step\nmore")

    monkeypatch.setattr(capture, "decode", broken)
    graph = trace(make(configs["dense"]))
    assert set(graph.phases) == {"prefill"} == {call.phase for call in graph.operators}
    [entry] = graph.missing
    assert entry.startswith("decode (") and "no step" in entry and "more" not in entry


def test_importing_the_stage_does_not_import_torch() -> None:
    code = "import sys, dayzero.stages.trace; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_librarys_warnings_are_held_back_and_it_is_left_as_it_was(make, configs) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.utils import logging

    class Collect(Handler):
        def emit(self, record: LogRecord) -> None:
            seen.append(record.getMessage())

    seen: list[str] = []
    config = {**configs["dense"], "rope_parameters": {"rope_type": "linear", "factor": 2.0, "unknown": 1}}
    before, handler = logging.get_verbosity(), Collect()
    logging.add_handler(handler)
    try:
        trace(make(config))
        assert seen == [] and logging.get_verbosity() == before
        CONFIG_MAPPING["llama"].from_dict(config)
        assert seen, "the library says nothing about this config, so the test shows nothing"
    finally:
        logging.remove_handler(handler)


def test_a_loop_over_experts_is_traced_with_balanced_routing(make, configs) -> None:
    # A class of the library that asks which experts were hit and loops over them.
    tokens, experts, top_k, width, inner = 4, 8, 2, 48, 16
    config = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": width, "n_heads": 4, "n_layers": 2,
              "max_seq_len": 64, "vocab_size": 50, "dtype": "bfloat16", "num_hidden_layers": 2,
              "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
              "ffn_config": {"ffn_hidden_size": inner, "moe_num_experts": experts, "moe_top_k": top_k,
                             "ffn_act_fn": {"name": "silu"}},
              "num_experts": experts, "num_experts_per_tok": top_k}  # fmt: skip
    graph = trace(make(config), tokens=tokens)
    for phase, new in (("prefill", tokens), ("decode", 1)):
        assert flops(graph, phase, "experts") == 2 * LAYERS * new * top_k * 3 * width * inner
    told = {(site.kind, site.assumed) for site in graph.control_flow if site.executed}
    assert ("nonzero", "8 of 9; 2 of 9") in told  # all experts, then those that one token visits
    assert {site.file for site in graph.control_flow} == {"transformers/models/dbrx/modeling_dbrx.py"}


def test_a_latent_that_is_expanded_again_is_no_linear(make, configs) -> None:
    """2 layers of attention with a latent of 16 for 6 heads of 8 + 8: expanded for 1 new token and 20 cached ones."""
    latent = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 16,
              "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "head_dim": 4,
              "num_key_value_heads": 6, "first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1,
              "topk_group": 1, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    graph = trace(make(configs["dense"] | latent), batch=3, tokens=7, context=20)
    weights = graph.parameters - 100 * 48 - 2 * (2 * 48 + 24 + 16) - 48  # without embedding and norms
    assert flops(graph, "decode", "linear") == 2 * 3 * weights
    assert flops(graph, "prefill", "linear") == 2 * 21 * weights and not flops(graph, "prefill", "expansion")
    assert flops(graph, "decode", "expansion") == 2 * 2 * 3 * 20 * 16 * 6 * (8 + 8)
    one, again = [each for each in graph.operations if each.phase == "decode" and each.module.endswith("kv_b_proj")]
    assert (one.variant, one.axes["tokens"]) == ("", "batch * tokens")
    assert (again.variant, again.axes["tokens"]) == ("expansion", "batch * context") and again.exact
    own = [call.count for call in graph.operators if call.phase == "decode" and call.kind != "expansion"]
    assert graph.phases["decode"].operators == sum(own)  # a call with two shares is one
