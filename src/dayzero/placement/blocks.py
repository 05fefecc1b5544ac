"""Quantisation block sizes along the axes that tensor parallelism cuts, from the shapes of weights and their scales."""

from __future__ import annotations

from dayzero.schema import ModelSpec, WeightFamily

_VALUES_PER_ITEM = {("U8", 4): 2, ("I8", 4): 2, ("I32", 4): 8, ("I32", 8): 4}
"""Logical values in one stored item, by stored dtype and bits of a value."""
_BITS = {"mxfp4": 4, "nvfp4": 4, "int4": 4, "w4a16": 4, "w4a8": 4, "fp8": 8, "int8": 8, "w8a8": 8, "mxfp8": 8}


def quant_blocks(model: ModelSpec) -> dict[str, int]:
    """Logical values for each scale along the cut axis, by `dense`, `experts` and `shared_experts`; the largest where
    several weights differ. Families that are not quantised in blocks along that axis are left out."""
    scales = [family for family in model.families if _is_scale(family)]
    blocks: dict[str, int] = {}
    for family in model.families:
        place = _place(family)
        if place is None or family.axis is None or _is_scale(family) or family.scheme not in _BITS:
            continue
        for scale in scales:
            if _belongs(scale, family) and len(scale.shape) == len(family.shape):
                block = _block(family, scale)
                blocks[place] = max(blocks.get(place, 0), block)
    return {place: block for place, block in blocks.items() if block > 1}


def _is_scale(family: WeightFamily) -> bool:
    return "scale" in family.pattern.rsplit(".", 1)[-1]


def _place(family: WeightFamily) -> str | None:
    if family.experts:
        return "experts"
    return {"shared_width": "shared_experts", "width": "dense"}.get(family.split)


def _belongs(scale: WeightFamily, weight: WeightFamily) -> bool:
    """A scale lies beside its weight: the same module, or the weight's own name with an ending."""
    return (scale.pattern.rsplit(".", 1)[0] == weight.pattern.rsplit(".", 1)[0]
            and bool(set(scale.layers) & set(weight.layers)))


def _block(weight: WeightFamily, scale: WeightFamily) -> int:
    """Logical values along the cut axis for each scale there. Packing is along the last axis."""
    axis = weight.axis if weight.axis is not None else 0
    extent = weight.shape[axis]
    if axis == len(weight.shape) - 1:
        extent *= _VALUES_PER_ITEM.get((weight.dtype, _BITS[weight.scheme]), 1)
    size, rest = divmod(extent, scale.shape[axis])
    # The last block may be a part of one; blocks are then taken to be a power of two, as in every known format.
    return size if not rest else 1 << size.bit_length()
