"""What each decoder layer is made of: its kind of attention and of feed-forward block.

Configs say it in many ways (lists of words, lists of indices that count from 0 or 1, steps); the files are the truth
where they show it: a latent key/value projection, a linear attention's decay, routed experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import ReleaseError

from .config import LIMITS, Config, printable, shortened
from .facts import Facts

_NUMBERS = re.compile(r" *[0-9]{1,9} *(?:, *[0-9]{1,9} *)*(?:, *)?")

Evidence = dict[int, frozenset[str]]
"""Layer -> kinds that its tensors show: latent, linear, attention (of any other kind), experts, dense."""


def attention_kinds(config: Config, facts: Facts, evidence: Evidence) -> list[str]:
    """full, sliding, latent, linear or none for each layer. Raises ReleaseError for lists that make no sense."""
    kinds = _stated_kinds(config, facts, evidence)
    whole = "latent" if "kv_rank" in facts else "full"
    single = _single_blocks(evidence, facts["layers"])
    for layer, kind in enumerate(kinds):
        shown = evidence.get(layer, frozenset())
        if "linear" in shown or "latent" in shown:
            kinds[layer] = "linear" if "linear" in shown else "latent"
        elif kind == "full":
            kinds[layer] = "full" if "attention" in shown else whole
        if "attention" not in shown and "linear" not in shown and "latent" not in shown and single:
            kinds[layer] = "none"
    return kinds


def feed_forward_kinds(config: Config, facts: Facts, evidence: Evidence) -> list[str]:
    """dense, experts or none for each layer."""
    routed = _expert_layers(config, facts) if "experts" in facts else frozenset()
    kinds = ["experts" if layer in routed else "dense" for layer in range(facts["layers"])]
    kinds = _single_stated(config, facts["layers"]) or kinds
    single = _single_blocks(evidence, facts["layers"])
    for layer in range(facts["layers"]):
        shown = evidence.get(layer, frozenset())
        if "experts" in shown or "dense" in shown:
            kinds[layer] = "experts" if "experts" in shown else "dense"
        elif single:
            kinds[layer] = "none"
    return kinds


def merged_tokens(config: Config, facts: Facts) -> list[int]:
    """Tokens that share an entry of the cache in each layer; 1: each has its own, 0: only a window is kept. Raises
    ReleaseError."""
    found, words = config.find("merged_tokens"), config.find("layer_types")
    if found is None:
        return [1] * facts["layers"]
    ratios, path = found
    if isinstance(ratios, dict) and words is not None and isinstance(words[0], list):
        ratios = [ratios.get(str(word), 0) for word in words[0]]
    if not isinstance(ratios, list):
        return [1] * facts["layers"]
    if not all(type(ratio) is int and 0 <= ratio <= LIMITS["layers"] for ratio in ratios):
        raise ReleaseError(f"{config.name}: {path} is not a list of numbers of tokens", "correct the config")
    config.note("merged_tokens", config.source(path))
    return [*ratios[: facts["layers"]], *[1] * (facts["layers"] - len(ratios))]


def indexed_layers(config: Config, facts: Facts, kinds: Sequence[str]) -> frozenset[int]:
    """Layers with an indexer of their own: those that a list names; of caches that are compressed to several degrees,
    those with the longest (the short ones are read whole); else all whose attention is sparse or latent."""
    if "index_heads" not in facts:
        return frozenset()
    chosen = [layer for layer, kind in enumerate(kinds) if kind in ("sparse", "latent")]
    found, own = config.find("indexer_types"), vocabulary().config.indexers
    if found is not None and isinstance(found[0], list):
        words = found[0]
        return frozenset(layer for layer in chosen if layer >= len(words) or own.get(str(words[layer]), True))
    merged, least = merged_tokens(config, facts), least_merged(config, facts)
    return frozenset(layer for layer in chosen if merged[layer] == least)


def least_merged(config: Config, facts: Facts) -> int:
    """Tokens that share an entry in the layers with the longest of the compressed caches; 1: no cache is compressed."""
    return min((tokens for tokens in merged_tokens(config, facts) if tokens > 1), default=1)


def _single_stated(config: Config, layers: int) -> list[str] | None:
    """Kinds of feed-forward block where the config lists layers without token mixing: the others have none."""
    words, names = (config.find("layer_types") or ((), ""))[0], vocabulary().config
    if not isinstance(words, (list, str)) or not any(names.layer_types.get(str(word)) == "none" for word in words):
        return None
    kinds = [names.feed_forward_types.get(str(word), "none") for word in words[:layers]]
    return [*kinds, *["none"] * (layers - len(kinds))]


def index_base(lists: Sequence[Sequence[int]], layers: int,
               shown: Sequence[frozenset[int] | None] = ()) -> tuple[int, str]:
    """Whether lists of layers count from 0 or 1, and how that is known. `shown`: for each list, the layers (from 0)
    that the files show to be of its kind; None if they show nothing."""
    score = {base: sum(index - base in found for indices, found in zip(lists, shown, strict=False) if found
                       for index in indices) for base in (0, 1)}  # fmt: skip
    if score[0] != score[1]:
        return max(score, key=lambda base: score[base]), "header: which layers have such tensors"
    everything = {index for indices in lists for index in indices}
    if 0 in everything:
        return 0, "config: a list holds 0"
    if layers in everything:
        return 1, "config: a list holds the number of layers"
    return 0, "default: nothing tells"


def _stated_kinds(config: Config, facts: Facts, evidence: Evidence) -> list[str]:
    """What the config says; a layer is sparse if something chooses the tokens that it looks at and it is not latent."""
    if "shared_head" in facts:
        return ["full"] * facts["layers"]  # what windows it has are beside the compressed cache
    kinds = _dense_kinds(config, facts, evidence)
    if "kv_rank" in facts:
        return kinds
    chosen = _step(config, "sparse_layers")
    flags = chosen if isinstance(chosen, list) else [int("index_heads" in facts)] * facts["layers"]
    return ["sparse" if flag and kind in ("full", "sliding") else kind
            for kind, flag in zip(kinds, [*flags, *[0] * facts["layers"]], strict=False)]


def _dense_kinds(config: Config, facts: Facts, evidence: Evidence) -> list[str]:
    found = config.find("layer_types")
    if found is not None:
        return _words(config, found, facts["layers"], vocabulary().config.layer_types)
    named = {kind: _indices(config, f"{kind}_layers") for kind in ("full", "linear", "sliding")}
    if any(named.values()):
        return _listed(config, named, facts, evidence)
    if "full_every" in facts and ("linear_heads" in facts or "state_size" in facts):
        every = facts["full_every"]
        offset = _offset(config, "full_offset", every - 1)
        return ["full" if layer % every == offset % every else "linear" for layer in range(facts["layers"])]
    return _windowed(config, facts)


def _words(config: Config, found: tuple[Any, str], layers: int, known: Mapping[str, str]) -> list[str]:
    """A list of words or numbers, or a string of letters, one for each layer; `known`: the kind that each stands for.
    A word that is not known is taken for the first kind, and listed, and so are entries that are missing at the end."""
    words, path = found
    numbered = vocabulary().config.numbered_types.get(path.rpartition(".")[2], [])
    known = {**known, **{str(number): kind for number, kind in enumerate(numbered)}}
    usual = next(iter(known.values()))
    if not isinstance(words, (list, str)):
        raise ReleaseError(f"{config.name}: {path} is {shortened(words)}, not a list with an entry for each layer",
                           "correct the config")
    config.note(path.rpartition(".")[2], config.source(path))
    unknown = sorted({str(word) for word in words if str(word) not in known})
    if unknown:
        config.unclear.append(f"{path}: {', '.join(map(printable, unknown[:5]))} (taken for {usual})")
    short = layers - len(words)
    if short > 0:
        config.unclear.append(f"{path}: {len(words)} entries for {layers} layers (the others taken for {usual})")
    return [*(known.get(str(word), usual) for word in words[:layers]), *[usual] * short]


def _listed(config: Config, named: dict[str, list[int]], facts: Facts, evidence: Evidence) -> list[str]:
    """Lists of indices. Layers that no list names are full, or linear if only full ones are named."""
    shown = {"linear": frozenset(layer for layer, kinds in evidence.items() if "linear" in kinds),
             "full": frozenset(layer for layer, kinds in evidence.items() if kinds and "linear" not in kinds),
             "sliding": None}  # fmt: skip
    base, why = index_base(list(named.values()), facts["layers"], [shown[kind] for kind in named])
    config.note("index_base", f"{base}: {why}")
    rest = "linear" if named["full"] and not named["linear"] and "linear_heads" in facts else "full"
    if named["full"] and not named["linear"] and rest == "full" and "window" in facts:
        rest = "sliding"
    kinds = [rest] * facts["layers"]
    for kind, indices in named.items():
        for index in indices:
            if 0 <= index - base < len(kinds):
                kinds[index - base] = kind
    return kinds


def _windowed(config: Config, facts: Facts) -> list[str]:
    """Sliding windows in every layer, in all but every n-th, or from some layer on."""
    layers = facts["layers"]
    longest = config.integer("max_positions")
    window = facts.get("window")
    if window is None or config.flag("use_window") is False or (longest is not None and window >= longest):
        return ["full"] * layers
    if "chunk" in facts:
        return _chunked(config, layers)
    found = config.find("sliding_every")
    if found is not None:
        pattern, path = found
        config.note("layer_types", config.source(path))
        if type(pattern) is int and 0 < pattern <= LIMITS["layers"]:
            return ["full" if (layer + 1) % pattern == 0 else "sliding" for layer in range(layers)]
        if isinstance(pattern, (list, str)) and pattern:
            return _words(config, (list(islice(cycle(pattern), layers)), path), layers, vocabulary().config.layer_types)
        raise ReleaseError(f"{config.name}: {path} is {shortened(pattern)}, not a step or a pattern",
                           "correct the config")
    first = facts.get("window_layers", 0) if facts.get("use_window") else 0
    return ["sliding" if layer >= first else "full" for layer in range(layers)]


def _chunked(config: Config, layers: int) -> list[str]:
    """Chunks in the layers of a list of 0 and 1, or in all but every n-th; in none where the config states neither."""
    flags = config.find("chunked_layers")
    every = config.integer("chunked_every")
    if flags and isinstance(flags[0], list) and flags[0]:
        config.note("layer_types", config.source(flags[1]))
        return ["sliding" if flag else "full" for flag in [*flags[0], *[0] * layers][:layers]]
    if every is None:
        config.unclear.append("chunk: which layers attend inside chunks is not stated (taken as none)")
        return ["full"] * layers
    config.note("layer_types", config.sources["chunked_every"])
    return ["full" if (layer + 1) % every == 0 else "sliding" for layer in range(layers)]


def _indices(config: Config, fact: str) -> list[int]:
    """A list of layers; also written as text, `1,2,3`. Raises ReleaseError."""
    found = config.find(fact)
    if found is None:
        return []
    value, path = found
    if isinstance(value, str) and _NUMBERS.fullmatch(value):
        value = [int(item) for item in value.split(",") if item.strip()]
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= LIMITS["layers"] for item in value):
        raise ReleaseError(f"{config.name}: {path} is not a list of layer numbers", "correct the config")
    config.note(fact, config.source(path))
    return list(value)


def _expert_layers(config: Config, facts: Facts) -> frozenset[int]:
    """Layers with routed experts, as the config states them."""
    layers = range(facts["layers"])
    found = config.find("feed_forward_types")
    if found is not None:
        kinds = _words(config, found, len(layers), vocabulary().config.feed_forward_types)
        return frozenset(layer for layer in layers if kinds[layer] == "experts")
    listed = _indices(config, "expert_layers")
    if listed:
        return frozenset(listed)
    every, step = _step(config, "expert_every"), _step(config, "expert_step")
    if isinstance(every, list):
        return frozenset(layer for layer in layers if layer < len(every) and every[layer])
    first, last = facts.get("dense_first", 0), facts.get("experts_last", facts["layers"] - 1)
    dense = set(_indices(config, "dense_layers"))
    chosen: Iterable[int] = (layer for layer in layers if first <= layer <= last and layer not in dense)
    stride, offset = step if isinstance(step, int) else 1, _offset(config, "expert_offset", 0)
    return frozenset(layer for layer in chosen if layer % every == offset % every and (layer + 1) % stride == 0)


def _offset(config: Config, fact: str, default: int) -> int:
    """The first layer of those that come at steps. Raises ReleaseError."""
    found = config.find(fact)
    if found is None:
        return default
    value, path = found
    if type(value) is not int or not 0 <= value <= LIMITS["layers"]:
        raise ReleaseError(f"{config.name}: {path} is {shortened(value)}, not a layer", "correct the config")
    config.note(fact, config.source(path))
    return value


def _step(config: Config, fact: str) -> int | list[Any]:
    """A step (absent or 0: every layer) or a list of 0 and 1. Raises ReleaseError."""
    found = config.find(fact)
    if found is None:
        return 1
    value, path = found
    if isinstance(value, list) or (type(value) is int and 0 <= value <= LIMITS["layers"]):
        config.note(fact, config.source(path))
        return value or 1
    raise ReleaseError(f"{config.name}: {path} is {shortened(value)}, not a step or a list", "correct the config")


def _single_blocks(evidence: Evidence, layers: int) -> bool:
    """Whether layers hold one block each: token mixing in some, feed-forward in others. Needs all layers."""
    mixing, feeding = {"linear", "latent", "attention"}, {"experts", "dense"}
    return len(evidence) >= layers and all(bool(kinds & mixing) != bool(kinds & feeding) for kinds in evidence.values())
