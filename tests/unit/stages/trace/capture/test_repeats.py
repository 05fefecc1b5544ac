"""Leaving out what others did changes no row: on real architectures of the library, and on modules made to break it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from dayzero.data.operators import operators
from dayzero.schema import FeedForward
from dayzero.stages.trace import rows
from dayzero.stages.trace.capture.captured import Captured
from dayzero.stages.trace.capture.recorder import Recorder
from dayzero.stages.trace.capture.runs import Runs
from dayzero.stages.trace.capture.step import Step
from dayzero.stages.trace.construct import quiet

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 120,
    "moe_intermediate_size": 32, "max_position_embeddings": 256, "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
LATENT: dict[str, Any] = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                          "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4}
ROUTED: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                          "n_shared_experts": 1, "num_experts": 8, "num_local_experts": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {**LATENT, **ROUTED, "num_hidden_layers": 6, "first_k_dense_replace": 2},
    "gpt_oss": {**ROUTED, "num_hidden_layers": 6, "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 3},
    "qwen3_next": {**ROUTED, "num_hidden_layers": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
    "gemma3_text": {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16,
                    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
    "longcat_flash": {**LATENT, **ROUTED, "num_layers": 4, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32,
                      "zero_expert_num": 4, "moe_topk": 2, "num_hidden_layers": 8},
    "kimi_linear": {**LATENT, **ROUTED, "num_hidden_layers": 8, "first_k_dense_replace": 1},
    "llama4_text": {**ROUTED, "num_hidden_layers": 8, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96,
                    "attention_chunk_size": 16},
    "deepseek_v4": {**ROUTED, "num_hidden_layers": 6, "q_lora_rank": 24, "num_key_value_heads": 1},
    "minimax_m2": {**ROUTED, "num_hidden_layers": 5},
}  # fmt: skip


def build(name: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with quiet():
        config = CONFIG_MAPPING[name](**{**SMALL, **ARCHITECTURES[name]})
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def counted(captured: Captured, recorder: Recorder) -> Counter[Any]:
    """Rows without their order; all numbers of a path but the layer's are one."""
    found: Counter[Any] = Counter()
    for row in rows.operators(captured, recorder.types, lambda path: path):
        layer, _, rest = row.module.partition(".layers.")[2].partition(".")
        rest = ".".join("*" if part.isdigit() else part for part in rest.split("."))
        found[row.op, layer, rest or row.module, row.kind, row.inputs, row.outputs, row.dtype, row.phase] += row.count
        found["flops"] += row.flops
        found["bytes"] += row.bytes
    return found


class Spec:
    """What Runs asks of a ModelSpec."""

    feed_forwards = {"experts": FeedForward(kind="experts", width=32, input_width=64, experts=8, top_k=2)}


def both(model: torch.nn.Module, steps: list[Step]) -> tuple[list[Captured], Runs, list[Captured], Runs]:
    with quiet():
        quick, full = Runs(model, Spec()), Runs(model, Spec(), repeats=False)  # type: ignore[arg-type]
        return [quick.run(step) for step in steps], quick, [full.run(step) for step in steps], full


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_are_those_of_a_full_run(name: str, implementation: str) -> None:
    model = build(name)
    if implementation == "eager":
        try:
            model.set_experts_implementation("eager")  # type: ignore[operator]
        except (ValueError, AttributeError):
            pytest.skip("the class has one implementation")
    steps = [Step("prefill", 2, 21), Step("decode", 2, 1, 21), Step("decode", 1, 1, 5)]
    quick, runs, full, all_runs = both(model, steps)
    assert not runs._full, "something that was left out had to run after all"
    for one, other in zip(quick, full, strict=True):
        assert len(one.calls) < len(other.calls) and one.repeats and not other.repeats
        assert counted(one, runs.recorder) == counted(other, all_runs.recorder)
    assert runs.sites() == all_runs.sites()
    assert runs.missing() == all_runs.missing()


class Cache:
    """One item for each layer, and a counter that all share."""

    def __init__(self, layers: int) -> None:
        self.items: list[Any] = [None] * layers
        self.seen = 0


class Block(torch.nn.Module):
    """What a layer may do that makes it differ from its neighbour; `trick` chooses."""

    def __init__(self, number: int, trick: str) -> None:
        super().__init__()
        self.number, self.trick, self.proj = number, trick, torch.nn.Linear(4, 4, bias=False, device="meta")

    def forward(self, x: torch.Tensor, cache: Cache, grown: list[torch.Tensor]) -> torch.Tensor:
        x = self.proj(x)
        if self.trick == "number" and self.number >= 2:
            x = x.relu()
        if self.trick == "parity" and self.number % 2:
            x = x.tanh()
        if self.trick == "own item":
            known = cache.items[self.number]
            cache.items[self.number] = x if known is None else torch.cat([known, x])
        if self.trick == "another's item" and self.number and cache.items[self.number - 1] is not None:
            x = x.sin()
        if self.trick == "shared" and cache.seen > 1:
            x = x.cos()
        if self.trick == "shared":
            cache.seen += 1
        if self.trick == "grown":
            grown.append(x)
            x = torch.stack(grown).sum(0)
        if self.trick == "attribute":
            self.last = x.shape[0] + self.number
        return x


class Stack(torch.nn.Module):
    def __init__(self, trick: str, layers: int = 5) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(number, trick) for number in range(layers))

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        grown: list[torch.Tensor] = []
        for layer in self.layers:
            x = layer(x, cache, grown)
        return x


@pytest.mark.parametrize(("trick", "ran"), [
    ("", 1), ("own item", 1), ("number", 2), ("parity", 2), ("another's item", 5), ("shared", 5), ("grown", 5),
    ("attribute", 5)])  # fmt: skip
def test_a_layer_is_left_out_only_where_it_must_be_the_same(trick: str, ran: int) -> None:
    found = []
    for repeats in (True, False):
        model = Stack(trick)
        recorder, cache = Recorder(model, operators(), repeats=repeats), Cache(5)
        for step in (Step("prefill", 1, 3), Step("decode", 1, 1, 3)):
            x = torch.empty(step.tokens, 4, device="meta")
            out, captured = recorder.run(step, lambda model=model, x=x, cache=cache: model(x, cache))
            rows_seen = counted(captured, recorder)
            shapes = [None if item is None else tuple(item.shape) for item in list(cache.items)]
            found.append((rows_seen, tuple(out.shape), shapes))
            if repeats:
                layers = {call.place.split(".")[1] for call in captured.calls}
                assert len(layers) == ran, captured.repeats
        assert [layer.number for layer in model.layers] == list(range(5))
        assert all(type(layer.number) is int for layer in model.layers), "the numbers are given back"
    assert found[:2] == found[2:]


def test_alike_experts_run_once_for_each_number_of_tokens() -> None:
    class Moe(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False, device="meta")) for _ in range(6))

        def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            counts = torch.zeros(6, dtype=torch.int64, device="meta").scatter_add(0, chosen, chosen)
            parts, start = [], 0
            for expert, count in zip(self.experts, counts.cpu().numpy(), strict=True):
                parts.append(expert(x[start:start + count]))
                start += count
            return torch.cat(parts)

    model = torch.nn.ModuleList([torch.nn.ModuleDict({"moe": Moe()})])
    recorder = Recorder(model, operators(), experts=6, top_k=2)
    x, chosen = torch.empty(14, 4, device="meta"), torch.empty(14, dtype=torch.int64, device="meta")
    out, captured = recorder.run(Step("prefill", 1, 7), lambda: model[0]["moe"](x, chosen))
    assert out.shape == (14, 4)  # 7 tokens visit 2 of 6 experts: 14 visits are 2 for four and 3 for two
    products = [call for call in captured.calls if call.op == "aten.mm"]
    assert [(call.inputs[0], sum(captured.copies(call.place).values())) for call in products] == [
        ((2, 4), 4), ((3, 4), 2)]
    [(site, times)] = recorder.sites(captured).items()
    assert (site.kind, site.assumed, times) == ("host", "6 balanced counts, 14 in all", 1)
