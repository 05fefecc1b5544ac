"""Which layouts an engine can run at all: one function for each rule that a layout can break.

Every rule sees the model's dimensions, one layout and the engine, and yields all that it finds, not the first. The
docstring of a rule is its page in the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dayzero.schema import Attention, Engine, Finding, Layout, ModelSpec

from .blocks import shard_quant_block
from .keys import config_key
from .layouts import divisors
from .padding import head_padding
from .widths import feed_forwards, subject, widths

Rule = Callable[[ModelSpec, Layout, Engine], Iterable[Finding]]


MOST_DEGREES = 64
"""Largest degree that hints name."""


def _valid(value: int) -> list[int]:
    return divisors(value, MOST_DEGREES)


def _degrees(value: int) -> str:
    return ", ".join(map(str, _valid(value)))


def _kinds(model: ModelSpec) -> list[Attention]:
    """The kinds of attention that layers use, each once."""
    used = {layer.attention for layer in model.layers}
    return [attention for name, attention in model.attentions.items() if name in used]


def shard_heads(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """Attention heads, output groups, or the heads of a linear attention's state, cannot be dealt out evenly.

    ## What
    The number of heads of some layers is not a multiple of the ranks that share attention. The query/key heads of a
    linear attention count like the heads of its state, and so do groups of heads that have an output projection of
    their own, and the heads of a vision tower that the engine cuts (`vision = "split"`).

    ## Why
    A head is computed on one rank. With an uneven number the query projection has no equal parts, and engines refuse to
    start, or fail in the first forward pass with a shape error. An engine that pads heads (`head_padding`) is not hit.

    ## Example
    9 heads with tp = 2: there is no half head. tp = 3 gives each rank three.

    ## How to fix
    Take a tp that divides the heads, set attention_tp to one that does, or use pp or dp for the remaining devices.
    """
    for key, heads in _towers(model, layout, engine, "heads"):
        yield Finding(
            rule="shard-heads", severity="error", subject=key,
            message=f"{heads} heads of a vision tower cannot be shared by {layout.tp} ranks",
            hint='keep the tower whole on every rank (`vision = "replicated"`)',
            facts={"value": heads, "tp": layout.tp, "valid": _valid(heads)})
    if engine.head_padding == "multiple_of_tp":
        return
    degree = layout.attention_degree
    seen: set[tuple[str, int]] = set()
    for value, heads in (counted for attention in _kinds(model) for counted in _head_counts(attention)):
        key = config_key(model, value)
        if heads % degree and (key, heads) not in seen:
            seen.add((key, heads))
            things = "output groups" if value == "output_groups" else "heads"
            yield Finding(
                rule="shard-heads", severity="error", subject=key,
                message=f"{heads} {things} cannot be shared by {degree} ranks",
                hint=f"degrees that divide the {things}: {_degrees(heads)}; use pp or dp for the other devices",
                facts={"value": heads, "tp": degree, "valid": _valid(heads)})


def _towers(model: ModelSpec, layout: Layout, engine: Engine, size: str) -> Iterator[tuple[str, int]]:
    """(key, size) of every vision tower that the engine cuts, of which `size` (heads or width) is not a multiple of
    tp."""
    for tower in model.towers if engine.vision == "split" else ():
        value = tower.heads if size == "heads" else tower.width
        if value % layout.tp:
            yield (tower.heads_key if size == "heads" else tower.width_key), value


def _head_counts(attention: Attention) -> Iterator[tuple[str, int]]:
    """(value that `sources` knows, heads) of everything that is dealt out by whole heads and never replicated."""
    if attention.kind != "linear":
        yield "heads", attention.heads
        if attention.output_groups:
            yield "output_groups", attention.output_groups
        return
    yield "linear_heads", attention.heads
    if attention.kv_heads not in (1, attention.heads):  # a single one is on all ranks
        yield "linear_kv_heads", attention.kv_heads


def shard_kv_heads(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """Key/value heads cannot be dealt out evenly, or have to be replicated.

    ## What
    The ranks that share attention are neither a divisor nor a multiple of the key/value heads; or there are more ranks
    than key/value heads, so that several ranks hold a copy of the same head (a warning).

    ## Why
    With more ranks than heads each head, its projections, its norm and its cache exist several times: the cache no
    longer shrinks with tp. An engine that cannot replicate (`kv_replication = false`) does not run at all. A latent
    cache is whole on every rank by design and is never reported.

    ## Example
    8 key/value heads on 16 ranks: every head is held twice. 3 heads on 2 ranks: not possible.

    ## How to fix
    Take a tp that divides the key/value heads, or set attention_tp to such a degree.
    """
    degree = layout.attention_degree
    seen: set[tuple[str, int]] = set()
    for attention in _kinds(model):
        heads, key = attention.kv_heads, config_key(model, "kv_heads")
        if attention.kind in ("latent", "linear") or (key, heads) in seen or heads % degree == 0:
            continue
        seen.add((key, heads))
        even = degree > heads and degree % heads == 0
        possible = even and engine.kv_replication
        reason = f"each is held by {degree // heads} ranks" if even else "neither number divides the other"
        yield Finding(
            rule="shard-kv-heads", severity="warning" if possible else "error", subject=key,
            message=f"{heads} key/value head{'s' * (heads > 1)} on {degree} ranks: {reason}"
                    + ("" if possible or not even else ", and the engine cannot replicate them"),
            hint=f"degrees that divide the key/value heads: {_degrees(heads)}",
            facts={"value": heads, "tp": degree, "valid": _valid(heads)}
                  | ({"replication": degree // heads} if even else {}))
        if possible:
            yield from _followers(model, attention, degree)


def _followers(model: ModelSpec, attention: Attention, degree: int) -> Iterator[Finding]:
    """Norms that are as wide as all key/value heads: they have to be replicated together with them."""
    width = attention.kv_heads * attention.head_dim
    for family in model.families if attention.kv_heads > 1 else ():
        if family.shape == (width,) and family.role == "attention.k_norm":
            yield Finding(
                rule="shard-kv-heads", severity="warning", subject=family.pattern,
                message=f"{family.pattern} is as wide as all key/value heads and has to be replicated with them",
                hint=f"cut it into {attention.kv_heads} heads, not into {degree} parts",
                facts={"replication": degree // attention.kv_heads, "width": width})


_WIDTH_HINTS = {"experts": "; ep keeps experts whole", "shared_experts": "; or keep the shared experts whole"}


def shard_width(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """The inner width of a feed-forward block, or the vocabulary, cannot be cut evenly.

    ## What
    The width of a dense block or of an expert is not a multiple of the ranks that share it; or that of the shared
    experts (a warning: they can be kept whole on every rank), of a vision tower that the engine cuts
    (`vision = "split"`), or the vocabulary (a warning: it is padded).

    ## Why
    Each rank holds equal rows of the up projection and equal columns of the down projection. Engines refuse uneven
    parts, or cut at the wrong place. The vocabulary can be padded, because the added rows are masked.

    ## Example
    An expert of width 1536 with tp = 7; 32001 tokens with tp = 2 (one row is added).

    ## How to fix
    Take a tp that divides the width; for experts raise ep, which keeps experts whole.
    """
    seen: set[tuple[str, str]] = set()
    for key, place, width, parts in widths(model, layout):
        if width % parts and (key, place) not in seen:
            seen.add((key, place))
            yield Finding(
                rule="shard-width", severity="warning" if place == "shared_experts" else "error",
                subject=subject(model, key, place),
                message=f"a width of {width} cannot be cut into {parts} equal parts",
                hint=f"degrees that divide it: {_degrees(width)}" + _WIDTH_HINTS.get(place, ""),
                facts={"value": width, "tp": parts, "valid": _valid(width)})
    for key, width in _towers(model, layout, engine, "width"):
        yield Finding(
            rule="shard-width", severity="error", subject=key,
            message=f"a width of {width} in a vision tower cannot be cut into {layout.tp} equal parts",
            hint='keep the tower whole on every rank (`vision = "replicated"`)',
            facts={"value": width, "tp": layout.tp, "valid": _valid(width)})
    if model.vocab_size % layout.tp:
        yield Finding(
            rule="shard-width", severity="warning", subject=config_key(model, "vocab_size"),
            message=f"a vocabulary of {model.vocab_size} has to be padded to be cut into {layout.tp} parts",
            hint="nothing, if the engine pads it; otherwise take a tp that divides it",
            facts={"value": model.vocab_size, "tp": layout.tp})


def shard_experts(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """Experts cannot be dealt out evenly over the expert-parallel groups.

    ## What
    The number of routed experts is not a multiple of ep.

    ## Why
    Every group holds the same number of experts. Spare copies of some experts make the numbers even where the engine
    can hold them (a warning); an engine that cannot (`redundant_experts = false`) does not start.

    ## Example
    256 experts with ep = 3: two spare experts make 258.

    ## How to fix
    Take an ep that divides the experts, or configure the spare experts that the finding names.
    """
    counts = {block.experts for block in feed_forwards(model) if block.experts}
    for experts in sorted(counts):
        if experts % layout.ep:
            redundant = -experts % layout.ep
            yield Finding(
                rule="shard-experts", severity="error" if engine.redundant_experts is False else "warning",
                subject=config_key(model, "experts"),
                message=f"{experts} experts cannot be dealt out evenly to {layout.ep} groups",
                hint=f"configure {redundant} redundant experts, or take an ep that divides {experts}",
                facts={"value": experts, "ep": layout.ep, "redundant": redundant})


def pipeline_stages(model: ModelSpec, layout: Layout, engine: Engine) -> Iterator[Finding]:
    """There are more pipeline stages than layers.

    ## What
    pp is larger than the number of decoder layers.

    ## Why
    A stage holds whole layers. A stage without a layer has nothing to compute, and engines refuse to start.

    ## Example
    A model of 30 layers with pp = 32: two stages stay empty.

    ## How to fix
    Take a pp of at most the number of layers, and tp or dp for the other devices.
    """
    layers = len(model.layers)
    if layout.pp > layers:
        yield Finding(
            rule="pipeline-stages", severity="error", subject=config_key(model, "layers"),
            message=f"{layout.pp} stages, but the model has {layers} layers",
            hint=f"take a pp of at most {layers}, and tp or dp for the other devices",
            facts={"value": layers, "pp": layout.pp})


RULES: dict[str, Rule] = {
    "shard-heads": shard_heads,
    "shard-kv-heads": shard_kv_heads,
    "shard-width": shard_width,
    "shard-experts": shard_experts,
    "shard-quant-block": shard_quant_block,
    "head-padding": head_padding,
    "pipeline-stages": pipeline_stages,
}
"""The rules by name."""


def findings(model: ModelSpec, layout: Layout, engine: Engine) -> tuple[Finding, ...]:
    """All that the rules say about the layout, warnings too."""
    return tuple(finding for rule in RULES.values() for finding in rule(model, layout, engine))


def blockers(model: ModelSpec, layout: Layout, engine: Engine) -> tuple[Finding, ...]:
    """The errors among `findings`: all reasons why the layout cannot run; empty if it can."""
    return tuple(finding for finding in findings(model, layout, engine) if finding.severity == "error")


def valid_tp(model: ModelSpec, engine: Engine, devices: int) -> list[int]:
    """Every tp from 1 to `devices` at which no rule is an error, without expert parallelism."""
    most = max(attention.heads for attention in _kinds(model))  # more ranks than heads are never legal, unless padded
    limit = min(devices, most) if most and engine.head_padding != "multiple_of_tp" else devices
    return [tp for tp in range(1, limit + 1) if not blockers(model, Layout(tp=tp), engine)]
