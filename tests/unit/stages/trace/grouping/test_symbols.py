"""Operations of the library's own models, made small: nothing is lost, and their expressions give what a fresh trace at
another workload gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dayzero.data.operators import operators as operator_table  # noqa: E402
from dayzero.ops import cost  # noqa: E402
from dayzero.schema import ModelSpec, Operation, TensorTable  # noqa: E402
from dayzero.stages.read.spec import model_spec  # noqa: E402
from dayzero.stages.trace import construct  # noqa: E402
from dayzero.stages.trace.capture import recorder as capture  # noqa: E402
from dayzero.stages.trace.capture.step import Step  # noqa: E402
from dayzero.stages.trace.grouping import Grouped, group, symbols  # noqa: E402

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 512, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **SMALL, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 2}
SHARED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
GROUPED = {**LATENT, **SHARED, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
ZOO: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "deepseek_v3": GROUPED,
    "gpt_oss": {**SMALL, **EIGHT, **SLIDING},
    "qwen3_next": {
        **SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
    },
    "qwen3_moe": {**SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "decoder_sparse_step": 1},
    "kimi_linear": {
        **{key: LATENT[key] for key in LATENT if key != "q_lora_rank"}, "num_experts": 8, "num_experts_per_token": 2,
        "moe_intermediate_size": 24, "linear_head_dim": 16, "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
    },
    "gemma3_text": {**SMALL, **SLIDING},
    "longcat_flash": {**LATENT, "num_layers": 1, "ffn_hidden_size": 96, "moe_topk": 2, "n_routed_experts": 8,
                      "zero_expert_num": 4, "expert_ffn_hidden_size": 24},
    "llama4_text": {**SMALL, "num_hidden_layers": 4, "num_local_experts": 8, "intermediate_size_mlp": 96,
                    "interleave_moe_layer_step": 2, "attention_chunk_size": 16},
    "deepseek_v32": {**GROUPED, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 2},
    "deepseek_v4": {
        **SMALL, **SHARED, "num_key_value_heads": 1, "q_lora_rank": 24, "num_hidden_layers": 4,
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"], "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}, "index_head_dim": 16,
        "index_topk": 4, "sliding_window": 16, "qk_rope_head_dim": 8,
    },
    "minimax_m2": {**SMALL, **EIGHT, "rotary_dim": 8},
    "mixtral": {**SMALL, **EIGHT},
}  # fmt: skip
QUICK = ("deepseek_v3", "gpt_oss", "qwen3_next")
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]
DENSE_EXPERTS = ("llama4_text",)
"""Run every expert on every token."""
COSTLY = ("linear", "experts", "router", "attention", "merged_attention", "linear_attention", "convolution", "norm",
          "rotary", "indexer", "matmul")  # fmt: skip
"""Operators whose costs must agree one by one; the others together."""


class Traced:
    """A model without weights, and what runs of it came to."""

    def __init__(self, model_type: str, config: dict[str, Any], *, repeats: bool = False) -> None:
        made = transformers.AutoConfig.for_model(model_type, **config)
        with construct.quiet(), torch.device("meta"):
            self.model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).eval()
        self.config = made.to_dict()
        self.spec: ModelSpec = model_spec("made", {**self.config, "architectures": ["Made"]},
                                          TensorTable(files=(), groups=()))
        blocks = self.spec.feed_forwards.values()
        experts, top_k = max(((block.choices, block.top_k) for block in blocks), default=(0, 0))
        self.recorder = capture.Recorder(self.model, operator_table(), experts, top_k, repeats=repeats)

    def run(self, phase: Any, batch: int, tokens: int, context: int) -> Grouped:
        step, recorder = Step(phase, batch, tokens, context), self.recorder
        with construct.quiet():
            if phase == "prefill":
                _, captured = recorder.run(step, lambda: capture.prefill(self.model, batch, tokens))
            else:
                before = Step("prefill", batch, context, 0)
                out, _ = recorder.run(before, lambda: capture.prefill(self.model, batch, context), record=False)
                _, captured = recorder.run(step, lambda: capture.decode(self.model, batch, out.past_key_values))
        return group(captured, recorder.types, self.spec)

    def operations(self, tokens: int = 40, context: int = 50) -> tuple[list[Grouped], tuple[Operation, ...]]:
        asked = [self.run("prefill", 3, tokens, 0), self.run("decode", 3, 1, context)]
        tried = [self.run(phase, *one) for phase, runs in symbols.probes(self.spec).items() for one in runs]
        return asked, symbols.operations(asked, tried, self.spec, integers(self.config))


def integers(config: Any) -> Iterator[int]:
    if type(config) is int:
        yield config
    for value in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from integers(value)


def totals(operations: Iterator[tuple[str, float, float]]) -> dict[str, list[float]]:
    result: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for op, flops, size in operations:
        for name in (op, "all"):
            result[name][0] += flops
            result[name][1] += size
    return result


def nothing_is_lost(asked: list[Grouped], found: tuple[Operation, ...]) -> None:
    for run in asked:
        calls = run.captured.calls
        times = {place: sum(run.captured.copies(place).values()) for place in {call.place for call in calls}}
        own = [one for one in found if one.phase == run.captured.phase]
        assert sum(one.counted_flops for one in own) == sum(call.flops * times[call.place] for call in calls)
        assert sum(one.counted_bytes for one in own) == sum(call.bytes * times[call.place] for call in calls)
        assert sum(sum(one.calls.values()) for one in own) == sum(times[call.place] for call in calls)


@pytest.mark.parametrize("name", ALL)
def test_expressions_give_what_a_fresh_trace_gives(name: str) -> None:
    traced = Traced(name, ZOO[name])
    asked, found = traced.operations()
    nothing_is_lost(asked, found)
    for phase, batch, tokens, context in (("prefill", 1, 24, 0), ("prefill", 4, 33, 0), ("decode", 5, 1, 21),
                                          ("decode", 2, 1, 70)):
        fresh = symbols.operations([traced.run(phase, batch, tokens, context)], [], traced.spec)
        wanted = totals((one.op, one.flops, one.bytes) for one in fresh)
        got = totals((one.op, *cost(one, batch=batch, tokens=tokens, context=context))
                     for one in found if one.phase == phase)
        for op in ("all", *COSTLY):
            assert got[op] == pytest.approx(wanted[op], rel=0.01), (phase, batch, tokens, context, op)
    inexact = [one for one in found if not one.exact]
    assert {one.op for one in inexact} <= {"mask", "copy"}, inexact


def test_products_with_weights_are_counted_as_they_run() -> None:
    _, found = Traced("qwen3_next", ZOO["qwen3_next"]).operations()
    for one in found:
        if one.op in ("linear", "experts", "router", "matmul"):
            assert one.flops == one.counted_flops, one


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_definitions_count_what_runs(name: str, batch: int) -> None:
    """Products with weights and convolutions at any batch. Some code runs a convolution over more positions than it
    keeps: less than a kernel of them."""
    traced = Traced(name, ZOO[name])
    for phase, tokens, context in (("prefill", 40, 0), ("decode", 1, 50)):
        for one in symbols.operations([traced.run(phase, batch, tokens, context)], [], traced.spec):
            if one.op in ("linear", "router", "matmul"):
                assert one.flops == one.counted_flops, one
            elif one.op == "experts" and name not in DENSE_EXPERTS:  # visits are whole, and on average may not be
                visits = batch * tokens * one.axes["top_k"]
                assert abs(one.flops - one.counted_flops) <= one.flops / visits * (visits % 1 > 0), one
            elif one.op == "convolution":
                positions = Fraction(one.counted_flops * tokens, one.flops)
                assert positions.denominator == 1 and tokens <= positions < tokens + one.axes["kernel"], one


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v32"])
def test_bounds_are_seen_although_the_trace_is_shorter(name: str) -> None:
    longer = {"sliding_window": 200} if name != "deepseek_v32" else {"index_topk": 200}
    traced = Traced(name, {**ZOO[name], **longer})
    _, found = traced.operations()
    for phase, batch, tokens, context in (("prefill", 2, 300, 0), ("decode", 2, 1, 300), ("decode", 1, 1, 60)):
        fresh = symbols.operations([traced.run(phase, batch, tokens, context)], [], traced.spec)
        wanted = totals((one.op, one.flops, one.bytes) for one in fresh)
        got = totals((one.op, *cost(one, batch=batch, tokens=tokens, context=context))
                     for one in found if one.phase == phase)
        for op in wanted:
            assert got[op] == pytest.approx(wanted[op], rel=1e-6), (phase, op)


def test_the_shape_of_the_result() -> None:
    _, found = Traced("gpt_oss", ZOO["gpt_oss"]).operations()
    by_name = {(one.phase, one.op, one.variant, one.module): one for one in found}
    attention = by_name["decode", "attention", "sliding", "model.layers.{L}.self_attn"]
    assert attention.layers == (0,)
    assert attention.axes["keys"] == "min(context, 15) + tokens"
    assert attention.axes["window"] == 16
    assert attention.axes["kv_heads"] == 2
    full = by_name["prefill", "attention", "full", "model.layers.{L}.self_attn"]
    assert full.layers == (1,)
    # 3 sequences of 40 tokens: 40 * 41 / 2 pairs for each of 4 heads, 16 + 16 values each; counted: all 40 * 40.
    assert full.flops == 3 * 4 * 2 * 32 * 820
    assert full.counted_flops == 3 * 4 * 2 * 32 * 1600
    projection = by_name["prefill", "linear", "", "model.layers.{L}.self_attn.q_proj"]
    assert (projection.layers, projection.count, projection.exact) == ((0, 1), 2, True)
    assert projection.axes == {"tokens": "batch * tokens", "groups": 1, "inner": 64, "outer": 64, "item": 2,
                               "weight_item": 2}
    experts = by_name["decode", "experts", "", "model.layers.{L}.mlp.experts"]
    assert experts.axes["tokens"] == "batch * tokens"


def test_deepseek_v3_in_full_size_by_hand() -> None:
    """The class's defaults are the published config: 61 layers of 7168, 3 dense, 256 experts of which 8 are visited."""
    traced = Traced("deepseek_v3", {}, repeats=True)
    asked, found = traced.operations(tokens=4096, context=4096)
    nothing_is_lost(asked, found)
    projections = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    block = 7168 * 256 + (8 + 1) * 3 * 7168 * 2048
    weights = 61 * projections + 3 * 3 * 7168 * 18432 + 58 * block + 7168 * 129280
    prefill = [one for one in found if one.phase == "prefill"]
    assert sum(one.flops for one in prefill if one.op in ("linear", "experts", "router")) == 2 * weights * 3 * 4096
    attention = next(one for one in prefill if one.op == "attention")
    assert attention.layers == tuple(range(61))
    # Each causal pair: 128 heads, 192 values of query and key, 128 of the value.
    assert attention.flops == 3 * 61 * 2 * 128 * (192 + 128) * 4096 * 4097 // 2
    assert all(one.exact for one in found)


def test_a_failed_small_run_leaves_numbers() -> None:
    traced = Traced("llama", ZOO["llama"])
    found = symbols.operations([traced.run("prefill", 3, 40, 0)], [], traced.spec)
    linear = next(one for one in found if one.op == "linear")
    assert (linear.axes["tokens"], linear.axes["inner"], linear.exact) == ("batch * tokens", 64, False)
    assert symbols.pattern("model.layers.12.mlp.experts.7.up") == "model.layers.{L}.mlp.experts.*.up"


def test_a_choice_is_bounded_although_the_trace_is_shorter() -> None:
    config = {**ZOO["deepseek_v32"], "index_topk": 2048}
    _, found = Traced("deepseek_v32", config).operations()
    sparse = next(one for one in found if one.op == "attention")
    assert (sparse.variant, sparse.axes["window"]) == ("sparse", "min(context + tokens, 2048)")
    assert next(one for one in found if one.op == "indexer").axes["top_k"] == "min(context + tokens, 2048)"
