"""Which part of each parameter a rank holds, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dayzero.errors import NotPossible
from dayzero.runtime.loading import Cut
from dayzero.runtime.mesh import Place, refusal
from dayzero.schema import Layout

from .rules import TP, Rule, Rules, derive
from .shapes import ranges


@dataclass(frozen=True)
class Row:
    """What is told of one tensor."""

    name: str
    rule: str
    """`column`, `row`, `vocabulary`, `experts`, `expert width`, `with its parts`, `replica` or `whole`."""
    why: str
    """Why every rank holds all of it; empty otherwise."""
    share: float
    """The part of it that this rank holds."""
    elements: int
    """Of the part."""


@dataclass
class Shares:
    """One rank's part of a model."""

    place: Place
    rules: Rules
    fsdp: bool
    cuts: dict[str, Cut] = field(default_factory=dict)
    """By the name of a parameter or buffer; those that the rank does not hold at all are not in it."""
    rows: list[Row] = field(default_factory=list)


def plan_shares(model: Any, layout: Layout, rank: int, *, rules: Rules | None = None, fsdp: bool = False) -> Shares:
    """What the rank holds of the model, whose parameters have no data. `rules`: of the whole model, if this one has
    been taken apart already. With `fsdp` replicas share the weights.

    Raises NotPossible for a layout that cannot be run, or that shares nothing.
    """
    if reason := refusal(layout) or _refused_sharing(layout, fsdp):
        raise NotPossible(reason, "choose another layout with --layout")
    made = Shares(Place(layout, rank), rules or derive(model, layout), fsdp)
    _check_experts(made)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in model.state_dict():
        if _elsewhere(name, made):
            continue
        tensor = parameters[name] if name in parameters else _buffer(model, name)
        cut = _cut(name, tensor, made)
        made.cuts[name] = cut
        made.rows.append(_row(name, tensor, cut, made))
    if layout.tp > 1 and not any(row.share < 1 for row in made.rows):
        why = next((row.why for row in made.rows if row.rule == "whole"), "")
        raise NotPossible(f"no weight of this model can be shared by {layout.tp} ranks: {why}",
                          "take another tp, or pp or dp")
    return made


def _refused_sharing(layout: Layout, fsdp: bool) -> str:
    if fsdp and (layout.tp > 1 or layout.pp > 1 or layout.ep > 1):
        return f"weights are shared by replicas only where nothing else shares them ({layout.text})"
    return ""


def _check_experts(shares: Shares) -> None:
    layout = shares.place.layout
    for each in shares.rules.experts if layout.ep > 1 else ():
        if each.count % layout.ep:
            raise NotPossible(f"{each.count} experts cannot be dealt out evenly to {layout.ep} groups",
                              f"take an ep that divides {each.count}")
    if layout.ep > 1 and not shares.rules.experts:
        raise NotPossible(f"the model has no routed experts to deal out to {layout.ep} groups", "leave ep out")


def _elsewhere(name: str, shares: Shares) -> bool:
    """Whether it is of an expert of a list that other ranks hold."""
    own, place = shares.rules.of(name), shares.place
    if own is None or own.packed:
        return False
    return own.number(name) * place.layout.ep // own.count != place.expert


def _buffer(model: nn.Module, name: str) -> Any:
    owner, _, leaf = name.rpartition(".")
    return model.get_submodule(owner)._buffers[leaf]


def _cut(name: str, tensor: Any, shares: Shares) -> Cut:
    cut: Cut = {}
    place, rule, own = shares.place, shares.rules.cut.get(name), shares.rules.of(name)
    if own is not None and own.packed and place.layout.ep > 1 and tensor.dim() and tensor.shape[0] == own.count:
        size = own.count // place.layout.ep
        cut[0] = ((place.expert * size, (place.expert + 1) * size),)
    if rule is not None:
        cut[rule.along.dim] = ranges(rule.along.segments, *_of_group(rule, place))
    if shares.fsdp and tensor.dim() and isinstance(tensor, nn.Parameter):
        size = -(-tensor.shape[0] // place.layout.dp)
        first = min(tensor.shape[0], place.replica * size)
        cut[0] = ((first, min(tensor.shape[0], first + size)),)
    return cut


def _of_group(rule: Rule, place: Place) -> tuple[int, int]:
    """(ranks that share it, which of them this is)"""
    return (place.layout.tp, place.index) if rule.group == TP else (place.layout.expert_tp, place.width)


def _row(name: str, tensor: Any, cut: Cut, shares: Shares) -> Row:
    elements = tensor.numel()
    for dim, kept in cut.items():
        elements = elements // max(1, tensor.shape[dim]) * sum(last - first for first, last in kept)
    rule = shares.rules.cut.get(name)
    kind = rule.kind if rule else "replica" if shares.fsdp and cut else "experts" if 0 in cut else "whole"
    why = "" if cut else shares.rules.whole.get(name, "no parameter")
    return Row(name, kind, why, elements / max(1, tensor.numel()), elements)
