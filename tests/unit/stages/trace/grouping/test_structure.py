"""Which calls are one operation: hand-made runs of a few calls, without torch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dayzero.data.operators import operators
from dayzero.ops import OPERATORS
from dayzero.schema import Attention, FeedForward, Layer, ModelSpec
from dayzero.stages.trace.capture.captured import Call, Captured
from dayzero.stages.trace.capture.kinds import Classifier, Place, plain
from dayzero.stages.trace.grouping import Group, Grouped, group
from dayzero.stages.trace.grouping.group import value

Shape = tuple[int, ...]
LAYER = "model.layers.0"
TYPES = {
    "": "FooForCausalLM", "model": "FooModel", "model.layers": "ModuleList", LAYER: "FooLayer", "lm_head": "Linear",
    f"{LAYER}.norm1": "FooNorm", f"{LAYER}.mix": "FooMixer", f"{LAYER}.mix.q": "Linear", f"{LAYER}.mix.o": "Linear",
    f"{LAYER}.mlp": "FooMLP", f"{LAYER}.mlp.gate": "Linear", f"{LAYER}.mlp.up": "Linear",
    f"{LAYER}.mlp.act": "SiLU", f"{LAYER}.moe": "FooBlock", f"{LAYER}.moe.gate": "Linear",
    f"{LAYER}.moe.experts": "ModuleList", f"{LAYER}.moe.experts.0": "FooMLP", f"{LAYER}.moe.experts.0.up": "Linear",
    f"{LAYER}.moe.experts.0.down": "Linear", f"{LAYER}.moe.experts.1": "FooMLP",
    f"{LAYER}.moe.experts.1.up": "Linear", f"{LAYER}.moe.experts.1.down": "Linear",
}  # fmt: skip


def spec(attention: Attention) -> ModelSpec:
    return ModelSpec(
        name="made", architectures=(), model_type="", hidden_size=64, vocab_size=100, max_positions=None,
        tied_embeddings=False, layers=(Layer(attention="a", feed_forward="f"),), attentions={"a": attention},
        feed_forwards={"f": FeedForward(kind="experts", width=24, input_width=64, experts=2, top_k=1)}, families=(),
        mtp_layers=0, parameters=0, parameters_text=0, parameters_active={}, checkpoint_bytes=0, dtype="bf16")


FULL = spec(Attention(kind="full", heads=4, kv_heads=2, head_dim=16, v_head_dim=16))


class Run:
    """Collects calls as a model would make them; products count their operations, other calls a byte."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._classifier = Classifier(operators(), TYPES)

    def __call__(self, place: str, op: str, inputs: list[Shape], output: Shape, *functions: str, visit: int = 0,
                 dtype: str = "bf16") -> Run:  # fmt: skip
        base = operators().kind(plain(f"aten.{op}"))
        kind = self._classifier.kind(f"aten.{op}", Place(place, functions), view=op in ("view", "t"))
        flops = 0
        if base in ("linear", "matmul"):
            flops = 2 * inputs[-2][-1]
            for size in output:
                flops *= size
        self.calls.append(Call(f"aten.{op}", place, visit, functions, kind, tuple(inputs), (output,), dtype, flops,
                               0 if kind == "view" else 1))
        return self

    def grouped(self, model: ModelSpec = FULL, **sizes: Any) -> Grouped:
        sizes = {"phase": "prefill", "batch": 2, "tokens": 5, "context": 0} | sizes
        run = Captured(calls=tuple(self.calls), repeats={}, **sizes)
        grouped = group(run, TYPES, model)
        calls = [id(call) for one in grouped.groups for call in one.calls]
        assert sorted(calls) == sorted(map(id, self.calls)), "every call is in exactly one group"
        return grouped


def numbers(one: Group) -> dict[str, float]:
    return {name: value(axis) for name, axis in one.axes.items()}


def named(grouped: Grouped) -> list[tuple[str, str, str]]:
    return [(one.op, one.variant, one.module.removeprefix(f"{LAYER}.")) for one in grouped.groups]


def test_a_linear_takes_all_that_its_module_does() -> None:
    run = Run()(f"{LAYER}.mix.q", "t", [(64, 48)], (48, 64))(f"{LAYER}.mix.q", "_to_copy", [(48, 64)], (48, 64))
    run(f"{LAYER}.mix.q", "mul", [(48, 64), (48, 1)], (48, 64))  # a scale for each row of the stored weight
    run(f"{LAYER}.mix.q", "mm", [(10, 64), (64, 48)], (10, 48))
    run(f"{LAYER}.mix.q", "add", [(10, 48), (48,)], (10, 48))
    (one,) = run.grouped().groups
    assert (one.op, one.variant, len(one.calls)) == ("linear", "", 5)
    assert numbers(one) == {"tokens": 10, "groups": 1, "inner": 64, "outer": 48, "item": 2, "weight_item": 2}


def test_bias_first_and_the_head() -> None:
    run = Run()("lm_head", "addmm", [(100,), (10, 64), (64, 100)], (10, 100))
    (one,) = run.grouped().groups
    assert (one.op, one.variant) == ("linear", "head")
    assert numbers(one)["inner"] == 64


def test_an_activation_is_one_operation_across_the_products_between() -> None:
    mlp = f"{LAYER}.mlp"
    run = Run()(f"{mlp}.gate", "mm", [(10, 64), (64, 96)], (10, 96))(f"{mlp}.act", "silu", [(10, 96)], (10, 96))
    run(f"{mlp}.up", "mm", [(10, 64), (64, 96)], (10, 96))(mlp, "mul", [(10, 96), (10, 96)], (10, 96))
    run(LAYER, "add", [(10, 64), (10, 64)], (10, 64))
    grouped = run.grouped()
    assert named(grouped) == [("linear", "", "mlp.gate"), ("elementwise", "activation", "mlp"),
                              ("linear", "", "mlp.up"), ("elementwise", "residual", LAYER)]
    assert numbers(grouped.groups[1]) == {"elements": 960, "operands": 2, "operations": 2, "item": 2}


def test_attention_that_is_written_out_under_any_name() -> None:
    mix, named_by = f"{LAYER}.mix", "scores_and_values"
    run = Run()(f"{mix}.q", "mm", [(10, 64), (64, 64)], (10, 64))
    run(mix, "clone", [(2, 2, 2, 5, 16)], (2, 2, 2, 5, 16), "repeat", named_by)
    run(mix, "bmm", [(8, 5, 16), (8, 16, 5)], (8, 5, 5), named_by)
    run(mix, "cat", [(2, 4, 5, 5), (2, 4, 5, 1)], (2, 4, 5, 6), named_by)  # a sink
    run(mix, "_softmax", [(2, 4, 5, 6)], (2, 4, 5, 6), named_by)
    run(mix, "bmm", [(8, 5, 5), (8, 5, 16)], (8, 5, 16), named_by)(mix, "sigmoid", [(2, 5, 64)], (2, 5, 64))
    grouped = run(f"{mix}.o", "mm", [(10, 64), (64, 64)], (10, 64)).grouped()
    assert named(grouped) == [("linear", "", "mix.q"), ("attention", "full", "mix"),
                              ("elementwise", "activation", "mix"), ("linear", "", "mix.o")]
    found = numbers(grouped.groups[1])
    assert (found["heads"], found["kv_heads"], found["head_dim"], found["keys"]) == (4, 2, 16, 5)
    assert len(grouped.groups[1].calls) == 5


def test_a_fused_attention_takes_its_kind_from_the_layer() -> None:
    sliding = spec(Attention(kind="sliding", heads=4, kv_heads=2, head_dim=16, v_head_dim=16, window=8))
    run = Run()(f"{LAYER}.mix", "scaled_dot_product_attention", [(2, 2, 2, 16), (2, 2, 8, 16), (2, 2, 8, 16)],
                (2, 2, 2, 16))  # fmt: skip
    (one,) = run.grouped(sliding, phase="decode", tokens=1, context=20).groups
    assert (one.op, one.variant) == ("attention", "sliding")
    found = numbers(one)
    assert {name: found[name] for name in ("sequences", "tokens", "context", "keys", "heads", "window")} == {
        "sequences": 2, "tokens": 1, "context": 20, "keys": 8, "heads": 4, "window": 8}


def test_experts_one_by_one_are_one_operation_and_what_chooses_is_the_router() -> None:
    moe = f"{LAYER}.moe"
    run = Run()(f"{moe}.gate", "mm", [(10, 64), (64, 2)], (10, 2))(moe, "_softmax", [(10, 2)], (10, 2))
    run(moe, "topk", [(10, 2)], (10, 1))(moe, "index", [(10, 64), (5,)], (5, 64))
    for expert in range(2):
        run(f"{moe}.experts.{expert}.up", "mm", [(5, 64), (64, 24)], (5, 24))
        run(f"{moe}.experts.{expert}.down", "mm", [(5, 24), (24, 64)], (5, 64))
        run(moe, "index_add_", [(10, 64), (5,), (5, 64)], (10, 64))
    grouped = run.grouped()
    assert named(grouped) == [("router", "", "moe.gate"), ("experts", "", "moe.experts")]
    router, experts = map(numbers, grouped.groups)
    assert (router["tokens"], router["hidden"], router["experts"]) == (10, 64, 2)
    assert {name: experts[name] for name in ("tokens", "experts", "top_k", "matrices", "hidden", "width")} == {
        "tokens": 10, "experts": 2, "top_k": 1, "matrices": 2, "hidden": 64, "width": 24}


@pytest.mark.parametrize("ops, variant", [
    (["pow", "mean", "rsqrt", "mul"], "rms"), (["mul", "sum", "rsqrt", "mul"], "l2"),
    (["mean", "sub", "pow", "mean", "rsqrt", "mul"], "layer"),
    (["pow", "mean", "rsqrt", "mul", "silu", "mul"], "gated"),
])  # fmt: skip
def test_norms(ops: list[str], variant: str) -> None:
    run = Run()
    for op in ops:
        run(f"{LAYER}.norm1", op, [(2, 5, 64)], (2, 5, 1) if op in ("mean", "sum") else (2, 5, 64))
    (one,) = run.grouped().groups
    assert (one.op, one.variant) == ("norm", variant)
    assert numbers(one)["hidden"] == 64


def test_a_product_of_activations_in_a_layer_is_no_attention() -> None:
    run = Run()(LAYER, "_softmax", [(10, 4, 4)], (10, 4, 4))(LAYER, "bmm", [(10, 4, 4), (10, 4, 64)], (10, 4, 64))
    grouped = run.grouped()
    assert [one.op for one in grouped.groups] == ["elementwise", "matmul"]
    assert numbers(grouped.groups[1])["products"] == 10


def test_new_entries_of_a_cache_and_rotary_heads() -> None:
    mix = f"{LAYER}.mix"
    run = Run()
    for heads in (4, 2):
        run(mix, "mul", [(2, heads, 5, 16), (1, 1, 5, 16)], (2, heads, 5, 16), "apply_rotary_pos_emb")
        run(mix, "neg", [(2, heads, 5, 8)], (2, heads, 5, 8), "rotate_half", "apply_rotary_pos_emb")
        run(mix, "mul", [(2, heads, 5, 16), (1, 1, 5, 16)], (2, heads, 5, 16), "apply_rotary_pos_emb")
    run(mix, "cat", [(2, 2, 11, 16), (2, 2, 5, 16)], (2, 2, 16, 16), "update", "update")
    rotary, cache = run.grouped(context=11).groups
    assert (rotary.op, numbers(rotary)["heads"], numbers(rotary)["turned"]) == ("rotary", 6, 16)
    assert (cache.op, cache.variant, numbers(cache)["elements"]) == ("copy", "cache", 2 * 2 * 5 * 16)


SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)
NAMES = sorted(name for names in operators().kinds.values() for name in names)
CALLS = st.builds(
    lambda place, op, inputs, outputs, functions, dtype, flops: Call(
        op, place, 0, functions, Classifier(operators(), TYPES).kind(op, Place(place, functions)), inputs, outputs,
        dtype, flops, 1),
    st.sampled_from(sorted(TYPES)), st.sampled_from(NAMES), st.lists(SHAPES, max_size=4).map(tuple),
    st.lists(SHAPES, max_size=2).map(tuple),
    st.lists(st.sampled_from(["update", "apply_rotary_pos_emb", "create_causal_mask", "delta_rule", "causal_conv1d_fn",
                              "route_tokens", "indexer", "rms_norm", "grouped_mm_experts_forward", "attend"]),
             max_size=2).map(tuple),
    st.sampled_from(["bf16", "f32", "i64", "bool", ""]), st.integers(0, 9))  # fmt: skip


FEWER_KEYS = Call("aten._efficient_attention_forward", "", 0, (), "attention", ((1, 2, 1), (0, 0, 0)), (), "bf16", 0, 1)
"""Attention outside of a decoder layer over fewer keys than queries."""


@settings(max_examples=150, deadline=None)
@example([FEWER_KEYS], "full")
@given(st.lists(CALLS, max_size=8), st.sampled_from(["full", "sliding", "latent", "linear"]))
def test_whatever_runs_ends_in_one_operation_with_all_axes(calls: list[Call], kind: str) -> None:
    run = Run()
    run.calls = [call._replace(op=str(call.op)) for call in calls]
    for one in run.grouped(spec(Attention(kind=kind, heads=4, kv_heads=2, head_dim=16, v_head_dim=16))).groups:
        definition = OPERATORS.get(one.op)
        assert set(one.axes) == set(definition.axes)
        assert definition.flops(numbers(one)) >= 0


def test_states_are_read_off_what_stands_in_for_a_kernel() -> None:
    mix = f"{LAYER}.mix"

    def one(op: str, *inputs: Shape, tokens: int = 5) -> Group:
        run = Run()
        run.calls = [Call(f"dayzero.{op}", mix, 0, (), "state", inputs, ((2, 5, 4, 16),), "bf16", 7, 1)]
        return run.grouped(tokens=tokens).groups[0]

    delta = one("delta_rule", (2, 5, 2, 8), (2, 5, 2, 8), (2, 5, 4, 16), (2, 5, 4), (2, 5, 4))
    assert delta.op == "linear_attention"
    found = numbers(delta)
    assert (found["sequences"], found["tokens"], found["heads"], found["head_dim"], found["v_head_dim"]) == (
        2, 5, 4, 8, 16)
    space = one("state_space_update", (2, 4, 16, 32), (2, 4, 16), (2, 4, 16), (4, 16, 32), (2, 1, 32), (2, 1, 32),
                tokens=1)
    assert space.op == "state_space"
    found = numbers(space)
    assert (found["heads"], found["head_dim"], found["groups"], found["state_dim"]) == (4, 16, 1, 32)
