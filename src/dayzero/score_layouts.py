"""How a row of a table of serving points was laid out: its columns, read so that they are possible.

Tables state tp, the ways that experts are split (`moe_tp` in the notes), ep and dp, and many state some of them twice:
a product for a factor, or devices of all workers for those of one. Where what they state cannot be, it is read as the
nearest layout that can.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from dayzero.data.deployments import Workers, deployments, nearest
from dayzero.data.launches import NONE, Options, Point, options, stated
from dayzero.errors import NotPossible
from dayzero.placement.split import is_expert
from dayzero.schema import Device, Layout, ModelSpec

_NAMED = re.compile(r"_tp(\d+)(?:_0)?_ep(\d+)_")
_NOTHING = ("", "nan", "none")
_MOST = 2**40
_LEAST = 1e-6
DRAFT = 3
"""Tokens that a published deployment guesses a step which speculates and does not say how far."""
_PAIRS = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
NODE = 8
"""Devices of a node, where the device's own links do not say more."""


@dataclass(frozen=True)
class Stated:
    """What a row says of one kind of worker."""

    tp: int
    """Ranks that share attention."""
    dp: int
    """Groups with attention of their own."""
    ep: int
    """Groups of whole experts."""
    expert_tp: int
    """Ways that an expert is split; 0: not stated."""


@dataclass(frozen=True)
class Plant:
    """How a point was run."""

    decode: Layout
    """Of the workers that decode."""
    prefill: Layout
    """Of those that prefill; the same where they are the same workers."""
    apart: bool
    """Whether prefill and decode have workers of their own."""
    decoders: float | None
    """Workers that decode; None: not stated."""
    prefillers: float | None
    """Workers that prefill; None: not stated."""
    stages: int = 1
    """Pipeline stages of a worker."""
    copies: int = 1
    """Equal deployments beside each other that share the requests."""
    imagined: bool = False
    """Whether the workers are not stated, and are only what such points usually have."""
    draft: int = 0
    """Tokens that are guessed a step."""
    most: int | None = None
    """Sequences that a group with attention of its own decodes at most; None: not stated."""
    options: Options = NONE
    """What it was started with."""
    published: bool = False
    """Whether that is as a benchmark published it, for the point does not state it."""

    @property
    def groups(self) -> int:
        """Groups of ranks with attention of their own, of a worker that decodes."""
        return self.decode.dp * self.decode.tp // self.decode.attention_degree


def number_in(row: Mapping[str, str], key: str) -> float | None:
    """The number in a cell; None: it is empty. Raises NotPossible for what is no number of a sensible size."""
    cell = row[key].strip().lower()
    if cell in _NOTHING:
        return None
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (value == 0 or _LEAST <= value <= _MOST):
        raise NotPossible(f"{key} is not a sensible number: {row[key][:40]}", "")
    return value


def drafted(row: Mapping[str, str]) -> bool | None:
    """Whether a row says that tokens are proposed; None: it does not say."""
    cell = row.get("spec_decode", "").strip().lower()
    return None if cell in ("", "nan") else cell not in ("none", "no", "off", "false", "0", "0.0")


def notes(text: str) -> dict[str, int]:
    """`key=number` pairs of a row's notes."""
    return {key: int(float(value)) for key, value in _PAIRS.findall(text)}


def plant(row: Mapping[str, str], model: ModelSpec, device: Device) -> Plant:
    """Of a row. Raises NotPossible where no layout is stated at all."""
    facts, apart = notes(row["notes"]), row["mode"].startswith("disagg")
    if not apart:
        return _together(row, facts, model, device)
    sides = {}
    for side in ("prefill", "decode"):
        one = Stated(tp=max(1, facts.get(f"{side}_tp_size", 1)), dp=max(1, facts.get(f"{side}_attention_dp_size", 1)),
                     ep=max(1, facts.get(f"{side}_moe_ep_size", 1)), expert_tp=facts.get(f"{side}_moe_tp_size", 0))
        sides[side] = possible(one, model, inside(device))
    return Plant(decode=sides["decode"], prefill=sides["prefill"], apart=True,
                 decoders=facts.get("decode_num_workers"), prefillers=facts.get("prefill_num_workers"))


def published(row: Mapping[str, str], made: Plant, model: ModelSpec, device: Device, engine: str
              ) -> tuple[Plant, ...]:
    """How a point was run of which only the degrees are stated: the published deployments of the model for this load
    that agree with them. Several where they differ in what is not stated, none where none is known."""
    load = [number_in(row, key) for key in ("isl", "osl", "concurrency")]
    if not all(load):
        return ()
    tokens, output, requests = (int(size or 0) for size in load)
    found = deployments(row["model"], device.name, engine, (tokens, output, requests))
    facts, version = notes(row["notes"]), row["framework"].partition(" ")[2].strip()
    prefilling = facts.get("prefill_tp_size", 0), facts.get("prefill_moe_ep_size", 0)
    plants = []
    for one in nearest(found, prefilling, facts.get("decode_tp_size", 0), row["precision"], version):
        decode, prefill = (possible(_of_workers(side), model, inside(device)) for side in (one.decode, one.prefill))
        draft = DRAFT if one.draft_tokens is None else one.draft_tokens
        plants.append(replace(made, decode=decode, prefill=prefill, decoders=one.decode.count,
                              prefillers=one.prefill.count, draft=draft, most=one.batch))
    return tuple(dict.fromkeys(plants))


def launched(row: Mapping[str, str], made: Plant, load: tuple[int, int, float], device: Device,
             engine: tuple[str, str]) -> Plant:
    """With the options that an engine with workers of one kind was started with, for tokens of a prompt and an answer
    and requests under way. `engine`: name and version."""
    point = Point(model=row["model"], precision=row["precision"], device=device.name, engine=engine[0],
                  version=engine[1], load=load[:2], requests=load[2], tp=made.decode.tp, groups=made.groups)
    found = options(point, row["notes"])
    return replace(made, options=found, draft=0 if drafted(row) is False else int(found.draft or 0),
                   published=found != NONE and stated(row["notes"]) is None)


def _of_workers(side: Workers) -> Stated:
    return Stated(tp=1 if side.apart else side.tp, dp=side.tp if side.apart else 1, ep=side.ep, expert_tp=0)


def _together(row: Mapping[str, str], facts: Mapping[str, int], model: ModelSpec, device: Device) -> Plant:
    cells = {key: number_in(row, key) for key in ("tp", "ep", "dp", "num_gpus")}
    if not any(cells.values()):
        raise NotPossible("the layout is not stated", "")
    if cells["tp"] is None and cells["num_gpus"]:
        cells["tp"] = cells["num_gpus"] // (cells["dp"] or 1)
    one = Stated(tp=max(1, int(cells["tp"] or 1)), dp=max(1, int(cells["dp"] or 1)), ep=max(1, int(cells["ep"] or 1)),
                 expert_tp=facts.get("moe_tp", 0))
    read = _factored(one, row["notes"], device)
    layout = possible(read, model, inside(device) if cells["ep"] else NODE)
    requests, batch = number_in(row, "concurrency"), facts.get("batch_size")
    whole = read.tp * read.dp >= one.tp * one.dp  # else the batch is that of ranks which are counted twice
    copies = max(1, round(requests / batch)) if requests and batch and whole else 1
    groups = layout.dp * layout.tp // layout.attention_degree
    if copies > 1 and groups == 1 and layout.ep > 1 and layout.tp % copies == 0:
        layout, copies = Layout(tp=layout.tp, ep=layout.ep, attention_tp=layout.tp // copies), 1
    elif copies > 1:
        copies = copies // groups if copies % groups == 0 else 1
    stages = int((number_in(row, "pp") if "pp" in row else None) or 1)
    return Plant(decode=layout, prefill=layout, apart=False, decoders=1, prefillers=1, stages=stages, copies=copies)


def _factored(one: Stated, text: str, device: Device) -> Stated:
    """Where tp (or dp) is the product of the ways that experts are split and of ep, and that is more than a node or
    more than the point's own name says, the two are the same ranks."""
    ranks, named = one.tp * one.dp, _NAMED.search(text)
    product = one.expert_tp * one.ep
    if one.ep == 1 or product != ranks:
        if product > ranks and product % one.tp == 0 and not named:
            return replace(one, dp=product // one.tp)  # more ranks hold experts than are said to be there
        return one
    degree = None
    if named and int(named[1]) < ranks:
        degree = int(named[1])
    elif not named and one.expert_tp == one.ep and ranks > inside(device):
        degree = one.ep
    if degree is None:
        return one
    ep = int(named[2]) if named else one.ep
    return Stated(tp=1, dp=degree, ep=ep, expert_tp=0) if one.dp > 1 else Stated(tp=degree, dp=1, ep=ep, expert_tp=0)


def latent(model: ModelSpec) -> bool:
    """Whether tp copies its cache instead of dividing it."""
    return any(attention.kind == "latent" for attention in model.attentions.values())


def in_flight(row: Mapping[str, str]) -> float | None:
    """Requests under way at any time: as stated, else the batches of all workers together. None: neither is stated."""
    facts = notes(row["notes"])
    batch = facts.get("decode_batch_size")
    if batch:
        batch *= max(1, facts.get("decode_num_workers", 1)) * max(1, facts.get("decode_attention_dp_size", 1))
    return number_in(row, "concurrency") or batch or facts.get("batch_size")


def inside(device: Device) -> int:
    """Devices that its own links join."""
    return max((link.devices for link in device.links), default=0) or NODE


def possible(one: Stated, model: ModelSpec, joined: int = NODE) -> Layout:
    """The nearest layout that the model can take. Heads that tp does not divide, more than 32 ranks for them, and more
    than 8 for a latent cache where `joined` devices have links of their own and experts are not said to be whole, mean
    that each device has attention of its own and all of them share the experts."""
    tp, dp, ep = one.tp, one.dp, one.ep
    heads = max(attention.heads for attention in model.attentions.values())
    if heads % tp or tp > 32 or (ep == 1 and NODE < tp <= joined and latent(model)):
        tp, dp, ep = 1, tp * dp, tp * dp
    if not any(is_expert(family) for family in model.families):
        return Layout(tp=tp, dp=dp)
    if dp > 1:
        if ep == 1 and tp * dp > NODE:
            ep = tp * dp  # no expert is split over more than a node
        if ep == 1:
            return Layout(tp=tp * dp, attention_tp=tp)
        ep = ep if tp * dp % ep == 0 else tp * dp
        return Layout(tp=tp * dp, attention_tp=tp, ep=ep) if ep < tp * dp else Layout(tp=tp, dp=dp, ep=ep)
    if ep > tp:
        return Layout(tp=tp, dp=ceil(ep / tp), ep=ceil(ep / tp) * tp)
    return Layout(tp=tp, ep=ep if tp % ep == 0 else 1)
