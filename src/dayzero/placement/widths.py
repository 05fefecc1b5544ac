"""Feed-forward widths that tensor parallelism cuts, and what findings call them."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema import FeedForward, Layout, ModelSpec

from .keys import config_key, stated_key


def feed_forwards(model: ModelSpec) -> list[FeedForward]:
    """The kinds of feed-forward block that layers use, each once."""
    used = {layer.feed_forward for layer in model.layers}
    return [block for name, block in model.feed_forwards.items() if name in used]


def widths(model: ModelSpec, layout: Layout) -> Iterator[tuple[str, str, int, int]]:
    """(config key, place, width, ways) of every feed-forward width that is cut; places: dense, experts and
    shared_experts."""
    for block in feed_forwards(model):
        if block.kind == "dense":
            yield config_key(model, "dense_width"), "dense", block.width, layout.tp
            continue
        yield config_key(model, "expert_width"), "experts", block.width, layout.expert_tp
        if block.shared_width:
            key = stated_key(model, "shared_width") or config_key(model, "expert_width")
            yield key, "shared_experts", block.shared_width, layout.tp


def subject(model: ModelSpec, key: str, place: str) -> str:
    """The key; with the family in parentheses where the key is that of another family's width."""
    borrowed = place == "shared_experts" and key == config_key(model, "expert_width")
    return f"{key} ({place})" if borrowed else key
