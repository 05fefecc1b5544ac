"""The language model's dimensions as the config states them, with the field's usual defaults where it does not."""

from __future__ import annotations

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import ReleaseError

from .config import DEFAULT, LIMITS, Config

Facts = dict[str, int]
"""Dimension by vocabulary name; a dimension that the model does not have is absent."""

OPTIONAL = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "window", "chunk", "full_every", "window_layers",
            "sliding_heads", "sliding_kv_heads", "sliding_head_dim", "sliding_v_head_dim", "linear_heads",
            "linear_kv_heads", "linear_head_dim", "linear_v_head_dim", "conv_kernel", "dense_width", "expert_width",
            "expert_input", "experts", "zero_experts", "top_k", "shared_experts", "shared_width", "dense_first",
            "experts_last", "mtp_layers", "index_heads", "index_head_dim", "index_top_k", "output_groups",
            "output_rank", "streams", "state_size", "state_groups", "state_expand")
FLAGS = ("attention_bias", "qkv_bias", "mlp_bias", "expert_bias", "router_bias", "ungated", "sinks", "sandwich_norms",
         "shared_gate", "output_gate", "qk_norm", "full_rank_gate", "latent_gate", "doubled",
         "use_window")


def language_facts(config: Config, embedding: tuple[int, ...] = ()) -> Facts:
    """All dimensions. `embedding`: shape of the embedding in the files, for configs that leave its sizes to a class.
    Raises ReleaseError for a missing key or a value of the wrong type."""
    facts: Facts = {"layers": _layers(config), "heads": _heads(config)}
    for axis, name in enumerate(("vocab_size", "hidden_size")):
        stated = config.integer(name, least=1)
        if len(embedding) == 2 and config.sources.get(name, DEFAULT).startswith(DEFAULT):
            stated = embedding[axis]
            config.note(name, "header: embedding")
        facts[name] = stated or config.size(name)
    for name in OPTIONAL:
        value = config.integer(name)
        if value is not None:
            facts[name] = value
    for name in FLAGS:
        if config.flag(name):
            facts[name] = 1
    _attention_defaults(config, facts)
    activation = config.find("activation")
    if config.flag("ungated") is None and activation and activation[0] in vocabulary().gated.never:
        facts["ungated"] = 1
    if "experts" in facts:
        _expert_defaults(config, facts)
    else:
        for name in ("expert_width", "expert_input", "zero_experts", "top_k", "shared_experts", "shared_width"):
            facts.pop(name, None)
            config.sources.pop(name, None)
    if "dense_width" not in facts:
        _default(config, facts, "dense_width", 4 * facts["hidden_size"], "4 x hidden size")
        facts["ungated"] = facts.get("ungated", int("experts" not in facts))
    return facts


def _layers(config: Config) -> int:
    """Decoder layers; a config that lists them one by one may not count them."""
    stated, listed = config.integer("layers", least=1), config.find("layer_types")
    if stated is None and listed and isinstance(listed[0], (list, str)) and 0 < len(listed[0]) <= LIMITS["layers"]:
        config.note("layers", config.source(listed[1]))
        return len(listed[0])
    return stated or config.size("layers")


def _heads(config: Config) -> int:
    """Query heads; 1 where there are none, as every layer is a state space."""
    stated = config.integer("heads", least=1)
    if stated is None and config.integer("state_size"):
        config.note("heads", f"{DEFAULT}none, a state space")
        return config.integer("linear_heads") or 1
    return stated or config.size("heads")


def _default(config: Config, facts: Facts, name: str, value: int, why: str) -> None:
    if name not in facts:
        facts[name] = value
        config.note(name, f"{DEFAULT}{why}")


def _attention_defaults(config: Config, facts: Facts) -> None:
    for name in ("kv_heads", "head_dim", "v_head_dim"):
        value = config.integer(name)
        if value is not None:
            facts[name] = value
    # A config of such a model may state as many key/value heads as query heads, and mean one.
    if config.flag("multi_query") and facts.get("kv_heads", facts["heads"]) == facts["heads"]:
        facts["kv_heads"] = 1
        config.note("kv_heads", config.sources["multi_query"])
    _default(config, facts, "kv_heads", facts["heads"], "as many as query heads")
    _default(config, facts, "head_dim", max(1, facts["hidden_size"] // facts["heads"]), "hidden size / heads")
    _default(config, facts, "v_head_dim", facts["head_dim"], "as wide as a key head")
    if "kv_rank" not in facts and "q_rank" in facts and 0 < facts.get("rope_dim", 0) < facts["head_dim"]:
        _shared_head(config, facts)
    if "kv_rank" in facts:
        _default(config, facts, "nope_dim", facts["head_dim"], "head_dim")
        _default(config, facts, "rope_dim", 0, "no separate positional key")
    if "window" in facts:
        facts.pop("chunk", None)  # configs that state both mean the window
    elif "chunk" in facts:
        _default(config, facts, "window", facts["chunk"], "the chunk")
    if "window" in facts:
        for name in ("heads", "kv_heads", "head_dim", "v_head_dim"):
            _default(config, facts, f"sliding_{name}", facts[name], f"{name} of the other layers")
    if "state_size" in facts:
        _state_space(config, facts)
    else:
        facts["fused_linear" if "linear_kv_heads" in facts else "decay_linear"] = 1
    if "linear_heads" in facts:
        _default(config, facts, "linear_kv_heads", facts["linear_heads"], "as many as heads of the state")
        _default(config, facts, "linear_head_dim", facts["head_dim"], "head_dim")
        _default(config, facts, "linear_v_head_dim", facts["linear_head_dim"], "as wide as a key head")


def _shared_head(config: Config, facts: Facts) -> None:
    """One head of compressed queries that is key and value at once is a latent cache: there is nothing to expand."""
    if facts["kv_heads"] == 1:
        for name in ("kv_rank", "nope_dim"):
            _default(config, facts, name, facts["head_dim"] - facts["rope_dim"], "one head is key and value")
        facts["shared_head"] = 1


def _state_space(config: Config, facts: Facts) -> None:
    """A state space layer is a linear attention (arXiv:2405.21060 section 7): its B and C are keys and queries as wide
    as the state, shared by the heads of a group; its inputs are values as wide as a head."""
    _default(config, facts, "state_groups", 1, "one group of heads")
    for name, other in (("linear_head_dim", "state_size"), ("linear_kv_heads", "state_groups")):
        facts[name] = facts[other]
        config.note(name, config.sources[other])
    if "state_expand" in facts:
        width = facts["state_expand"] * facts["hidden_size"] // facts.get("linear_heads", facts["heads"])
        _default(config, facts, "linear_v_head_dim", width, "expanded hidden size / heads")
    facts["state_space"] = 1


def _expert_defaults(config: Config, facts: Facts) -> None:
    if "top_k" not in facts:
        config.size("top_k")
    if "expert_width" not in facts and "dense_width" in facts:
        facts["expert_width"] = facts["dense_width"]
        config.note("expert_width", config.sources["dense_width"])
    elif "expert_width" not in facts:
        config.size("expert_width")
    choices = facts["experts"] + facts.get("zero_experts", 0)
    if facts["top_k"] > choices:
        raise ReleaseError(f"{config.name} routes each token to {facts['top_k']} of {choices} experts",
                           "correct the number of experts or the number per token")
    if "shared_width" in facts:
        _default(config, facts, "shared_experts", 1, "one, as a width is stated")
    elif "shared_experts" in facts:
        _default(config, facts, "shared_width", facts["shared_experts"] * facts["expert_width"],
                 "shared experts x width of an expert")
    if "expert_input" in facts:
        facts["latent_experts"] = 1
    _default(config, facts, "expert_input", facts["hidden_size"], "hidden size")
