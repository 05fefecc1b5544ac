"""Graphs without code against values worked out by hand from the published configs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.ops import OPERATORS, cost
from dayzero.schema import ModelSpec, OpGraph
from dayzero.schema.graph import Operation
from dayzero.stages.read.card import read_card
from dayzero.stages.trace.formula import NO_CODE, graph

CARDS = ["deepseek-v3", "gemma-3-1b", "gpt-oss-20b", "kimi-k2.5", "kimi-k3", "llama-3.1-405b", "llama-3.1-8b",
         "qwen3-235b-a22b", "qwen3-next-80b-a3b", "smollm2-135m"]


@pytest.fixture(scope="session")
def models(root: Path) -> dict[str, ModelSpec]:
    """The shipped cards' models, by name."""
    return {name: read_card(root / "examples" / "cards" / f"{name}.toml").model for name in CARDS}


def of(found: OpGraph, op: str, phase: str = "prefill", variant: str | None = None) -> list[Operation]:
    return [one for one in found.operations if one.op == op and one.phase == phase and variant in (None, one.variant)]


def flops(found: list[Operation]) -> int:
    return sum(one.flops for one in found)


@pytest.mark.parametrize("name", CARDS)
def test_every_matrix_is_there_once(models: dict[str, ModelSpec], name: str) -> None:
    """linear + experts + router: two operations for each active parameter and token, but for norms, biases and the
    few other vectors (at most 0.1 %)."""
    model = models[name]
    found = graph(model, batch=2, tokens=16)
    products = flops(of(found, "linear") + of(found, "experts") + of(found, "router"))
    assert 0.999 < products / (2 * 32 * model.parameters_active["no_embedding"]) <= 1
    assert found.parameters == model.parameters and found.operators == () and found.control_flow == ()
    assert found.missing == (NO_CODE,) and "not from code" in found.source


@pytest.mark.parametrize("name", CARDS)
def test_axes_are_those_of_the_definition(models: dict[str, ModelSpec], name: str) -> None:
    for one in graph(models[name]).operations:
        assert set(one.axes) == set(OPERATORS.get(one.op).axes), one
        assert one.calls == {} and one.count % max(1, len(one.layers)) == 0
        assert one.module.count("{L}") == bool(one.layers) and "{E}" not in one.module


def test_a_dense_model_by_hand(models: dict[str, ModelSpec]) -> None:
    """Llama-3.1-8B, 128 tokens: 8,030,261,248 parameters without the embedding (128256 x 4096) and 65 norms of 4096;
    attention of 32 layers, 32 heads of 128, 128 * 129 / 2 pairs."""
    found = graph(models["llama-3.1-8b"], tokens=128, context=1000)
    matrices = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    assert flops(of(found, "linear")) == 2 * 128 * matrices
    assert flops(of(found, "attention")) == 32 * 2 * 32 * (128 + 128) * 128 * 129 // 2
    assert flops(of(found, "attention", "decode")) == 32 * 2 * 32 * (128 + 128) * 1001
    assert flops(of(found, "norm")) == 65 * 4 * 128 * 4096
    (turned,) = of(found, "rotary", variant="")
    assert (turned.axes["heads"], turned.axes["turned"], turned.count) == (40, 128, 32)
    (cached,) = of(found, "copy", variant="cache")
    assert cached.axes["elements"] == "batch * tokens * 2048"
    assert [kind.kind for kind in found.layer_kinds] == ["full + dense"] and found.phases["decode"].context == 1000


def test_latent_attention_expands_what_is_cached(models: dict[str, ModelSpec]) -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 4.2): 61 layers, 128 heads of 128 + 64 and 128, latents of 512; the
    multi-token-prediction layer takes no part; 8 of 256 experts of 3 x 7168 x 2048 in 58 layers."""
    found = graph(models["deepseek-v3"], tokens=64, context=4096)
    one, again = [one for one in of(found, "linear", "decode") if one.module.endswith("kv_b_proj")]
    assert one.flops == 61 * 2 * 512 * 128 * (128 + 128) and one.variant == ""
    assert again.flops == 4096 * one.flops and again.variant == "expansion" and again.axes["weight_item"] == 0
    assert not of(found, "linear", variant="expansion")  # in prefill nothing is cached
    assert flops(of(found, "attention", "decode", "latent")) == 61 * 2 * 128 * (192 + 128) * 4097
    assert flops(of(found, "experts")) == 58 * 2 * 64 * 8 * 3 * 7168 * 2048
    (experts,) = of(found, "experts")
    assert experts.axes["weight_item"] == pytest.approx(1 + 4 / 128**2)  # FP8, one F32 for 128 x 128
    assert flops(of(found, "router")) == 58 * 2 * 64 * 7168 * 256


def test_windows_and_experts_in_one_tensor(models: dict[str, ModelSpec]) -> None:
    """gpt-oss-20b: 12 sliding layers that see 128 tokens, 12 full ones; MXFP4 experts, 4 bits and 8 for 32 of them."""
    found = graph(models["gpt-oss-20b"], tokens=1000, context=1000)
    (sliding,) = of(found, "attention", "prefill", "sliding")
    pairs = 128 * 129 // 2 + (1000 - 128) * 128
    assert sliding.flops == 12 * 2 * 64 * (64 + 64) * pairs and sliding.axes["keys"] == "min(context, 128) + tokens"
    (experts,) = of(found, "experts")
    assert experts.flops == 24 * 2 * 1000 * 4 * 3 * 2880 * 2880 and experts.axes["matrices"] == 3
    assert experts.axes["weight_item"] == pytest.approx(17 / 32)


def test_linear_attention_and_gates(models: dict[str, ModelSpec]) -> None:
    """Qwen3-Next: 36 layers with 32 heads of 128 x 128 of state and convolutions over 8192 channels; 12 with 16 heads
    of 256 whose queries come with a gate, and a quarter of a head that turns."""
    found = graph(models["qwen3-next-80b-a3b"], tokens=1, context=1)
    (state,) = of(found, "linear_attention")
    assert state.flops == 36 * 32 * 7 * 128 * 128
    (conv,) = of(found, "convolution")
    assert conv.flops == 36 * 2 * 8192 * 4
    gates = [one for one in of(found, "elementwise") if one.module.endswith("self_attn")]
    assert [(one.axes["elements"], one.count) for one in gates] == [("batch * tokens * 4096", 12)]
    (turned,) = of(found, "rotary", variant="")
    assert (turned.axes["turned"], turned.axes["heads"]) == (64, 18)
    gated = of(found, "norm", variant="gated")
    assert [(one.axes["tokens"], one.axes["hidden"]) for one in gated] == [("batch * tokens * 32", 128)]


def test_the_largest_card(models: dict[str, ModelSpec]) -> None:
    """Kimi K3: 69 + 24 layers, no rotary positions, experts that work in a latent space; in well under a second."""
    found = graph(models["kimi-k3"], tokens=4096, context=4096)
    assert found.seconds < 1
    assert {(kind.kind, len(kind.layers)) for kind in found.layer_kinds} == {
        ("linear + dense", 1), ("linear + experts", 68), ("latent + experts", 24)}
    assert not of(found, "rotary") and len(of(found, "convolution")) == 3
    (experts,) = of(found, "experts")
    assert experts.flops == 92 * 2 * 4096 * 16 * 3 * 3584 * 3072 and experts.module.endswith("block_sparse_moe.experts")
    assert {one.module.rpartition(".")[2] for one in of(found, "linear") if "routed_expert" in one.module} == {
        "routed_expert_down_proj", "routed_expert_up_proj"}
    owned = {node.path: node for node in found.modules}
    expert = owned["language_model.model.layers.5.block_sparse_moe.experts.*.w1"]
    assert (expert.count, expert.parameters) == (896, 896 * 3584 * 3072)
    assert sum(node.parameters for node in found.modules) == found.parameters


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(CARDS), batch=st.integers(1, 9), tokens=st.integers(1, 5000), context=st.integers(1, 9000))
def test_axes_hold_for_any_workload(models: dict[str, ModelSpec], name: str, batch: int, tokens: int, context: int
                                    ) -> None:
    """A graph of one workload, evaluated at another, is the graph of the other."""
    here, there = graph(models[name]), graph(models[name], batch=batch, tokens=tokens, context=context)
    for one, two in zip(here.operations, there.operations, strict=True):
        new, cached = (tokens, 0) if one.phase == "prefill" else (1, context)
        found = cost(one, batch=batch, tokens=new, context=cached)
        assert (round(found.flops), round(found.bytes)) == (two.flops, two.bytes)


def test_sizes_below_one(models: dict[str, ModelSpec]) -> None:
    for sizes in ({"batch": 0}, {"tokens": 0}, {"context": -1}):
        with pytest.raises(UsageError):
            graph(models["smollm2-135m"], **sizes)


def test_it_needs_no_torch(root: Path) -> None:
    code = ("import sys; sys.modules['torch'] = None; from dayzero.stages.read import read; "
            "from dayzero.stages.trace.formula import graph; "
            f"print(len(graph(read({str(root / 'examples/cards/smollm2-135m.toml')!r}).model).operations))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout) == 36, done.stderr
