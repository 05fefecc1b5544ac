"""Whether padding the attention heads to a multiple of the ranks is enough for quantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm

from dayzero.schema import Engine, Finding, Layout, ModelSpec, WeightFamily

from .keys import config_key
from .split import attention_of


def head_padding(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """Attention heads that the engine pads to a multiple of the ranks still do not make whole quantisation blocks.

    ## What
    With `head_padding = "multiple_of_tp"` every rank gets the same number of heads, some of them empty. For each
    quantised projection that is cut by heads: is a rank's number of heads, times the width of a head in it, whole
    blocks? The facts name the heads after padding, and how many there would have to be.

    ## Why
    Padding makes the number of heads even, not the blocks: the rank's share begins in the middle of a block whose scale
    another rank has, and the engine refuses the shape. An engine that pads to whole blocks (`block_padding`) works.

    ## Example
    64 heads on 6 ranks become 66, and 11 heads of 192 are 2,112 columns: 16.5 blocks of 128. 72 heads would do
    (sgl-project/sglang#8243).

    ## How to fix
    Take a tp that divides the heads, or set attention_tp to one that does.
    """
    degree = layout.attention_degree
    if engine.head_padding != "multiple_of_tp":
        return
    uneven: dict[tuple[str, int], list[tuple[WeightFamily, int]]] = {}
    for family in model.families:
        heads, width = _heads(family, model)
        if heads % degree:
            key = config_key(model, "linear_heads" if family.role.startswith("linear.") else "heads")
            uneven.setdefault((key, heads), []).append((family, width))
    for (key, heads), families in uneven.items():
        local = -(-heads // degree)
        broken = [(family, width) for family, width in families if local * width % family.block]
        if not broken:
            continue
        unit = lcm(*(family.block // gcd(family.block, width) for family, width in families))
        needed = -(-local // unit) * unit * degree
        family, width = broken[0]
        yield Finding(
            rule="head-padding", severity="warning" if engine.block_padding else "error", subject=key,
            message=f"{heads} heads padded to {local * degree} are {local} on each of {degree} ranks: {local * width} "
                    f"values of {family.pattern}, which are not whole blocks of {family.block}",
            hint=f"pad to {needed} heads, or take a tp that divides {heads}",
            facts={"value": heads, "padded": local * degree, "needed": needed, "tp": degree, "local": local * width,
                   "block": family.block})


def _heads(family: WeightFamily, model: ModelSpec) -> tuple[int, int]:
    """(heads, width of one) along the axis that is cut; (0, 0) for what is not cut by heads, or has no blocks."""
    attention = attention_of(family, model)
    if family.split != "heads" or family.axis is None or family.block <= 1 or attention is None:
        return 0, 0
    extent = family.shape[family.axis]
    return (attention.heads, extent // attention.heads) if attention.heads and extent % attention.heads == 0 else (0, 0)
