"""Rotary positions, from the configs of published releases."""

from __future__ import annotations

from typing import Any

import pytest

from dayzero.schema import Rope
from dayzero.stages.read.config import Config
from dayzero.stages.read.rope import ropes

YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}


@pytest.mark.parametrize(("config", "kinds", "expected"), [
    # Llama-3.2-1B: the flat key and a table
    ({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
                                               "original_max_position_embeddings": 8192}}, ["full"],
     {"full": Rope(base=5e5, base_key="rope_theta", scaling="llama3", factor=32.0, original_positions=8192,
                   table="rope_scaling")}),
    # GLM-5.2: all in one table
    ({"rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}}, ["latent"],
     {"latent": Rope(base=8e6, base_key="rope_parameters.rope_theta")}),
    # Qwen3.5: below the language model's table, part of a head, sections that only images need; none in linear layers
    ({"text_config": {"rope_parameters": {"rope_theta": 10000000, "rope_type": "default", "mrope_section": [11, 11, 10],
                                          "partial_rotary_factor": 0.25}}}, ["linear", "full"],
     {"full": Rope(base=1e7, base_key="text_config.rope_parameters.rope_theta", share=0.25)}),
    # Gemma-3, first spelling: sliding layers have a base of their own, which is not scaled
    ({"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
     ["sliding", "full"],
     {"sliding": Rope(base=1e4, base_key="rope_local_base_freq"),
      "full": Rope(base=1e6, base_key="rope_theta", scaling="linear", factor=8.0, table="rope_scaling")}),
    # and second spelling: a table for each kind of layer
    ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, ["sliding", "full"],
     {"sliding": Rope(base=1e4, base_key="rope_parameters.sliding_attention.rope_theta"),
      "full": Rope(base=1e6, base_key="rope_parameters.full_attention.rope_theta", scaling="linear", factor=8.0,
                   table="rope_parameters.full_attention")}),
    # DeepSeek-V4: another base for the compressed cache
    ({"rope_theta": 10000, "compress_rope_theta": 160000, "rope_scaling": YARN}, ["sliding"],
     {"sliding": Rope(base=1e4, base_key="rope_theta", scaling="yarn", factor=40.0, original_positions=4096,
                      table="rope_scaling"),
      "compressed": Rope(base=1.6e5, base_key="compress_rope_theta")}),
    # Mistral-Large-3's params.json: the table's name is the kind of scaling
    ({"rope_theta": 10000.0, "yarn": {"factor": 36, "original_max_position_embeddings": 8192}}, ["latent"],
     {"latent": Rope(base=1e4, base_key="rope_theta", scaling="yarn", factor=36.0, original_positions=8192,
                     table="yarn")}),
    # DBRX: in the table of attention; Kimi-Linear and BLOOM rotate nothing
    ({"attn_config": {"rope_theta": 500000}}, ["full"], {"full": Rope(base=5e5, base_key="attn_config.rope_theta")}),
    ({"rope_theta": 10000.0, "mla_use_nope": True}, ["latent"], {}),
    ({"alibi": True, "rope_theta": 10000.0}, ["full"], {}),
    ({"rope_theta": "large", "rope_scaling": None}, ["full"], {}),
])  # fmt: skip
def test_ropes(config: dict[str, Any], kinds: list[str], expected: dict[str, Rope]) -> None:
    stated = Config(config)
    assert ropes(stated, kinds) == expected
    assert {kind: stated.sources[f"rope.{kind}"] for kind in expected} == {
        kind: f"config.json: {rope.base_key}" for kind, rope in expected.items()}
