"""A model as its checkpoint of another precision would hold it: the same tensors, other bytes."""

from __future__ import annotations

from collections import Counter

import msgspec

from dayzero.data.precisions import Precision, Variant, precision
from dayzero.schema import ModelSpec, WeightFamily

from .split import is_expert

LINEAR = ("attention", "linear", "mlp", "experts", "shared_experts", "latent_experts", "indexer")
"""First words of the roles of linear layers."""
_PLAIN = 16.0
_WIDE = ("bf16", "f16", "f32", "f64")


def recast(model: ModelSpec, wanted: Precision, published: Variant | None = None) -> ModelSpec:
    """The model with its linear layers in that precision, as such checkpoints usually are, or as the published one is.
    A model that is in that precision already is returned as it is."""
    roles = published.roles if published else wanted.roles
    if not published and roles and any(family.scheme == wanted.scheme for family in model.families):
        return model
    families = tuple(_converted(family, wanted, roles, published) for family in model.families)
    return msgspec.structs.replace(model, families=families,
                                   checkpoint_bytes=sum(family.stored_bytes for family in families))


def in_precision(model: ModelSpec, wanted: Precision | None) -> ModelSpec:
    """The model in a stated precision. 4 bits of a model that is not in microscaled ones already are those of the
    scheme with finer scales, and of a model without experts every linear layer is converted."""
    if wanted is None:
        return model
    if wanted.scheme == "mxfp4" and not any(family.scheme == wanted.scheme for family in model.families):
        wanted = precision("nvfp4") or wanted
    if wanted.roles and not any(is_expert(family) for family in model.families):
        wanted = msgspec.structs.replace(wanted, roles=LINEAR)
    return recast(model, wanted)


def _converted(family: WeightFamily, wanted: Precision, roles: tuple[str, ...], published: Variant | None
               ) -> WeightFamily:
    word = family.role.removeprefix("mtp.").split(".")[0]
    matrix = word in LINEAR and (len(family.shape) >= 2 or family.scheme not in _WIDE)
    if not matrix or (word not in roles and family.scheme in _WIDE):
        return family
    if not family.parameters:  # scales of what is stored now
        return msgspec.structs.replace(family, stored_bytes=0)
    plain = sum(layer in family.layers for layer in published.plain_layers) if published else 0
    share = 1 - plain / max(1, len(family.layers)) if word in roles else 0.0
    bits = share * wanted.bits + (1 - share) * _PLAIN
    return msgspec.structs.replace(family, scheme=wanted.scheme if share else "bf16",
                                   block=wanted.group if share else 1,
                                   stored_bytes=int(family.parameters * bits / 8))


def weights_at_most_8_bits(model: ModelSpec) -> bool:
    """Whether most stored bytes are of weights of at most 8 bits."""
    linear = [family for family in model.families if family.parameters]
    return 8 * sum(family.stored_bytes for family in linear) < 12 * sum(family.parameters for family in linear)


def schemes(model: ModelSpec) -> tuple[str, str]:
    """(scheme of most bytes of matrices that all tokens use, of those of routed experts; empty: it has none)."""
    stored: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for family in model.families:
        if family.parameters and len(family.shape) >= 2:
            stored[is_expert(family)][family.scheme] += family.stored_bytes
    linear, expert = (max(one, key=one.__getitem__, default="") for one in stored)
    return linear, expert


def with_kv_heads(model: ModelSpec, heads: int) -> ModelSpec:
    """The model with that many key/value heads in its full and sliding layers, each a copy of one it has."""
    grown = {name: heads / attention.kv_heads for name, attention in model.attentions.items()
             if attention.kind in ("full", "sliding")}
    attentions = {name: msgspec.structs.replace(attention, kv_heads=heads) if name in grown else attention
                  for name, attention in model.attentions.items()}
    factor = max(grown.values(), default=1.0)
    families = tuple(_grown(family, factor) if family.split == "kv_heads" else family for family in model.families)
    return msgspec.structs.replace(model, attentions=attentions, families=families)


def _grown(family: WeightFamily, factor: float) -> WeightFamily:
    shape = tuple(int(size * factor) if axis == family.axis else size for axis, size in enumerate(family.shape))
    return msgspec.structs.replace(family, shape=shape, parameters=int(family.parameters * factor),
                                   stored_bytes=int(family.stored_bytes * factor))
