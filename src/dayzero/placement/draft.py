"""The draft of speculative decoding that a release brings along: its multi-token-prediction layers."""

from __future__ import annotations

from collections import Counter

import msgspec

from dayzero.schema import Layer, ModelSpec, Target, WeightFamily

from .operators import product
from .split import is_expert, is_mtp

_MTP = "mtp."


def drafted(model: ModelSpec, target: Target) -> ModelSpec | None:
    """What proposes tokens under the target's workload, as `draft_of`; None: nothing does, or nothing is known of it.
    """
    if not target.workload.draft_tokens or target.engine.facts.speculative != "mtp":
        return None
    return draft_of(model)


def draft_of(model: ModelSpec) -> ModelSpec | None:
    """One multi-token-prediction layer with what it shares with the model, as a model of one layer; None: the release
    has none. Its kinds of attention and feed-forward block are those of the decoder layer whose weights play most of
    the same roles."""
    own = [family for family in model.families if is_mtp(family, model)]
    if not any(family.parameters for family in own):
        return None
    made = [_single(family) for family in own]
    roles = {family.role for family in made}
    shared = [family for family in model.families
              if not is_mtp(family, model) and not family.layers and product(family, model) == "head"]
    if "head" not in roles:
        made += shared
    tied = model.tied_embeddings and "head" not in roles
    if tied:
        made = [family for family in made if family.role != "embedding" or family in shared]
    return msgspec.structs.replace(
        model, layers=(_alike(model, roles, any(is_expert(family) for family in own)),), families=tuple(made),
        mtp_layers=0, tied_embeddings=tied)


def _single(family: WeightFamily) -> WeightFamily:
    """The part of a family that one layer has, as that of a decoder layer."""
    layers = max(1, len(family.layers))
    role = family.role.removeprefix(_MTP)
    return msgspec.structs.replace(
        family, role=role, layers=() if role in ("head", "embedding") else (0,), count=max(1, family.count // layers),
        parameters=family.parameters // layers, stored_bytes=family.stored_bytes // layers)


def _alike(model: ModelSpec, roles: set[str], experts: bool) -> Layer:
    """The kinds of the layer: of the decoder layers that have experts too, or none, the last with most roles shared."""
    shared: Counter[int] = Counter()
    for family in model.families:
        if family.role in roles and not is_mtp(family, model):
            shared.update(index for index in family.layers if index < len(model.layers))
    chosen = [index for index, layer in enumerate(model.layers)
              if (model.feed_forwards[layer.feed_forward].experts > 0) == experts]
    return model.layers[max(chosen or range(len(model.layers)), key=lambda index: (shared[index], index))]
