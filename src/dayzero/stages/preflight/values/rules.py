"""Rules about the values of small tensors. All but one read them only on request: they need the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from dayzero.floats import FLOATS, Values, cast, dtype_named
from dayzero.schema import Finding, TensorGroup
from dayzero.schema.finding import Severity
from dayzero.stages.preflight.rule import Case, rule
from dayzero.units import format_bytes

from .decode import Reader

MANY = 8
"""More alike findings than this are one, about the pattern."""
SMALL = 2**20
"""Bytes of the largest tensor that is read."""
GROUP, ALL = 64 * 2**20, 512 * 2**20
"""Most bytes that are read of tensors that are alike, and of all."""
COUNT = 8192
"""Most tensors that are read of those that are alike."""
LOST = 0.9
"""A cast that keeps less than this share of the distinct values is an error."""
FAR_BITS, FAR_SPREADS = 10.0, 10.0
"""An outlier is this many powers of two from the middle of its siblings, and this many of their usual distances."""
SIBLINGS = 6
"""Fewer tensors than this say nothing about what is usual."""


def _alike(found: list[tuple[str, Finding]], pattern: str) -> Iterator[Finding]:
    """Findings about tensors of one pattern; one about the pattern, with the first's facts, where there are many."""
    if len(found) <= MANY:
        yield from (finding for _, finding in found)
        return
    first = found[0][1]
    yield Finding(rule=first.rule, severity=first.severity, subject=pattern, hint=first.hint,
                  message=f"{first.message}; and {len(found) - 1} more of {pattern}",
                  facts=first.facts | {"count": len(found), "first": found[0][0]})


@rule("bias-precision")
def bias_precision(case: Case) -> Iterator[Finding]:
    """A parameter loses values when it is held as the engine holds it.

    ## What
    For each parameter that `param_dtype` in [engine] names, its values are read and rounded to that dtype: how many
    different ones are there before and after? Less than nine tenths is an error, fewer at all a warning. With --values
    the biases of routers that no such fact names are looked at as well, as information.

    ## Why
    A router's bias decides between experts by small differences. Where many of its values become one, other experts are
    chosen, and nothing reports it: answers get worse, mostly long ones.

    ## Example
    A router bias whose 238 different values became about 8 in bf16, which sent 98.5 % of the tokens to other experts
    (pull request 31213 of an inference engine, 2026).

    ## How to fix
    Hold the parameter in the dtype in which it is stored.
    """
    wanted = case.target.engine.facts.param_dtype or {}
    with Reader(case.release) as reader:
        for group in case.release.tensors.groups:
            if not _small_vector(group):
                continue
            named = [(word, rows) for name, word in wanted.items() if (rows := _named(group, name))]
            for word, rows in named:
                held = dtype_named(word)
                if held and held != group.dtype:
                    yield from _lost(case, reader, group, rows, held)
            half = dtype_named(case.model.dtype)
            if case.values and not named and half in ("BF16", "F16") and _is_router_bias(case, group):
                yield from _lost(case, reader, group, list(range(group.count)), half, stated=False)


def _named(group: TensorGroup, name: str) -> list[int]:
    """Tensors of a group that a fact names: by their whole name, by its end or by a pattern."""
    if not fnmatchcase(group.pattern.rpartition(".")[2], name.rpartition(".")[2]):
        return []
    if group.pattern == name or group.pattern.endswith(f".{name}") or fnmatchcase(group.pattern, name):
        return list(range(group.count))
    return [row for row in range(group.count) if f".{group.name(row)}".endswith(f".{name}")]


def _is_router_bias(case: Case, group: TensorGroup) -> bool:
    return group.dtype in ("F32", "F64") and _role(case, group) == "router"


def _small_vector(group: TensorGroup) -> bool:
    return prod(group.shape) == max(group.shape, default=0) and group.tensor_bytes <= SMALL and group.dtype in FLOATS


def _role(case: Case, group: TensorGroup) -> str:
    return next((family.role for family in case.model.families if family.pattern == group.pattern), "other")


def _lost(case: Case, reader: Reader, group: TensorGroup, rows: list[int], held: str, *,
          stated: bool = True) -> Iterator[Finding]:
    """What rounding to `held` loses; where no fact states that it is held so, only a severe loss, as information."""
    found: list[tuple[float, str, Finding]] = []
    mild = _role(case, group).startswith(("norm", "linear"))
    for row, values in reader.all(group, _spread(group, rows)):
        rounded = cast(values, held)
        before, after = len(np.unique(values)), len(np.unique(rounded))
        overflow = int(np.count_nonzero(np.isfinite(values) & ~np.isfinite(rounded)))
        if after >= before and not overflow:
            continue
        share, name = after / before, group.name(row)
        severe = share < LOST or overflow > 0
        harm: Severity = "error" if severe and not mild else "warning"
        if not severe and not stated:
            continue
        found.append((share, name, Finding(
            rule="bias-precision", severity=harm if stated else "info", subject=name,
            message=f"{before} different values of {name} become {after} in {held.lower()}"
                    + (f", and {overflow} become infinite" if overflow else ""),
            hint=f"hold it in {group.dtype.lower()}, as it is stored",
            facts={"distinct_before": before, "distinct_after": after, "stored": group.dtype, "held": held})))
    found.sort(key=lambda one: one[0])
    yield from _alike([(name, finding) for _, name, finding in found], group.pattern)


@dataclass(frozen=True)
class _Seen:
    """What was read of tensors that are alike: one entry each."""

    group: TensorGroup
    rows: list[int]
    bad: list[int]
    """Values that are NaN or infinite."""
    largest: list[float]
    """Largest magnitude of the finite values."""
    tail: list[int]
    """Zeros at the end."""


_KEPT: WeakKeyDictionary[Case, tuple[_Seen, ...]] = WeakKeyDictionary()


def _spread(group: TensorGroup, rows: list[int]) -> list[int]:
    """All of these tensors, or as many as may be read, evenly spread."""
    most = min(COUNT, max(1, GROUP // max(1, group.tensor_bytes)), len(rows))
    return [rows[int(place)] for place in np.linspace(0, len(rows) - 1, most)]


def _seen(case: Case, reader: Reader) -> Iterator[_Seen]:
    for group in sorted(case.release.tensors.groups, key=lambda group: group.tensor_bytes):
        if group.dtype in FLOATS and group.tensor_bytes <= SMALL and reader.bytes_read < ALL:
            one = _Seen(group=group, rows=[], bad=[], largest=[], tail=[])
            for row, values in reader.all(group, _spread(group, list(range(group.count)))):
                _note(one, row, values)
            if one.rows:
                yield one


def _note(seen: _Seen, row: int, values: Values) -> None:
    finite = values[np.isfinite(values)]
    nonzero = np.flatnonzero(values)
    seen.rows.append(row)
    seen.bad.append(len(values) - len(finite))
    seen.largest.append(float(np.abs(finite).max(initial=0)))
    seen.tail.append(len(values) - 1 - int(nonzero[-1]) if len(nonzero) else len(values))


def _all_seen(case: Case) -> tuple[_Seen, ...]:
    """What was read, once for all rules; nothing unless asked for and the weights are here."""
    if not case.values or not case.release.has_weights:
        return ()
    kept = _KEPT.get(case)
    if kept is None:
        with Reader(case.release) as reader:
            kept = _KEPT[case] = tuple(_seen(case, reader))
    return kept


@rule("values-not-finite")
def values_not_finite(case: Case) -> Iterator[Finding]:
    """A small tensor holds NaN or infinity.

    ## What
    With --values: every value of the small tensors (norms, scales, biases, decays) is a finite number.

    ## Why
    One of them makes every answer NaN, or every answer that visits one expert.

    ## Example
    A scale of an expert that no calibration sample reached: 0 / 0.

    ## How to fix
    Fetch the shard again and compare its digest (`dayzero verify`); if it was published so, tell the publishers.
    """
    for seen in _all_seen(case):
        found = []
        for row, bad in zip(seen.rows, seen.bad, strict=True):
            if bad:
                name = seen.group.name(row)
                found.append((name, Finding(
                    rule="values-not-finite", severity="error", subject=name,
                    message=f"{bad} of {prod(seen.group.shape)} values of {name} are NaN or infinite",
                    hint="fetch the shard again; if it was published so, tell the publishers", facts={"values": bad})))
        yield from _alike(found, seen.group.pattern)


@rule("values-outlier", "warning")
def values_outlier(case: Case) -> Iterator[Finding]:
    """The values of a small tensor are far from those of its siblings in other layers.

    ## What
    With --values: the largest magnitude of each small tensor is compared with those of the same tensor in the other
    layers (and experts). More than a factor of 1024 from their middle, and more than ten times their usual distance, is
    an outlier. So is a norm or scale that ends in zeros where its siblings do not.

    ## Why
    A flipped bit in an exponent, or a part of a file that was never written, passes every check of names and shapes.

    ## Example
    18 corrupt values in one shard of a published model of 175 billion parameters, found by their statistics after
    gibberish (facebookresearch/metaseq#122).

    ## How to fix
    Fetch the shard again and compare its digest (`dayzero verify`).
    """
    for seen in _all_seen(case):
        if len(seen.rows) >= SIBLINGS:
            yield from _alike([*_far(seen), *_ends_in_zeros(seen)], seen.group.pattern)


def _outlier(name: str, message: str, **facts: float) -> tuple[str, Finding]:
    return name, Finding(rule="values-outlier", severity="warning", subject=name, message=message,
                         hint="compare the shard's digest with the published one, and fetch it again", facts=facts)


def _far(seen: _Seen) -> Iterator[tuple[str, Finding]]:
    largest = np.array(seen.largest)
    bits = np.log2(np.where(largest > 0, largest, np.nan))
    if not np.isfinite(bits).any():
        return
    middle = float(np.nanmedian(bits))
    spread = float(np.nanmedian(np.abs(bits - middle)))
    for row, size, own in zip(seen.rows, seen.largest, bits.tolist(), strict=True):
        if abs(own - middle) > max(FAR_BITS, FAR_SPREADS * spread):
            name = seen.group.name(row)
            yield _outlier(name, f"the largest value of {name} is {size:.3g}; of its siblings {2**middle:.3g}",
                           largest=size, siblings=2**middle)


def _ends_in_zeros(seen: _Seen) -> Iterator[tuple[str, Finding]]:
    """Not biases: those of some layers may well be zero."""
    length, last = prod(seen.group.shape), seen.group.pattern.rpartition(".")[2]
    own = seen.group.pattern.rpartition(".")[0].rpartition(".")[2] if last == "weight" else last
    if length < 16 or not ("norm" in own.lower() or "scale" in last):
        return
    short = [row for row, tail in zip(seen.rows, seen.tail, strict=True) if tail > length // 2]
    usual = sum(tail <= length // 64 for tail in seen.tail)
    if usual >= SIBLINGS and len(short) * 10 <= len(seen.rows):
        for row in short:
            name, zeros = seen.group.name(row), seen.tail[seen.rows.index(row)]
            yield _outlier(name, f"{name} ends in {zeros} zeros of {length}; its siblings do not", zeros=zeros)


@rule("values-padding", "info")
def values_padding(case: Case) -> Iterator[Finding]:
    """The end of a vector is zero in every layer: it is stored longer than it is used.

    ## What
    With --values: vectors whose last values (at least a sixteenth of them) are zero in all layers.

    ## Why
    Code that takes the stored length for the number of heads, or splits the vector evenly, gets the wrong part.

    ## Example
    A decay vector stored as 128 values for 96 heads, in a release of 2.8 trillion parameters; public ports of it
    disagreed about what the length means.

    ## How to fix
    Take the number of heads from the config, and cut the vector before it is split.
    """
    for seen in _all_seen(case):
        length, tail = prod(seen.group.shape), min(seen.tail)
        if len(seen.rows) > 1 and length == max(seen.group.shape, default=0) and max(4, length // 16) <= tail < length:
            yield Finding(
                rule="values-padding", severity="info", subject=seen.group.pattern,
                message=f"the last {tail} of {length} values are zero in all {len(seen.rows)} of {seen.group.pattern}",
                hint=f"use the first {length - tail}; do not take the stored length for a number of heads",
                facts={"stored": length, "used": length - tail})


@rule("values-read", "info")
def values_read(case: Case) -> Iterator[Finding]:
    """How much was read to look at values.

    ## What
    With --values: the tensors that were looked at, and those of the same size that were left out because the total is
    bounded. Without weights (headers only) it says that nothing could be read.

    ## Why
    What was not read was not checked.

    ## Example
    The scales of 58 layers of 256 experts are sampled evenly.

    ## How to fix
    Nothing; to check every byte use `dayzero verify`.
    """
    if not case.values or not case.has_tensors:
        return
    seen = _all_seen(case)
    read, total = sum(len(one.rows) for one in seen), _count(
        group for group in case.release.tensors.groups if group.dtype in FLOATS and group.tensor_bytes <= SMALL)
    amount = sum(len(one.rows) * one.group.tensor_bytes for one in seen)
    yield Finding(
        rule="values-read", severity="info", subject="values",
        message=f"looked at the values of {read} of {total} small tensors ({format_bytes(amount)})" if read else
                "no values were looked at: the data of the tensors is not here",
        hint="the others were not checked" if read < total else "nothing to do",
        facts={"read": read, "small_tensors": total, "bytes": amount})


def _count(groups: Iterable[TensorGroup]) -> int:
    return sum(group.count for group in groups)
