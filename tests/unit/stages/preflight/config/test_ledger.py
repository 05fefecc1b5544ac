"""The ledger of config keys, and what is seen in the syntax of shipped code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.config_release import GLM, KIMI, LLAMA, on, release, without

from dayzero.schema.consumption import Consumption
from dayzero.stages.preflight import config_ledger, ledger_table
from dayzero.stages.preflight.code.shipped import Shipped
from dayzero.stages.preflight.config.syntax import class_defaults, role_of, uses

MODEL = '''
from .configuration_some import SomeConfig


class SomeMoEGate(Module):
    def __init__(self, config: SomeConfig):
        self.factor = config.routed_scaling_factor
        self.kind = getattr(config, "moe_router_activation_func", "softmax")


class SomeAttention(Module):
    def forward(self, x):
        if self.config.linear_attn_config["gate_lower_bound"] is not None:
            return self.config.text_config.gain
        return self.config.rope_scaling.get("factor", 1.0) + hf_config.get("surprise")


def build(config):
    config.written = 3
    return config.hidden_size
'''
CONFIG = '''
class SomeVisionConfig(PretrainedConfig):
    depth: int = 3


class SomeConfig(PretrainedConfig):
    hidden_act: str = "silu"
    layers: list = field(default_factory=list)

    def __init__(self, routed_scaling_factor=1.0, *, surprise: bool = True, width=WIDTH, **more):
        self.surprise = config.surprise
'''


def test_what_code_reads_and_where(tmp_path: Path) -> None:
    read = release(tmp_path / "release", LLAMA, modeling_some=MODEL, configuration_some=CONFIG)
    found = uses(Shipped(read).sources.values())
    assert {(use.key, use.line, use.module, use.role) for use in found} == {
        ("routed_scaling_factor", 7, "SomeMoEGate", "router"),
        ("moe_router_activation_func", 8, "SomeMoEGate", "router"),
        ("linear_attn_config", 13, "SomeAttention", "attention"),
        ("gate_lower_bound", 13, "SomeAttention", "attention"),
        ("text_config", 14, "SomeAttention", "attention"), ("gain", 14, "SomeAttention", "attention"),
        ("rope_scaling", 15, "SomeAttention", "attention"), ("factor", 15, "SomeAttention", "attention"),
        ("surprise", 15, "SomeAttention", "attention"),
        ("hidden_size", 20, "", "")}
    assert {use.file for use in found} == {"modeling_some.py"}


def test_defaults_of_the_language_models_class(tmp_path: Path) -> None:
    read = release(tmp_path / "release", LLAMA, modeling_some=MODEL, configuration_some=CONFIG, broken="class (")
    found = class_defaults(Shipped(read).sources.values())
    assert found == {"hidden_act": "silu", "routed_scaling_factor": 1.0, "surprise": True}


@pytest.mark.parametrize(("name", "role"), [
    ("DeepseekV3Attention", "attention"), ("DeepseekV3MLP", "dense_mlp"), ("MoEGate", "router"),
    ("LlamaRMSNorm", "norm"),
    ("GlmMoeDsaIndexer", "indexer"), ("Qwen3MoeTopKRouter", "router"), ("LlamaRotaryEmbedding", "rotary"),
    ("Qwen3NextGatedDeltaNet", "attention"), ("GptOssExperts", "routed_experts"), ("KimiDecoderLayer", "residual"),
    ("Qwen3NextRMSNormGated", "norm"), ("", ""),
])  # fmt: skip
def test_part_of_a_class(name: str, role: str) -> None:
    assert role_of(name) == role


def test_ledger(tmp_path: Path) -> None:
    config = without(KIMI, "mla_use_nope", surprise=3)
    read = release(tmp_path / "release", config, modeling_some=MODEL, configuration_some=CONFIG)
    entries = config_ledger(read, on(config_reads={"router": ["routed_scaling_factor"], "rotary": []}).engine)
    told = {(entry.key, entry.role): (entry.value, len(entry.code), entry.default, entry.engine) for entry in entries}
    assert told == {
        ("routed_scaling_factor", "router"): (2.446, 1, 1.0, True),
        ("routed_scaling_factor", "routed_experts"): (2.446, 1, 1.0, None),
        ("moe_router_activation_func", "router"): ("sigmoid", 1, None, False),
        ("moe_renormalize", "router"): (True, 0, None, False),
        ("rms_norm_eps", "norm"): (1e-5, 0, None, None),
        ("rope_theta", "rotary"): (1e4, 0, None, False),
        ("surprise", "attention"): (3, 1, True, None)}
    assert ("modeling_some.py:7 SomeMoEGate",) in {entry.code for entry in entries}
    text = io.StringIO()
    Console(file=text, width=160).print(ledger_table(entries))
    assert "modeling_some.py:7 SomeMoEGate" in text.getvalue()
    assert len(text.getvalue().splitlines()) == 1 + len(entries)


def test_without_code_of_its_own_that_of_transformers_counts(tmp_path: Path) -> None:
    """transformers 5: models/glm_moe_dsa/modeling_glm_moe_dsa.py, in which indexer_rope_interleave is not read."""
    pytest.importorskip("transformers")
    code = {entry.key: entry.code for entry in config_ledger(release(tmp_path / "release", GLM))}
    assert any("GlmMoeDsaIndexer" in place for place in code["index_topk"])
    assert all(place.startswith("transformers/models/glm_moe_dsa/") for place in code["index_topk"])
    assert config_ledger(release(tmp_path / "other", without(GLM, model_type="../some")))[0].code == ()


def test_what_the_library_was_seen_to_read(tmp_path: Path) -> None:
    read = release(tmp_path / "release", LLAMA)
    assert {entry.recorded for entry in config_ledger(read)} == {None}
    seen = Consumption(source="transformers 5 SomeClass", reads={"rope_scaling": ("some.py:3", "some.py:9")})
    entries = config_ledger(read, None, seen)
    recorded = {entry.key: entry.recorded for entry in entries}
    assert recorded["rope_scaling"] == ("some.py:3", "some.py:9") and recorded["rms_norm_eps"] == ()
    text = io.StringIO()
    Console(file=text, width=200).print(ledger_table(entries))
    assert "some.py:3 and 1 more" in text.getvalue() and "nowhere" in text.getvalue()
    assert {entry.recorded for entry in config_ledger(read, None, Consumption(impossible="no torch"))} == {None}
