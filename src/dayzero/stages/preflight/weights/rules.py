"""Rules about tensors: all there, and of the shape that their neighbours, the config and the engine say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from dayzero.data.vocabulary import spellings
from dayzero.schema import Finding, WeightFamily
from dayzero.stages.preflight.quant.scales import scale_shape
from dayzero.stages.preflight.rule import Case, rule

from .library import misshapen
from .loading import absent, loading
from .mtp import stored_layers
from .parts import OUTSIDE, absent_parts
from .tensors import Place, name

_DIFFERS = re.compile(r"header: (?P<pattern>\S+) \(\S+: (?P<key>\S+) says (?P<stated>\d+)\)")
"""Source of a dimension that the headers and the config state differently."""
MANY = 8
"""More alike findings than this are one, about the pattern."""


_AGAIN = "fetch the shards again; if that does not help, ask the publishers"


def _missing(subject: str, message: str, hint: str = _AGAIN, **facts: object) -> Finding:
    return Finding(rule="weights-missing", severity="error", subject=subject, message=message, hint=hint, facts=facts)


@rule("weights-missing")
def weights_missing(case: Case) -> Iterator[Finding]:
    """A tensor that the model's structure asks for is in no file.

    ## What
    The index names a tensor that its shard does not hold; or the engine declares a parameter (`declares`) that no
    tensor fills; or a layer lacks what nearly all layers of its kind have; or an expert lacks a matrix; or no tensor
    at all is recognised as a part that the model cannot be without: embedding, output head (unless it is tied), norms,
    the matrices of attention, feed-forward blocks, experts and router; what no layer can be without, such as the
    output projection of its attention, is looked for in every layer. It is a warning where tensors at the same place
    have names that may be a new spelling, and where a prediction layer that is not asked for lacks one matrix.

    ## Why
    Engines fill what is missing with zeros or random values, with no more than a warning among thousands of lines.

    ## Example
    One expert of 6,656 without its down projection: the model answers, a little worse.

    ## How to fix
    Fetch the shards again; if the tensor was never published, tell the publishers.
    """
    if not case.has_tensors:
        return
    yield from _not_where_listed(case)
    yield from _not_where_declared(case)
    if case.target.partial or case.release.is_incomplete:
        return
    yield from _absent(case)
    for layer in case.patterns.empty_layers():
        yield _missing(f"layers.{layer}", f"layer {layer} has no tensors at all", layer=layer)
    empty = set(case.patterns.empty_layers())
    for pattern in case.patterns.decoder:
        places: list[Place] = [(layer, -1) for layer in case.patterns.lacking_layers(pattern) if layer not in empty]
        places += case.patterns.lacking_experts(pattern)
        absent = [place for place in places if not case.patterns.stored_differently(pattern, place)]
        if len(absent) > MANY:
            yield _missing(pattern, f"{len(absent)} of these are missing, the first is {name(pattern, absent[0])}",
                           count=len(absent))
        else:
            for place in absent:
                yield _missing(name(pattern, place), f"{name(pattern, place)} is in no file")
    wanted = case.target.engine.facts.speculative == "mtp"
    for pattern, place in case.patterns.lost_in_predictions():
        if not case.patterns.stored_differently(pattern, place):
            found = _missing(name(pattern, place), f"{name(pattern, place)} of a prediction layer is in no file")
            yield found if wanted else msgspec.structs.replace(found, severity="warning")


def _not_where_listed(case: Case) -> Iterator[Finding]:
    release = case.release
    if release.index is None:
        return
    present, unknown = set(release.tensors.names()), {*release.missing_shards, *release.cut_shards}
    for tensor, file in release.index.items():
        if tensor not in present and file not in unknown:
            yield _missing(tensor, f"the index lists {tensor} in {file}, which does not hold it", file=file)


def _not_where_declared(case: Case) -> Iterator[Finding]:
    """Parameters that the engine declares and nothing fills; whole prediction layers are the rules' about them."""
    listed, last = case.release.index or {}, len(case.model.layers)
    predicting = stored_layers(case)
    for entry in absent(loading(case)) if case.target.engine.facts.declares else ():
        layer = next((int(segment) for segment in entry.name.split(".") if segment.isdecimal()), -1)
        tied = case.model.tied_embeddings and entry.name.removesuffix(".weight").split(".")[-1] in spellings("head")
        if entry.name not in listed and (layer < last or layer in predicting) and not tied:
            yield _missing(entry.name, f"the engine declares {entry.name}, and no file holds anything for it",
                           declared=list(entry.shape))


def _absent(case: Case) -> Iterator[Finding]:
    roles = {family.pattern: family.role for family in case.model.families if family.parameters}
    by_neighbours = {(roles.get(pattern), layer) for pattern in case.patterns.decoder
                     for layer in case.patterns.lacking_layers(pattern)}
    for part in absent_parts(case.release):
        if part.layer is not None and (roles[part.like], part.layer) in by_neighbours:
            continue
        subject = _usual_name(case, part.role) if part.where == OUTSIDE else part.role
        if part.layer is not None:
            subject = name(part.like, (part.layer, 0))
        named = f"; nothing recognises {', '.join(part.strange[:3])}" if part.strange else ""
        hint = "compare the names of the tensors with those of a model of the same kind" if part.strange else _AGAIN
        if part.role == "head" and not part.strange:
            hint = "set tie_word_embeddings in the config, or fetch the shards again"
        finding = _missing(subject, f"no tensor of {part.where} is recognised as {part.role}{named}", hint,
                           unrecognised=list(part.strange), role=part.role)
        yield finding if part.certain else msgspec.structs.replace(finding, severity="warning")


def _usual_name(case: Case, role: str) -> str:
    """Name that a tensor outside of the layers would have: beside them in the decoder, a head next to the decoder."""
    word = spellings(role)[0].strip("*")
    within = case.patterns.decoder[0].partition("{L}")[0].split(".")[:-2] if case.patterns.decoder else []
    return ".".join([*(within[:-1] if role == "head" else within), word, "weight"])


@rule("weights-shape")
def weights_shape(case: Case) -> Iterator[Finding]:
    """A tensor has another shape than its neighbours, the config or the engine's model code say.

    ## What
    The header of a tensor states a shape that differs from that of the same tensor in nearly all layers of its kind,
    from the dimensions in the config, or from what the engine allocates (`declares`). Scales that are not as many as
    the blocks of their weight are left to `scale-shape`.

    ## Why
    Loading stops; or, where the number of elements is the same, a transposed matrix is loaded without complaint.

    ## Example
    One key projection of 126 stored transposed. A decay vector of 128 where the code allocates one for each of 96
    heads.

    ## How to fix
    The header is what is there: correct the config or the engine's code, or fetch the shard again if one tensor is odd.
    """
    if not case.has_tensors:
        return
    yield from _against_declared(case)
    scales = {group.pattern for groups in case.scales.values() for group in groups}
    for pattern in case.patterns.decoder:
        odd = case.patterns.odd_ones(pattern)
        told = {finding.subject for finding in scale_shape(case)} if odd and pattern in scales else set()
        for place, group, usual in odd:
            if not told & {pattern, name(pattern, place)}:
                yield _shape(name(pattern, place), group.shape, usual.shape, "all other layers of its kind")
    for family in case.model.families:
        expected = _expected(case, family)
        if expected and sorted(expected) != sorted(family.shape) and len(case.patterns.groups[family.pattern]) == 1:
            yield _shape(family.pattern, family.shape, expected, "the config")
    for source in case.model.sources.values():
        differs = _DIFFERS.fullmatch(source)
        if differs:
            yield _contradicted(case, differs["pattern"], differs["key"], int(differs["stated"]))
    yield from misshapen(case)


def _shape(subject: str, file: tuple[int, ...], declared: tuple[int, ...], who: str) -> Finding:
    return Finding(
        rule="weights-shape", severity="error", subject=subject,
        message=f"{subject} is stored as {list(file)}, but by {who} it is {list(declared)}",
        hint="find out which is right: the header says what is stored",
        facts={"file": list(file), "declared": list(declared)})


def _contradicted(case: Case, pattern: str, key: str, stated: int) -> Finding:
    shape = list(case.patterns.groups[pattern][0].shape)
    return Finding(
        rule="weights-shape", severity="error", subject=pattern,
        message=f"{key} is {stated} in the config, but {pattern} is stored as {shape}",
        hint=f"find out which is right: the header says what is stored, the config's {key} what is allocated",
        facts={"file": shape, "declared": stated, "key": key})


def _against_declared(case: Case) -> Iterator[Finding]:
    declared = {entry.name: tuple(entry.shape) for entry in case.target.engine.facts.declares or ()}
    if not declared:
        return
    for group in case.release.tensors.groups:
        for row in range(group.count):
            shape = declared.get(group.name(row))
            if shape is not None and shape != group.shape:
                yield _shape(group.name(row), group.shape, shape, "the engine's model code")


def _expected(case: Case, family: WeightFamily) -> tuple[int, ...] | None:
    """Shape that the config's dimensions give a family, up to transposition; None where there are several ways."""
    model = case.model
    stored_plain = family.scheme in ("bf16", "f16", "f32", "fp8") and len(family.shape) == 2
    if stored_plain and family.role in ("embedding", "head") and not family.layers and "scale" not in family.pattern:
        return model.vocab_size, model.hidden_size
    if not stored_plain or not family.layers or family.layers[-1] >= len(model.layers) or "scale" in family.pattern:
        return None
    layers = [model.layers[index] for index in family.layers]
    if family.role in ("attention.k", "attention.v"):
        kinds = {layer.attention for layer in layers}
        attention = model.attentions[kinds.pop()]
        if kinds or attention.kind not in ("full", "sliding"):
            return None
        width = attention.head_dim if family.role == "attention.k" else attention.v_head_dim
        return attention.kv_heads * width, model.hidden_size
    if family.role in ("mlp.gate", "mlp.up", "mlp.down"):
        blocks = {layer.feed_forward for layer in layers}
        block = model.feed_forwards[blocks.pop()]
        if blocks or block.kind != "dense":
            return None
        width = _width(case, family, block.width)
        return (model.hidden_size, width) if family.role == "mlp.down" else (width, model.hidden_size)
    return None


def _width(case: Case, family: WeightFamily, inferred: int) -> int:
    """The width that a dense block's matrix should have: the config's where it states one, unless the matrix has the
    one that the headers show: that they disagree is a finding of its own."""
    differs = _DIFFERS.fullmatch(case.model.sources.get("dense_width", ""))
    agrees = sorted(family.shape) == sorted((case.model.hidden_size, inferred))
    return int(differs["stated"]) if differs and not agrees else inferred
