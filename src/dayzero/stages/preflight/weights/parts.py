"""What the model's structure asks for and no tensor is: a whole family, or what a layer cannot be without.

Whatever else is absent in few layers is seen by its neighbours, see tensors.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from dayzero.data.vocabulary import Parts, spellings, vocabulary
from dayzero.schema import ModelSpec, Release, WeightFamily

SHARED = "shared_experts"
VALUES = "attention.v"
OUTSIDE = "the model"
"""Where something is absent that is in no layer."""
NEAR = 0.8
"""Similarity (0 to 1, as difflib counts it) of two spellings of which one is a slip."""
AFTER = "post"
"""What the name of a norm behind a block begins with, in a layer that has one in front too."""


@dataclass(frozen=True)
class Absent:
    """One role that nothing has where it should be."""

    role: str
    """The role."""
    where: str
    """Where it should be: `all layers with latent attention`, `the model`."""
    strange: tuple[str, ...]
    """Tensor patterns at the same place that nothing recognises: it may be one of them."""
    certain: bool
    """False where the strange ones may be a new spelling of it: none of them is nearly one that is known."""
    layer: int | None = None
    """The layer that lacks it; None: the model, or all layers of some kinds."""
    like: str = ""
    """Pattern of what other layers have of it."""


def absent_parts(release: Release) -> Iterator[Absent]:
    """Everything that is absent as a whole, or from a layer that cannot be without it."""
    yield from _outside(release.model)
    yield from _norms(release.model)
    gated = _is_gated(release.config)
    for parts in vocabulary().parts:
        yield from _inside(release.model, parts, gated)


def _outside(model: ModelSpec) -> Iterator[Absent]:
    """Embedding and head."""
    roles = {family.role for family in model.families if _holds_values(family)}
    wanted = ["embedding"] if model.tied_embeddings else ["embedding", "head"]
    strange = _strange(model, None, dimensions=2)
    yield from (_absent(role, OUTSIDE, strange) for role in wanted if role not in roles)


def _norms(model: ModelSpec) -> Iterator[Absent]:
    """The last norm and those of the layers; a model that has neither has norms without weights."""
    vectors = [family for family in model.families if len(family.shape) == 1 and _holds_values(family)]
    final = any(family.role in ("norm.final", "embedding.norm") for family in vectors)  # some name it for the embedding
    norms = [family for family in vectors if family.role == "norm" and family.layers]
    if norms and not final:
        yield _absent("norm.final", OUTSIDE, _strange(model, None, dimensions=1))
    names = {family.pattern.split(".")[-2] for family in norms if family.shape == (model.hidden_size,)}
    strange = _strange(model, set(range(len(model.layers))), dimensions=1, width=model.hidden_size)
    only_after = len(names) == 1 and all(name.startswith(AFTER) for name in names)
    if final and (only_after or not norms or (strange and len(names) < 2)):
        absent = _absent("norm", "all layers", strange)
        yield replace(absent, certain=True) if only_after else absent


def _inside(model: ModelSpec, parts: Parts, gated: bool) -> Iterator[Absent]:
    """Roles that none, or not every one, of the layers of some kinds has."""
    layers = {index for index in range(len(model.layers)) if _kinds(model, index) & set(parts.kinds)}
    if not layers:
        return
    having: dict[str, set[int]] = defaultdict(set)
    for family in model.families:
        if len(family.shape) > 1 and _holds_values(family):
            having[family.role].update(layers.intersection(family.layers))
    strange = _strange(model, layers, dimensions=2)
    unexpanded = all(model.attentions[model.layers[index].attention].is_entry_head for index in layers)
    for need in (*parts.needs, *([parts.gate] if parts.gate and gated else [])):
        if unexpanded and VALUES in need.split("|"):
            continue
        there = set[int]().union(*(having[role] for role in need.split("|")))
        if not there:
            yield _absent(need, f"all layers with {' or '.join(parts.kinds)}".replace("_", " "), strange)
        elif need in parts.always and there < layers:
            yield from _in_some(model, need, sorted(layers - there))


def _in_some(model: ModelSpec, need: str, layers: list[int]) -> Iterator[Absent]:
    """What only some of the layers lack, though no layer can be without it; but not layers without any tensor."""
    held = set[int]().union(*(family.layers for family in model.families))
    like = next(family.pattern for family in model.families
                if family.role in need.split("|") and family.layers and _holds_values(family))
    for layer in sorted(held.intersection(layers)):
        absent = _absent(need, f"layer {layer}", _strange(model, {layer}, dimensions=2))
        yield replace(absent, layer=layer, like=like)


def _absent(need: str, where: str, strange: tuple[str, ...]) -> Absent:
    """`need`: roles joined by `|`, the first of which gives its name."""
    roles = need.split("|")
    known = [word.strip("*") for role in roles for word in spellings(role)]
    modules = [pattern.removesuffix(".weight").split(".")[-1] for pattern in strange]
    near = any(get_close_matches(module, known, n=1, cutoff=NEAR) for module in modules
               if not any(module in word for word in known))
    return Absent(roles[0], where, strange, certain=near or not strange)


def _kinds(model: ModelSpec, index: int) -> set[str]:
    """Kinds of one layer's blocks."""
    layer = model.layers[index]
    block = model.feed_forwards[layer.feed_forward]
    return {model.attentions[layer.attention].kind, block.kind, *([SHARED] if block.shared_experts else [])}


def _strange(model: ModelSpec, layers: set[int] | None, *, dimensions: int,
             width: int | None = None) -> tuple[str, ...]:
    """Unrecognised tensors outside of layers (None), or in some of these; of that many dimensions at least."""
    return tuple(
        family.pattern for family in model.families
        if family.role == "other" and _holds_values(family) and (len(family.shape) > 1) == (dimensions > 1)
        and (bool(layers.intersection(family.layers)) if layers is not None else not family.layers)
        and width in (None, family.shape[-1] if family.shape else 0))


def _holds_values(family: WeightFamily) -> bool:
    """Whether it is a weight, not a scale, a buffer or a bias."""
    return family.parameters > 0 and not family.pattern.endswith("bias")


def _is_gated(config: Mapping[str, Any]) -> bool:
    """Whether the activation that the config states comes with a gate."""
    words = vocabulary()
    tables = [config, *(config[name] for name in words.config.text if isinstance(config.get(name), Mapping))]
    return any(table.get(key) in words.gated.values for table in tables for key in words.gated.keys
               if isinstance(table.get(key), str))
