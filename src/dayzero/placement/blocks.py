"""Whether the ranks' shares of quantised weights are whole blocks."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema import Attention, Engine, Finding, Layout, ModelSpec, WeightFamily

from .cache import allocation_of
from .keys import config_key
from .split import attention_of
from .widths import subject, widths


def _blocks(model: ModelSpec, place: str) -> dict[int, set[str]]:
    """Sizes of the quantisation blocks along the cut axis of the weights of a place, and the schemes that have them."""
    found: dict[int, set[str]] = {}
    for family in model.families:
        if _place(family) == place:
            found.setdefault(family.block, set()).add(family.scheme)
    return found


def _pads(engine: Engine, place: str, schemes: set[str]) -> bool:
    """Whether the engine pads blocks: as the target states it; else as its profile says of all weights, or because its
    kernels for experts of these schemes do."""
    if engine.block_padding or engine.sources.get("block_padding") == "target file":
        return engine.block_padding
    rules = allocation_of(engine)
    return bool(rules and place == "experts" and schemes <= rules.padding.keys())


def _place(family: WeightFamily) -> str | None:
    if family.experts:
        return "experts"
    return {"shared_width": "shared_experts", "width": "dense"}.get(family.split)


_BLOCK_HINTS = {"dense": "take a smaller tp", "experts": "take a smaller tp, or raise ep so that experts stay whole",
                "shared_experts": "keep the shared experts whole on every rank"}


def shard_quant_block(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """A rank's share of a width is not whole quantisation blocks.

    ## What
    A quantised weight has one scale for each block (or group) of its values. After cutting, a rank's share of the width
    that is cut is not a multiple of the block; or its query heads, taken together, are not, or its key/value heads are
    less than a block.

    ## Why
    Part of a block has no scale of its own: engines refuse to load, or apply the neighbour's scale. Shared experts can
    be kept whole on every rank and are then not cut (a warning); an engine that pads blocks (`block_padding`) works
    as well.

    ## Example
    An expert of width 1536 in blocks of 128: tp = 8 leaves 192, one and a half blocks. tp = 4 leaves 384, three blocks
    (vllm-project/vllm#48173; shares smaller than a block: vllm-project/vllm#52997).

    ## How to fix
    Take a smaller tp, or raise ep so that experts stay whole.
    """
    seen: set[tuple[str, str]] = set()
    for key, place, width, parts in widths(model, layout):
        local = width // parts
        blocks = _blocks(model, place)
        block = max((block for block in blocks if local % block), default=0)
        if not block or width % parts or (key, place) in seen:
            continue
        seen.add((key, place))
        mild = place == "shared_experts" or _pads(engine, place, blocks[block])
        yield Finding(
            rule="shard-quant-block", severity="warning" if mild else "error", subject=subject(model, key, place),
            message=f"a share of {local} is not whole quantisation blocks of {block}", hint=_BLOCK_HINTS[place],
            facts={"local": local, "block": block, "tp": parts})
    yield from _heads(model, layout, engine)


def _heads(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """Projections that are cut by heads."""
    degree, seen = layout.attention_degree, set[str]()
    for family in model.families if degree > 1 else ():
        attention = attention_of(family, model)
        if family.block == 1 or attention is None or attention.kind == "linear" or attention.heads % degree:
            continue
        key = config_key(model, "kv_heads" if family.split == "kv_heads" else "heads")
        local = _local(family, attention, degree)
        if local % family.block and key not in seen:
            seen.add(key)
            yield Finding(
                rule="shard-quant-block", severity="warning" if engine.block_padding else "error", subject=key,
                message=f"a share of {local} of {family.pattern} is not whole quantisation blocks of {family.block}",
                hint="take a smaller tp, or set attention_tp to one",
                facts={"local": local, "block": family.block, "tp": degree})


def _local(family: WeightFamily, attention: Attention, degree: int) -> int:
    """Values of a rank's heads along the axis of a projection that is cut; 0: it is not cut by such heads alone. Of
    keys and values only shares smaller than a block count: loaders that replicate heads scale larger ones anew."""
    one = {"attention.k": attention.head_dim, "attention.v": attention.v_head_dim}.get(family.role, 0)
    if one:
        local = one * max(1, attention.kv_heads // degree)
        return local if local < family.block else 0
    output = 0 if attention.output_groups else attention.v_head_dim
    expanded = attention.head_dim - (attention.rope_dim or 0) + attention.v_head_dim
    widths_of_head = {"attention.q": attention.head_dim, "attention.q_up": attention.head_dim, "attention.o": output,
                      "attention.kv_up": expanded}  # fmt: skip
    return widths_of_head.get(family.role, 0) * attention.heads // degree
