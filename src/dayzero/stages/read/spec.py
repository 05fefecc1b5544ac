"""ModelSpec: what headers and config say about a model. Headers count; what the config says is noted beside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from dayzero.data.classes import unlike
from dayzero.floats import dtype_named
from dayzero.placement.split import UNUSED
from dayzero.schema import Attention, FeedForward, Layer, ModelSpec, TensorTable, WeightFamily
from dayzero.schema.release import ITEM_BITS

from .blocks import Architecture, standard_tensors
from .config import DEFAULT, Config, Table, not_finite
from .dims import Seen, attention, feed_forward
from .facts import Facts, language_facts
from .families import Dims, Part, parts_of
from .layers import Evidence, attention_kinds, feed_forward_kinds, merged_tokens
from .quant import PLAIN
from .roles import role_of
from .rope import ropes
from .towers import add_towers, stated_towers

_NUMBER = re.compile(r"\.\d+(?=\.)")


def model_spec(name: str, config: object, tensors: TensorTable, *, config_name: str = "config.json",
               provenance: str = "", quantization: tuple[Table, str] | None = None) -> ModelSpec:
    """What the files say about the model `name`. `config`: the decoded config.json; `tensors`: from the headers of the
    shards, or a card's. Without tensors the weights are estimated from standard blocks, and `sources` says so.
    `quantization`: what another file states of it, and where, for a config that says nothing.
    Raises ReleaseError for a missing key and for a value of the wrong type."""
    stated = Config(config, config_name, {"quantization": quantization} if quantization else None)
    facts = language_facts(stated, _embedding(tensors))
    problems: list[str] = []
    if not tensors.count:
        tensors, problems = estimate(stated, facts)
    quantised = stated.table("quantization")
    parts = parts_of(tensors, Dims(facts["layers"], facts.get("expert_input", facts["hidden_size"]),
                                   facts.get("experts", 0), quantised))  # fmt: skip
    tied = _tied(stated, parts)
    parts = _without_idle_head(parts) if tied else parts
    headers = [] if "families" in stated.sources else parts
    evidence = _evidence(headers)
    mixing = attention_kinds(stated, facts, evidence)
    feeding = feed_forward_kinds(stated, facts, evidence)
    merged = merged_tokens(stated, facts)
    mixed = [f"{kind}/{tokens}" if kind == "latent" and tokens != 1 else kind
             for kind, tokens in zip(mixing, merged, strict=True)]  # fmt: skip
    attentions = {name: attention(name, facts, Seen(headers, _layers_of(name, mixed)), stated)
                  for name in dict.fromkeys(mixed)}  # fmt: skip
    feed_forwards = {kind: feed_forward(kind, facts, Seen(headers, _layers_of(kind, feeding)), stated)
                     for kind in dict.fromkeys(feeding)}  # fmt: skip
    attentions = {name: msgspec.structs.replace(kind, times=_times(parts, _layers_of(name, mixed)))
                  for name, kind in attentions.items()}  # fmt: skip
    families = tuple(part.family for part in parts)
    used = [part for part in parts if not is_unused(part.family)]
    return ModelSpec(
        name=name, architectures=stated.names("architectures"), model_type=stated.text("model_type"),
        hidden_size=facts["hidden_size"], vocab_size=facts["vocab_size"], max_positions=stated.integer("max_positions"),
        tied_embeddings=tied,
        layers=tuple(Layer(attention=one, feed_forward=two) for one, two in zip(mixed, feeding, strict=True)),
        attentions=attentions, feed_forwards=feed_forwards, ropes=ropes(stated, _rotated(attentions)),
        towers=stated_towers(stated.raw), families=families,
        mtp_layers=_mtp_layers(parts),
        parameters=sum(part.family.parameters for part in used),
        parameters_text=sum(part.family.parameters for part in used if not part.role.in_tower),
        parameters_active=_active(used, tied, feed_forwards.get("experts")), checkpoint_bytes=tensors.total_bytes,
        dtype=_dtype(parts, stated),
        quantization=dict(quantised) if quantised is not None else None, provenance=provenance, sources=stated.sources,
        unknowns=(*_unknowns(stated, parts), *problems), not_finite=tuple(not_finite(stated.raw)),
    )  # fmt: skip


def _times(parts: Iterable[Part], layers: frozenset[int]) -> int:
    """How often the first of these layers mixes tokens: with so many output projections whose names differ by a number.
    """
    first = min(layers, default=-1)
    found = {part.role.stem for part in parts if part.is_weight and part.family.role == "attention.o"
             and not part.role.scope and first in part.family.layers}  # fmt: skip
    return max(Counter(_NUMBER.sub("", stem) for stem in found).values(), default=1)


def _rotated(attentions: Mapping[str, Attention]) -> list[str]:
    """Kinds of attention with rotary positions: where some attend inside chunks, the others have none."""
    return [name for name, kind in attentions.items() if kind.chunked] or [*attentions]


def _embedding(tensors: TensorTable) -> tuple[int, ...]:
    """Shape of the input embedding in the files; empty if it is not there."""
    for group in tensors.groups:
        if "{L}" not in group.pattern and role_of(group.pattern).name == "embedding":
            return group.shape
    return ()


def estimate(config: Config, facts: Facts) -> tuple[TensorTable, list[str]]:
    """The tensors that standard blocks would have, for a release of which only the config is there; what is missing."""
    mixing, feeding = attention_kinds(config, facts, {}), feed_forward_kinds(config, facts, {})
    if is_tied(config):
        facts["tied"] = 1
    config.note("families", "estimate: standard blocks with the config's sizes")
    architecture = Architecture(config, facts, mixing, feeding)
    builder, problems = standard_tensors(architecture)
    left_out = add_towers(builder, architecture)
    problems += [f"estimate: the blocks of model type {kind} are not the standard ones; sizes are rough"
                 for kind in config.model_types if kind in unlike()]  # fmt: skip
    if "mtp_layers" in facts:
        left_out.append(config.sources["mtp_layers"].partition(": ")[2])
    return builder.table(), [*problems, *(f"estimate: what {key} describes is left out" for key in left_out)]


def is_tied(config: Config) -> bool:
    """Whether the config, by itself, says that the embedding is the output head. What silence means differs from class
    to class: it counts as an output head of its own."""
    return bool(config.flag("tied"))


def _evidence(parts: Iterable[Part]) -> Evidence:
    """What the tensors of each layer show about it."""
    shown: dict[int, set[str]] = {}
    for part in parts:
        if part.role.scope or part.family.role.startswith("mtp."):
            continue
        kind = _shows(part.role.name)
        for layer in part.family.layers:
            shown.setdefault(layer, set()).update({kind} if kind else ())
    return {layer: frozenset(kinds) for layer, kinds in shown.items()}


def _shows(role: str) -> str:
    block, _, matrix = role.partition(".")
    if block == "attention":
        latent = matrix in ("kv_down", "qkv_down")
        return "latent" if latent else "attention" if matrix in ("q", "k", "v", "qkv", "o") else ""
    return {"linear": "linear", "experts": "experts", "mlp": "dense"}.get(block, "")


def _layers_of(kind: str, kinds: Sequence[str]) -> frozenset[int]:
    return frozenset(layer for layer, other in enumerate(kinds) if other == kind)


def _tied(config: Config, parts: Iterable[Part]) -> bool:
    """Whether there is no output head of its own. What the config states counts, then whether the files hold a head."""
    stated = config.flag("tied")
    if stated or (stated is not None and (_is_stated(config, "tied") or "families" in config.sources)):
        return stated
    if "families" in config.sources:
        config.note("tied", "default: an output head of its own")
        config.unclear.append("tied embeddings are not stated (an output head of its own is counted)")
        return False
    has_head = any(part.family.role == "head" for part in parts)
    config.note("tied", f"header: there is {'an' if has_head else 'no'} output head")
    return not has_head


def _is_stated(config: Config, fact: str) -> bool:
    return not config.sources.get(fact, DEFAULT).startswith(DEFAULT)


def is_unused(family: WeightFamily) -> bool:
    """Whether the files hold the tensors, and the model does not."""
    return family.role.startswith(f"{UNUSED}.")


def _without_idle_head(parts: list[Part]) -> list[Part]:
    """A stored output head of a model whose embedding is the head takes no part in anything."""
    return [replace(part, family=msgspec.structs.replace(part.family, role=f"{UNUSED}.head"))
            if part.family.role == "head" and part.is_weight else part for part in parts]  # fmt: skip


def _mtp_layers(parts: Iterable[Part]) -> int:
    mtp = [part.family for part in parts if part.family.role.startswith("mtp.")]
    return len({layer for family in mtp for layer in family.layers}) or int(bool(mtp))


def _active(parts: Iterable[Part], tied: bool, block: FeedForward | None) -> dict[str, int]:
    """Parameters that one token uses: everything in the decoder, of the routed experts those that it visits on average.
    A tied matrix is used as the output head, so that only `no_embedding_no_head` leaves it out."""
    total = embedding = head = 0
    for part in parts:
        family = part.family
        if part.role.in_tower or family.role.startswith("mtp."):
            continue
        used = _visited(family, block) if family.experts and block else family.parameters
        total += used
        embedding += used if family.role == "embedding" else 0
        head += used if family.role == "head" else 0
    return {"all": total, "no_embedding": total - (0 if tied else embedding),
            "no_embedding_no_head": total - embedding - head}  # fmt: skip


def _visited(family: WeightFamily, block: FeedForward) -> int:
    """Parameters of a family of routed experts that a token uses. A family may hold a part of the experts (others are
    stored otherwise), or places for those without weights."""
    stored = max(block.experts, family.experts)
    return family.parameters * block.top_k * block.experts // (max(1, block.choices) * max(1, stored))


def _dtype(parts: Iterable[Part], config: Config) -> str:
    """Scheme with the most parameters among the unquantised weights; the config's if there are none."""
    sizes: Counter[str] = Counter()
    for part in parts:
        if part.family.scheme in PLAIN.values() and part.is_weight:
            sizes[part.family.scheme] += part.family.parameters
    if sizes:
        return sizes.most_common(1)[0][0]
    stated = config.text("dtype")
    return PLAIN.get(dtype_named(stated) or "", stated)


def _unknowns(config: Config, parts: Sequence[Part]) -> tuple[str, ...]:
    patterns = [f"tensor {part.family.pattern}" for part in parts
                if part.role.name == "other" or (part.values and part.family.scheme == "packed")]
    patterns += [f"dtype {dtype}" for dtype in sorted({part.family.dtype for part in parts} - ITEM_BITS.keys())]
    return (*config.unknown_keys(), *dict.fromkeys(config.unclear), *dict.fromkeys(patterns))
