"""Tiny random models in real release folders, made by transformers, and the nouns that go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dayzero.backends import host
from dayzero.schema import (
    Attention,
    Cluster,
    Column,
    Device,
    Engine,
    FeedForward,
    Layer,
    Layout,
    ModelSpec,
    Plan,
    Release,
    Target,
    TensorGroup,
    TensorTable,
    Workload,
)
from dayzero.schema.target import EngineRequest

DENSE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 1,
         "bos_token_id": 0, "pad_token_id": 1, "initializer_range": 0.15}  # fmt: skip
EXPERTS = DENSE | {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}


def dense(folder: Path, *, seed: int = 0, dtype: str = "bfloat16", **changes: Any) -> Path:
    """A model with grouped-query attention, and a tokenizer."""
    return _save(folder, "llama", DENSE | changes, seed, dtype)


def experts(folder: Path, *, seed: int = 0, dtype: str = "bfloat16", **changes: Any) -> Path:
    """A mixture-of-experts model: all layers have 8 experts, of which a token visits 2."""
    return _save(folder, "qwen3_moe", EXPERTS | changes, seed, dtype)


def pictured(folder: Path, *, seed: int = 0, dtype: str = "bfloat16") -> Path:
    """The model of `dense` with a vision tower that has more layers than it."""
    tower = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6,
             "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    text = {"model_type": "llama", **DENSE}
    return _save(folder, "llava", {"text_config": text, "vision_config": tower, "image_token_index": 299}, seed, dtype)


def _save(folder: Path, kind: str, settings: dict[str, Any], seed: int, dtype: str) -> Path:
    import torch
    from transformers import AutoConfig

    from dayzero.runtime.library import auto_class

    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **settings)
    model = auto_class(type(config)).from_config(config).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="200KB")
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    """One token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: index + 2 for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def release(folder: Path, *, dtype: str = "bf16") -> Release:
    """The noun for such a folder, with what `run` and `check` use of it."""
    import json

    config = json.loads((folder / "config.json").read_text())
    column = Column([-1])
    table = TensorTable(files=(), groups=(TensorGroup(
        pattern="model.embed_tokens.weight", shape=(config["vocab_size"], config["hidden_size"]), dtype="BF16",
        layer=column, expert=column, file=column, start=column),))  # fmt: skip
    model = ModelSpec(
        name=folder.name, architectures=tuple(config["architectures"]), model_type=config["model_type"],
        hidden_size=config["hidden_size"], vocab_size=config["vocab_size"], max_positions=None, tied_embeddings=False,
        layers=(Layer(attention="full", feed_forward="dense"),) * config["num_hidden_layers"],
        attentions={"full": Attention(kind="full", heads=4, kv_heads=2, head_dim=16, v_head_dim=16)},
        feed_forwards={"dense": FeedForward(kind="dense", width=96, input_width=64)}, families=(), mtp_layers=0,
        parameters=0, parameters_text=0, parameters_active={}, checkpoint_bytes=0, dtype=dtype)
    return Release(name=folder.name, origin=str(folder), has_weights=True, files=(), tensors=table, index=None,
                   missing_shards=(), config=config, model=model, root=str(folder))


def target(devices: int, *, concurrency: int = 4, layouts: tuple[Layout, ...] = ()) -> Target:
    """This machine, as if it had been measured."""
    import platform

    device = Device(name="local", vendor=host.identity()[0], arch=platform.machine(), memory_bytes=2**32,
                    memory_bandwidth=1e10, flops={"bf16": 1e11})
    engine = Engine(name="any", version="", facts=EngineRequest(), kv_replication=True, redundant_experts=None,
                    head_padding="none", block_padding=False, vision="replicated")
    return Target(
        name="local", engine=engine, layouts=layouts, partial=False,
        cluster=Cluster(device=device, devices_per_node=devices, nodes=1, memory_utilization=0.9, network=None),
        workload=Workload(kind="serve", input_tokens=32, output_tokens=16, concurrency=concurrency,
                          max_batched_tokens=512))


EMPTY_PLAN = Plan(candidates=(), rejected=(), evaluated=0, seconds=0.0, workload={})
"""A plan that has nothing to say; layouts come from the target."""
