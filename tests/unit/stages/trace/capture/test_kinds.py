"""Kinds by name and by place; no torch."""

from __future__ import annotations

import pytest

from dayzero.data.operators import operators
from dayzero.stages.trace.capture.kinds import Classifier, Place, plain

TYPES = {
    "": "XForCausalLM", "m": "XModel", "m.layers": "ModuleList", "m.layers.0": "XLayer",
    "m.layers.0.self_attn": "XAttention", "m.layers.0.self_attn.q_proj": "Linear",
    "m.layers.0.self_attn.q_norm": "XRMSNorm", "m.layers.0.mlp": "XMoE", "m.layers.0.mlp.gate": "XGate",
    "m.layers.0.mlp.experts": "XExperts", "m.layers.0.mlp.shared_experts": "XMLP",
    "m.layers.0.mlp.shared_experts.gate_proj": "Linear", "m.layers.1.mlp": "XMLP", "m.layers.1.mlp.gate": "Linear",
    "m.rope": "XRotaryEmbedding",
}  # fmt: skip


@pytest.mark.parametrize(("op", "path", "functions", "expected"), [
    ("aten.mm", "m.layers.0.self_attn.q_proj", (), "linear"),
    ("aten.bmm", "m.layers.0.self_attn", (), "attention"),
    ("aten.bmm", "m.layers.0", (), "matmul"),
    ("aten._softmax", "m.layers.0.self_attn", ("eager_attention_forward",), "attention"),
    ("aten._softmax", "", (), "softmax"),
    ("aten.mul", "m.layers.0.self_attn", ("apply_rotary_pos_emb",), "rotary"),
    ("aten.mul", "m.layers.0.self_attn", (), "elementwise"),
    ("aten.bmm", "m.rope", (), "rotary"),
    ("aten.mul", "m.layers.0.self_attn.q_norm", ("_norm",), "norm"),
    ("aten.mm", "m.layers.0.mlp.gate", (), "router"),
    ("aten.topk", "m.layers.0.mlp.gate", (), "router"),
    ("aten.mm", "m.layers.1.mlp.gate", (), "linear"),  # a gate without experts beside it is a projection
    ("aten.mm", "m.layers.0.mlp.experts", (), "experts"),
    ("aten.mm", "m.layers.0.mlp.shared_experts.gate_proj", (), "linear"),
    ("aten._grouped_mm", "m.layers.0.mlp.experts", (), "experts"),
    ("aten.add_", "m.layers.0", (), "elementwise"),
    ("aten._unsafe_view", "m.layers.0", (), "view"),
    ("new.operator", "m.layers.0.self_attn", (), "other"),
])
def test_kind(op: str, path: str, functions: tuple[str, ...], expected: str) -> None:
    assert Classifier(operators(), TYPES).kind(op, Place(path, functions)) == expected


def test_a_view_is_a_view_anywhere() -> None:
    assert Classifier(operators(), TYPES).kind("aten.expand", Place("m.rope", ()), view=True) == "view"


def test_plain_names() -> None:
    assert [plain(op) for op in ("aten.add_", "aten.add", "aten.__and__")] == ["aten.add", "aten.add", "aten.__and__"]
