"""Releases and targets from which fuzzing starts: small ones of many families and formats, whole and right.

A `Draft` is a release folder that has not been written yet: it can be changed as structure and not only as bytes.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, prod
from pathlib import Path
from typing import Any

import tomli_w
from tests.support import quantised, small_release, tiny_release

from dayzero.schema.release import ITEM_BITS
from dayzero.stages.read import read

CARDS = Path(__file__).parents[2] / "examples" / "cards"
LAYERS, EXPERTS = 4, 8
COUNTS = {"num_hidden_layers": LAYERS, "n_routed_experts": EXPERTS, "num_experts": EXPERTS,
          "num_local_experts": EXPERTS,
          "vocab_size": 512, "num_experts_per_tok": 2, "num_experts_per_token": 2, "n_group": 1, "topk_group": 1,
          "num_expert_group": 1, "first_k_dense_replace": 1, "vt_num_hidden_layers": 2}  # fmt: skip
CODE = """import os, fla
from transformers.utils.import_utils import is_torch_fx_available
from .configuration_some import SomeConfig
import flash_attn
class SomeForCausalLM:
    def __init__(self, config):
        self.a = config.rope_theta, getattr(config, "swiglu_limit", None), config.text_config.hidden_size
        eval(os.popen("true").read())
"""
TARGET: dict[str, Any] = {
    "cluster": {"device": "h200", "devices_per_node": 8, "nodes": 1},
    "workload": {"input_tokens": 1024, "output_tokens": 64, "concurrency": 2},
}


@dataclass
class Draft:
    """A release folder and a target file to be."""

    config: Any
    """What becomes config.json."""
    shards: dict[str, list[list[Any]]] = field(default_factory=dict)
    """File -> [name, dtype, shape] of each tensor, in the order of the data."""
    index: Any = None
    """What becomes the index; None: what is right, "none": there is none."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files -> text."""
    target: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(TARGET))
    """What becomes target.toml."""
    card: Any = None
    """What becomes a card, in place of the release."""

    def tensors(self) -> list[list[Any]]:
        """[name, dtype, shape] of all."""
        return [tensor for shard in self.shards.values() for tensor in shard]


def seeds(folder: Path) -> tuple[Draft, ...]:
    """All of them. `folder` is for files that are needed meanwhile."""
    return (*_cards(folder), *_formats(), *_small())


def _cards(folder: Path) -> Iterator[Draft]:
    """The cards, cut to a few layers and experts: as releases with every tensor, as configs alone, and as they are."""
    for path in sorted(CARDS.glob("*.toml")):
        card = tomllib.loads(path.read_text())
        shrunk = {**card, "config": _shrunk(card["config"])}
        file = folder / path.name
        file.write_text(tomli_w.dumps(shrunk))
        tensors = [[group.name(row), group.dtype, list(group.shape)]
                   for group in read(file).tensors.groups for row in range(group.count)]
        yield Draft(config=shrunk["config"], shards=_dealt(tensors, 2), files=_code(shrunk["config"]))
        yield Draft(config=card["config"])
        yield Draft(config=None, card=shrunk)


def _shrunk(config: Any) -> Any:
    """The same with few layers, experts and words; lists of layers as long as they then are."""
    if isinstance(config, dict):
        return {key: COUNTS[key] if key in COUNTS and isinstance(value, int) and value > COUNTS[key] else _shrunk(value)
                for key, value in config.items()}  # fmt: skip
    if isinstance(config, list) and config and len(set(map(type, config))) == 1 and isinstance(config[0], int):
        return [item for item in config if item <= LAYERS]
    if isinstance(config, list) and len(config) > 8 and len({*map(str, config)}) < 4:
        return config[:LAYERS]
    return config


def _code(config: dict[str, Any]) -> dict[str, str]:
    targets = config.get("auto_map", {}).values()
    return {f"{target.partition('.')[0]}.py": CODE.replace("SomeForCausalLM", target.partition(".")[2])
             for target in targets}  # fmt: skip


def _formats() -> Iterator[Draft]:
    """A dense decoder in every quantised format, and experts in blocks of 8 bits."""
    for form, stated in quantised.ALL.items():
        rows = [[name, dtype, list(shape)] for name, (shape, dtype) in quantised.tensors(form).items()]
        yield Draft(config=copy.deepcopy(quantised.config(stated)), shards=_dealt(rows, 2))
    rows = [[name, dtype, list(shape)] for name, (shape, dtype) in tiny_release.expert_tensors().items()]
    yield Draft(config=copy.deepcopy(tiny_release.EXPERT_CONFIG), shards=_dealt(rows, 3))
    for other in ("bf16", "f32"):
        rows = [[name, dtype, list(shape)] for name, (shape, dtype) in quantised.tensors("fp8-block",
            {"k_proj": other}).items()]
        stated = {**quantised.FP8,
                  "modules_to_not_convert": [f"model.layers.{layer}.self_attn.k_proj" for layer in range(3)]}
        yield Draft(config=copy.deepcopy(quantised.config(stated, rope_parameters={"rope_theta": 5e6},
                                                          transformers_version="5.20.0")),
                    shards=_dealt(rows, 2))
    nvfp4 = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    rows = [[name, dtype, list(shape)] for name, (shape, dtype) in quantised.tensors("nvfp4").items()]
    yield Draft(config=copy.deepcopy(quantised.config(None)), shards=_dealt(rows, 1),
                files={"hf_quant_config.json": json.dumps(nvfp4)})  # fmt: skip


def _small() -> Iterator[Draft]:
    """With tokenizer, shipped code and a manifest; in one file without an index."""
    rows = [[name, dtype, list(shape)] for name, (dtype, shape) in small_release.tensors().items()]
    code = {"configuration_some.py": "import transformers\nclass SomeConfig: pass\n", "modeling_some.py": CODE}
    config = {**small_release.CONFIG, "auto_map": {"AutoConfig": "configuration_some.SomeConfig",
                                                   "AutoModelForCausalLM": "modeling_some.SomeForCausalLM"}}
    manifest = {"files": {"config.json": {"size": 1, "sha256": "0" * 64}}, "provenance": "made up"}
    yield Draft(config=config, shards=_dealt(rows, 2), files={
        **code, "tokenizer.json": "{}", "dayzero-manifest.json": json.dumps(manifest), "README.md": "some\n"})
    yield Draft(config=dict(small_release.CONFIG), shards={"model.safetensors": rows}, index="none")
    sparse = {**small_release.CONFIG, "model_type": "deepseek_v32", "n_routed_experts": EXPERTS,
              "num_experts_per_tok": 2,
              "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16,
              "q_lora_rank": 24,
              "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "index_topk": 16, "index_head_dim": 16,
              "index_n_heads": 2,
              "num_nextn_predict_layers": 1, "rope_interleave": True, "rope_scaling": {"type": "yarn", "factor": 4},
              "swiglu_limit": 7.0}
    rows = [row for row in rows if "_proj" not in row[0]]
    for layer in range(4):
        at = f"model.layers.{layer}."
        rows += [[f"{at}mlp.gate.weight", "BF16", [8, 64]], [f"{at}mlp.gate.e_score_correction_bias", "F32", [8]],
                 [f"{at}self_attn.indexer.wq_b.weight", "F8_E4M3", [32, 24]],
                 [f"{at}self_attn.indexer.wq_b.weight_scale_inv", "F32", [1, 1]],
                 [f"{at}self_attn.kv_a_proj_with_mqa.weight", "BF16", [24, 64]],
                 [f"{at}self_attn.kv_b_proj.weight", "BF16", [128, 16]],
                 [f"{at}self_attn.q_a_proj.weight", "BF16", [24, 64]],
                 [f"{at}self_attn.q_b_proj.weight", "BF16", [96, 24]],
                 [f"{at}self_attn.o_proj.weight", "BF16", [64, 64]],
                 [f"{at}mlp.shared_experts.up_proj.weight", "BF16", [32, 64]]]
        rows += [[f"{at}mlp.experts.{expert}.{name}.weight", "BF16", shape] for expert in range(8)
                 for name, shape in (("gate_proj", [32, 64]), ("up_proj", [32, 64]), ("down_proj", [64, 32]))]
    rows.append(["model.layers.3.eh_proj.weight", "BF16", [64, 128]])
    yield Draft(config=sparse, shards=_dealt(rows, 2), files=code)


def _dealt(tensors: list[list[Any]], count: int) -> dict[str, list[list[Any]]]:
    ends = [number * len(tensors) // count for number in range(count + 1)]
    return {f"model-{number + 1:05d}-of-{count:05d}.safetensors": tensors[ends[number]:ends[number + 1]]
            for number in range(count)}  # fmt: skip


def tensor_bytes(dtype: Any, shape: Any) -> int:
    """Bytes that a tensor takes; some number where shape or dtype make no sense."""
    sizes = shape if isinstance(shape, list) else []
    if not all(isinstance(size, int) and 0 <= size < 2**40 for size in sizes) or len(sizes) > 8:
        return 8
    bits = ITEM_BITS.get(dtype, 16) if isinstance(dtype, str) else 16
    return min(2**42, ceil(prod(sizes) * bits / 8))


def engine_facts(draft: Draft) -> dict[str, list[Any]]:
    """[engine] key -> values that make sense for this release; each key of the contract has some."""
    names = [tensor[0] for tensor in draft.tensors()] or ["model.layers.0.self_attn.q_proj.weight"]
    some, other = names[len(names) // 2], names[-1]
    shape = next((tensor[2] for tensor in draft.tensors()), [1])
    module, words = some.rpartition(".")[0], ["rope_theta", "swiglu_limit", "hidden_size", "rope_scaling"]
    return {
        "name": ["vllm", "sglang", "any", "transformers"], "version": ["0.11.0", "main"],
        "schemes": [["bf16"], ["bf16", "f16", "fp8"], ["w8a8", "w4a8", "w4a16", "mxfp4", "mxfp8", "nvfp4"]],
        "limits": [{"experts": 4}, {"layers": 2}, {"experts": 512, "layers": 2, "hidden_size": 32, "vocab_size": 10}],
        "branches": [[{"op": "topk", "when": "tokens > 54272", "needs": "experts power_of_two"}],
                     [{"op": "x", "when": "batch >= 1", "needs": "hidden_size % 128 == 0"}]],
        "kv_replication": [True, False], "redundant_experts": [True, False], "block_padding": [True, False],
        "head_padding": ["none", "multiple_of_tp"], "vision": ["replicated", "split"],
        "fuses": [[["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]], [["in_proj_qkv", "in_proj_z"]]],
        "fuse_suffixes": [[".weight", ".weight_scale_inv"], [""]],
        "declares": [[{"name": some, "shape": shape, "dtype": "BF16"}],
                     [{"name": f"{module}.x", "shape": [1], "dtype": "F32"}],
                     [{"name": name, "shape": [3], "dtype": "F32"} for name in names[:40]]],
        "modules": [[module], [name.rpartition(".")[0] for name in names[:60]]],
        "quant_from": ["config", "file"],
        "renames": [[{"strip": "model."}], [{"strip": "language_model."}, {"prefix": "model."}],
                    [{"from": "mlp", "to": "ffn"}]],
        "filters": [[{"drop": "model.layers.61."}], [{"drop": "model.layers.1."}],
                    [{"drop": some}, {"keep": "model."}]],
        "expects": [["experts.{e}.gate_proj.weight", "experts.{e}.up_proj.weight"], names[:50], [other]],
        "on_unknown": ["error", "skip", "warn"],
        "config_reads": [{"*": words, "routed_experts": []}, {"attention": [], "rotary": words[:1], "norm": [],
                                                              "router": []}],
        "config_defaults": [{"rope_theta": 10000.0}, dict.fromkeys(words, 1)],
        "rope_layout": [{"attention": "interleaved", "indexer": "half_split"},
                        {"attention": "half_split", "indexer": "interleaved"}],
        "param_dtype": [{"e_score_correction_bias": "bf16"}, {some.rpartition(".")[2]: "f16"}],
        "unified_pages": [True, False], "scale_rounding": ["floor", "ceil"], "speculative": ["mtp", "none"],
        "backends": [[{"name": "a", "op": "fp8", "archs": ["sm90"], "default": True},
                      {"name": "b", "op": "mxfp4", "archs": ["*"]}]],
        "fp8_conversion": [True, False], "transformers": ["5.16.1", "4.56.2"],
        "supported_since": [{"llama": "5.11.0", "tiny": "9.0"}],
        "removed_in": [{"transformers.utils.import_utils.is_torch_fx_available": "5.0.0"}],
    }  # fmt: skip
