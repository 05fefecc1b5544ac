"""The named numbers that an engine's limits and branches speak of: of the model, the workload and a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dayzero.data.vocabulary import vocabulary
from dayzero.placement import experts_per_rank
from dayzero.placement.keys import stated_key
from dayzero.schema import Attention, FeedForward, Layout, ModelSpec
from dayzero.stages.preflight.rule import Case

OF_LAYOUT = ("tp", "pp", "ep", "dp", "cp", "attention_tp", "expert_tp", "local_heads", "local_kv_heads",
             "local_experts", "heads_per_rank", "experts_per_rank", "local_expert_width", "local_width")
"""Numbers that only a layout has."""
OF_MODEL = ("experts", "top_k", "shared_experts", "heads", "kv_heads", "head_dim", "v_head_dim", "q_rank", "kv_rank",
            "rope_dim", "window", "conv_kernel", "linear_heads", "linear_head_dim", "layers", "moe_layers",
            "mtp_layers", "hidden_size", "vocab_size", "intermediate_size", "moe_intermediate_size", "shared_width",
            "max_positions", "block")
"""Numbers of the model; one that it has not has no value."""
OF_WORKLOAD = ("tokens", "input_tokens", "output_tokens", "length", "concurrency", "devices", "devices_per_node",
               "nodes")
"""Numbers of the workload and the cluster."""
OF_FORMAT = ("group_size", "num_bits", "bits", "block_out", "block_in")
"""Numbers of the stated quantisation."""
_SOURCES = {"intermediate_size": "dense_width", "moe_intermediate_size": "expert_width"}


class Quantities:
    """The numbers of one case."""

    def __init__(self, case: Case) -> None:
        self.model = case.model
        self.keys = {**_of_format(case), **dict(_integers(case.release.config))}
        workload, cluster = case.target.workload, case.target.cluster
        numbers: dict[str, int | None] = {
            **_of_model(case.model), "tokens": workload.max_batched_tokens, "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens, "length": workload.length, "concurrency": workload.concurrency,
            "devices": cluster.world_size, "devices_per_node": cluster.devices_per_node, "nodes": cluster.nodes}
        own = {*OF_LAYOUT, *OF_MODEL, *OF_WORKLOAD}
        self.values: dict[str, int] = {key: value for key, value in self.keys.items() if key not in own}
        self.values |= {name: value for name, value in numbers.items() if value}
        spellings = vocabulary().config.spellings()
        for fact in OF_MODEL:  # a limit may be stated in the words of another model's config
            for word in spellings.get(_SOURCES.get(fact, fact), ()) if fact in self.values else ():
                self.values.setdefault(word.rpartition(".")[2], self.values[fact])
        words = [word.rpartition(".")[2] for words in spellings.values() for word in words]
        self.known = frozenset((*OF_LAYOUT, *OF_MODEL, *OF_WORKLOAD, *OF_FORMAT, *self.keys, *words))
        """Every name that may be used; one without a value says nothing about this case."""

    def of(self, layout: Layout | None) -> dict[str, int]:
        """All numbers with those of a layout, if there is one."""
        return {**self.values, **(_of_layout(self.model, layout) if layout else {})}

    def subject(self, name: str) -> str:
        """The config key that a number was read from, with its name here where the key does not contain it."""
        key = stated_key(self.model, _SOURCES.get(name, name)) or name
        return key if name in key else f"{key} ({name})"


def _kinds(model: ModelSpec) -> tuple[list[Attention], list[FeedForward]]:
    """What layers use, each kind once."""
    mixing = [model.attentions[name] for name in dict.fromkeys(layer.attention for layer in model.layers)]
    feeding = [model.feed_forwards[name] for name in dict.fromkeys(layer.feed_forward for layer in model.layers)]
    return mixing, feeding


def _most(values: Iterator[int | None]) -> int | None:
    return max((value for value in values if value), default=None)


def _of_model(model: ModelSpec) -> dict[str, int | None]:
    mixing, feeding = _kinds(model)
    linear = [attention for attention in mixing if attention.kind == "linear"]
    soft = [attention for attention in mixing if attention.kind != "linear"] or linear
    experts = [block for block in feeding if block.experts]
    dense = [block for block in feeding if not block.experts]
    fields = ("heads", "kv_heads", "head_dim", "v_head_dim", "q_rank", "kv_rank", "rope_dim", "window")
    return {
        **{name: _most(getattr(attention, name) for attention in soft) for name in fields},
        "conv_kernel": _most(attention.conv_kernel for attention in mixing),
        "linear_heads": _most(attention.heads for attention in linear),
        "linear_head_dim": _most(attention.head_dim for attention in linear),
        "experts": _most(block.choices for block in experts),  # what a router's kernel is built for
        **{name: _most(getattr(block, name) for block in experts)
           for name in ("top_k", "shared_experts", "shared_width")},
        "intermediate_size": _most(block.width for block in dense),
        "moe_intermediate_size": _most(block.width for block in experts),
        "layers": len(model.layers), "mtp_layers": model.mtp_layers,
        "moe_layers": sum(bool(model.feed_forwards[layer.feed_forward].experts) for layer in model.layers),
        "hidden_size": model.hidden_size, "vocab_size": model.vocab_size, "max_positions": model.max_positions,
        "block": _most(family.block if family.block > 1 else None for family in model.families),
    }  # fmt: skip


def _of_format(case: Case) -> dict[str, int]:
    """Integers of the quantisation table, and the blocks of its (first) format."""
    found = dict(_integers(case.model.quantization or {}))
    form = next(iter(case.stated.formats()), None)
    if form and form.block:
        found |= {"block_out": form.block[0], "block_in": form.block[1]}
        found.setdefault("group_size", form.block[1])
    return found


def _of_layout(model: ModelSpec, layout: Layout) -> dict[str, int]:
    numbers = _of_model(model)
    heads, kv_heads = numbers["heads"], numbers["kv_heads"]
    width, dense = numbers["moe_intermediate_size"], numbers["intermediate_size"]
    routed = next((family for family in model.families if family.experts), None)
    found = {
        "tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "dp": layout.dp, "cp": layout.cp,
        "attention_tp": layout.attention_degree, "expert_tp": layout.expert_tp,
        "local_heads": -(-heads // layout.attention_degree) if heads else None,
        "local_kv_heads": -(-kv_heads // layout.attention_degree) if kv_heads else None,
        "local_experts": experts_per_rank(routed, layout) if routed else None,
        "local_expert_width": -(-width // layout.expert_tp) if width else None,
        "local_width": -(-dense // layout.tp) if dense else None,
    }
    found |= {"heads_per_rank": found["local_heads"], "experts_per_rank": found["local_experts"]}
    return {name: value for name, value in found.items() if value is not None}


def _integers(table: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Integers of the language model's config by the last part of their key, outer tables first: inner ones count."""
    towers = vocabulary().config.towers
    for key, value in table.items():
        if type(value) is int and abs(value) < 1 << 60:
            yield key, value
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in towers and not key.endswith("quantization_config"):
            yield from _integers(value)
