"""Models and targets for the planner's tests, made by hand from the facts of published configs."""

from __future__ import annotations

from math import prod

from dayzero.schema import (
    Attention,
    Cluster,
    Device,
    Engine,
    FeedForward,
    Layer,
    Layout,
    Link,
    ModelSpec,
    Target,
    WeightFamily,
    Workload,
)
from dayzero.schema.target import EngineRequest

ITEMS = {"BF16": 2, "F32": 4, "U8": 1}


def family(role: str, shape: tuple[int, ...], layers: int, split: str = "replicated", axis: int | None = None, *,
           experts: int = 0, pattern: str = "") -> WeightFamily:
    """A bf16 family that the first `layers` layers have; 0: not in a layer."""
    count = max(layers, 1) * max(experts, 1)
    parameters = count * prod(shape)
    return WeightFamily(role=role, pattern=pattern or f"{role}.{{L}}.weight", shape=shape, dtype="BF16", scheme="bf16",
                        split=split, axis=axis, count=count, layers=tuple(range(layers)), experts=experts,
                        parameters=parameters, stored_bytes=2 * parameters)


def model(families: list[WeightFamily], layers: int, hidden: int, vocab: int, attention: Attention, block: FeedForward,
          tied: bool) -> ModelSpec:
    """A model whose layers are all alike."""
    parameters = sum(one.parameters for one in families)
    return ModelSpec(
        name="made by hand", architectures=("Made",), model_type="made", hidden_size=hidden, vocab_size=vocab,
        max_positions=8192, tied_embeddings=tied, layers=(Layer(attention="a", feed_forward="f"),) * layers,
        attentions={"a": attention}, feed_forwards={"f": block}, families=tuple(families), mtp_layers=0,
        parameters=parameters, parameters_text=parameters, parameters_active={"all": parameters},
        checkpoint_bytes=sum(one.stored_bytes for one in families), dtype="bf16")  # fmt: skip


def attention_families(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int) -> list[WeightFamily]:
    """Query, key, value and output projections."""
    wide, narrow = heads * head_dim, kv_heads * head_dim
    return [family("attention.q", (wide, hidden), layers, "heads", 0),
            family("attention.k", (narrow, hidden), layers, "kv_heads", 0),
            family("attention.v", (narrow, hidden), layers, "kv_heads", 0),
            family("attention.o", (hidden, wide), layers, "heads", 1)]


def dense() -> ModelSpec:
    """SmolLM2-135M: the dimensions in its config.json. 134,515,008 parameters."""
    layers, hidden, width, vocab = 30, 576, 1536, 49152
    families = [
        *attention_families(layers, hidden, 9, 3, 64),
        family("mlp.gate", (width, hidden), layers, "width", 0), family("mlp.up", (width, hidden), layers, "width", 0),
        family("mlp.down", (hidden, width), layers, "width", 1),
        family("norm.attention", (hidden,), layers), family("norm.feed_forward", (hidden,), layers),
        family("norm.final", (hidden,), 0), family("embedding", (vocab, hidden), 0, "vocab", 0)]
    attention = Attention(kind="full", heads=9, kv_heads=3, head_dim=64, v_head_dim=64)
    block = FeedForward(kind="dense", width=width, input_width=hidden)
    return model(families, layers, hidden, vocab, attention, block, tied=True)


def sparse(layers: int = 8, experts: int = 64, top_k: int = 4) -> ModelSpec:
    """A mixture of experts: 1024 wide, 16 heads, 4 KV heads, experts of width 512."""
    hidden, width, vocab = 1024, 512, 32000
    families = [
        *attention_families(layers, hidden, 16, 4, 64), family("router", (experts, hidden), layers),
        family("experts.gate", (width, hidden), layers, "width", 0, experts=experts),
        family("experts.up", (width, hidden), layers, "width", 0, experts=experts),
        family("experts.down", (hidden, width), layers, "width", 1, experts=experts),
        family("embedding", (vocab, hidden), 0, "vocab", 0), family("head", (vocab, hidden), 0, "vocab", 0)]
    attention = Attention(kind="full", heads=16, kv_heads=4, head_dim=64, v_head_dim=64)
    block = FeedForward(kind="experts", width=width, input_width=hidden, experts=experts, top_k=top_k)
    return model(families, layers, hidden, vocab, attention, block, tied=False)


def device(**changes: object) -> Device:
    """An accelerator of round numbers: 80 GB, 1 TB/s, 100 TFLOP/s in bf16, a 100 GB/s link of 8."""
    facts: dict[str, object] = {
        "name": "round", "vendor": "", "arch": "", "memory_bytes": 80 * 10**9, "memory_bandwidth": 1e12,
        "flops": {"bf16": 1e14}, "links": (Link(name="link", devices=8, bandwidth=1e11, latency=1e-5, source="test"),)}
    return Device(**(facts | changes))  # type: ignore[arg-type]


def target(devices: int = 1, nodes: int = 1, *, on: Device | None = None, layouts: tuple[Layout, ...] = (),
           **workload: object) -> Target:
    """A cluster of `nodes` times `devices` and an engine of which nothing is known."""
    wanted: dict[str, object] = {"kind": "serve", "input_tokens": 1024, "output_tokens": 256, "concurrency": 8,
                                 "max_batched_tokens": 8192}
    network = Link(name="network", devices=0, bandwidth=2e10, latency=2e-5, source="test")
    return Target(
        name="test", partial=False, layouts=layouts, workload=Workload(**(wanted | workload)),  # type: ignore[arg-type]
        cluster=Cluster(device=on or device(), devices_per_node=devices, nodes=nodes, memory_utilization=0.9,
                        network=network),
        engine=Engine(name="any", version="", facts=EngineRequest(), kv_replication=True, redundant_experts=None,
                      head_padding="none", block_padding=False, vision="replicated"))  # fmt: skip
