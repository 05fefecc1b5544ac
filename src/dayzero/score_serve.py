"""Predictions for tables of serving points: time to the first token and between tokens of a model on an engine.

What each row says becomes a `Case`; `stages/plan/times/serving.py` turns it into times with the shares of their rates
that devices of its generation reach. The interval is what nine of ten measurements lay in for cases of which as much
is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dayzero.data import devices, engine
from dayzero.data.allocation import allocation, allocations
from dayzero.data.devices import known_device
from dayzero.data.efficiency import Common, Efficiency, EngineFigures, Generation, efficiency
from dayzero.data.engines import NEUTRAL
from dayzero.data.precisions import Precision, precision
from dayzero.errors import DayzeroError, NotPossible
from dayzero.placement import split_layers
from dayzero.placement.held import held_bytes
from dayzero.placement.pool import Settings, pool
from dayzero.placement.precision import in_precision, schemes, weights_at_most_8_bits
from dayzero.schema import Cluster, Device, Layout, Link, ModelSpec, Target, Workload
from dayzero.schema.allocation import Allocation
from dayzero.stages.plan.times.serving import Load, served
from dayzero.stages.plan.times.terms import Terms, terms
from dayzero.stages.plan.times.work import Step

from .score_layouts import NODE, Plant, drafted, in_flight, inside, latent, launched, number_in, plant, published

COLUMNS = ("row", "ttft_ms", "tpot_ms", "ttft_low_ms", "ttft_high_ms", "tpot_low_ms", "tpot_high_ms", "fits", "reason")
"""Of the predictions of serving."""
NEEDED = ("model", "gpu", "num_gpus", "precision", "framework", "tp", "ep", "dp", "dp_attention", "isl", "osl",
          "concurrency", "mode", "notes")
"""Columns that a table of serving points has to have."""
BATCHED = 8192
"""Prompt tokens of one prefill pass."""
TIGHT = 0.88
"""Share of a device's memory above which weights leave a pool that is a small difference of large numbers."""
MOST = 64
"""Devices that a worker is read to have at most, where its number is not stated."""
ALONE = 24
"""Requests of each device of a worker from which on it is read to have attention of its own, where it is not said."""
WIDEST = 32
"""Devices that a worker is read to be grown to by its requests, where its number is not stated."""
WIDE = 8
"""Replicas of attention above which a layout is wide."""
ANSWER = 0.5
"""Share of its answer that a running sequence holds, where room is not reserved for all of it."""
DEFAULT = Workload(kind="serve", input_tokens=1024, output_tokens=256, concurrency=1, max_batched_tokens=BATCHED)
"""Of rows that state no workload; docs/numbers.md, section Default workload."""


class Releases(Protocol):
    """Where models are found."""

    def find(self, name: str, wanted: Precision | None) -> Path | None:
        """The folder of the release that a name is about."""

    def model(self, path: Path) -> ModelSpec:
        """The model of a release."""


@dataclass(frozen=True)
class Served:
    """What is predicted of one point; times are (value, low, high) in seconds."""

    row: int
    """Data row of the table, from 0."""
    ttft: tuple[float, float, float] | None = None
    """To the first token."""
    tpot: tuple[float, float, float] | None = None
    """Between tokens."""
    fits: bool | None = None
    """Whether the weights fit."""
    reason: str = ""
    """Why there is no prediction, or what was assumed."""

    def cells(self) -> tuple[str, ...]:
        """In the order of COLUMNS."""
        ttft, tpot = ([f"{1000 * one:.4f}" for one in times] if times else ["", "", ""]
                      for times in (self.ttft, self.tpot))
        return (str(self.row), ttft[0], tpot[0], *ttft[1:], *tpot[1:],
                "" if self.fits is None else str(self.fits).lower(), self.reason)


@dataclass(frozen=True)
class Case:
    """One row on one device, ready to be timed."""

    load: Load
    """What it takes."""
    device: Device
    """The device."""
    engine: str
    """Name of the engine that its figures are looked up by."""
    kind: str
    """together, apart or unstated: what is known of its workers."""
    fits: bool
    """Whether the weights fit."""
    assumed: str
    """What the row does not state."""
    schemes: tuple[str, str] = ("", "")
    """Of products with weights, and of routed experts."""
    drafts: bool = False
    """Whether the model can propose tokens itself."""
    version: str = ""
    """Of the engine; empty: not stated."""
    published: bool = False
    """Whether its options are those of the published launch of such a load."""

    def figures(self, known: Efficiency) -> tuple[Generation, EngineFigures, bool]:
        """What it is timed with; see `Efficiency.figures`."""
        return known.figures(self.device.arch, self.engine, *self.schemes, self.version)


class Cases:
    """Makes cases of rows; passes that are alike are counted once."""

    def __init__(self, releases: Releases, known: Efficiency) -> None:
        self.releases, self.known, self.common = releases, known, known.common
        self._models: dict[tuple[str, str], ModelSpec] = {}
        self._terms: dict[Any, Terms] = {}
        self._room: dict[Any, int] = {}

    def of(self, row: Mapping[str, str]) -> list[Case]:
        """The case of a row; of one that names no device, a case for each shipped device that holds the weights.
        Raises DayzeroError."""
        model = self.model(row)
        known = known_device(row["gpu"])
        if known is None and row["gpu"].strip():
            raise NotPossible(f"no device is known as {row['gpu'][:40]}", "")
        if known:
            return [self._case(row, model, known, one) for one in self._plants(row, model, known)]
        cases = [self._case(row, model, one, plant(row, model, one)) for one in devices()
                 if one.computes_in(model.dtype)]
        return [case for case in cases if case.fits]

    def _plants(self, row: Mapping[str, str], model: ModelSpec, device: Device) -> tuple[Plant, ...]:
        """How the row was run; where only degrees are stated as such deployments are published, maybe several."""
        made = plant(row, model, device)
        if not made.apart or made.decoders is not None:
            return (made,)
        found = published(row, made, model, device, engine_name(row["framework"]))
        holding = (one for one in found if self._holding(model, one.decode, device) == one.decode.world_size)
        return tuple(holding) or (made,)

    def model(self, row: Mapping[str, str]) -> ModelSpec:
        """The model of a row in the precision that the row states."""
        key = row["model"], row["precision"]
        if key not in self._models:
            wanted = precision(row["precision"]) or precision(row["model"])
            path = self.releases.find(row["model"], wanted)
            if path is None:
                raise NotPossible(f"no release of {row['model']}", "")
            self._models[key] = in_precision(self.releases.model(path), wanted)
        return self._models[key]

    def _case(self, row: Mapping[str, str], model: ModelSpec, device: Device, made: Plant) -> Case:
        sizes = [number_in(row, "isl"), number_in(row, "osl"), in_flight(row)]
        tokens, output = (max(1, int(size or usual)) for size, usual in zip(
            sizes, (DEFAULT.input_tokens, DEFAULT.output_tokens), strict=False))
        requests = max(1.0, (sizes[2] or DEFAULT.concurrency) / made.copies)
        missing = [name for name, size in zip(("isl", "osl", "concurrency"), sizes, strict=True) if not size]
        if made.apart and made.decoders is None:
            made = self._imagined(model, made, device, requests)
        name, version = engine_name(row["framework"]), engine_version(row["framework"])
        if not made.apart:
            made = launched(row, made, (tokens, output, requests), device, (name, version))
        narrow = weights_at_most_8_bits(model)
        load, fits = self._load(model, device, made, name, tokens, output, requests, narrow)
        load = replace(load, drafted=float(not made.draft and bool(drafted(row))))
        kind = "together" if not made.apart else "unstated" if made.imagined else "apart"
        assumed = [f"not stated, taken from the default workload: {', '.join(missing)}"] if missing else []
        assumed += ["pipeline stages are timed one after another"] if made.stages > 1 else []
        return Case(load=load, device=device, engine=name, kind=kind, fits=fits, assumed="; ".join(assumed),
                    schemes=schemes(model), drafts=model.mtp_layers > 0,
                    version=version, published=made.published)

    def _imagined(self, model: ModelSpec, made: Plant, device: Device, requests: float) -> Plant:
        """The workers of a point that does not state how many there are. Where its devices cannot hold the weights, so
        many more as can, and with many requests more still; with many requests for each, and beyond 8 that are joined,
        each has attention of its own if the model's cache is latent. As many devices prefill as decode."""
        ranks, own = self._holding(model, made.decode, device), latent(model)
        if ranks > made.decode.world_size:
            while requests / ranks >= ALONE and ranks < WIDEST:
                ranks *= 2
        decode, spread = made.decode, own and (NODE < ranks <= inside(device) or requests / ranks >= ALONE)
        if spread:
            decode = Layout(tp=1, dp=ranks, ep=ranks)
        elif ranks > decode.world_size:
            decode = Layout(tp=ranks)
        prefilling = self._holding(model, made.prefill, device)
        prefill = made.prefill if prefilling == made.prefill.world_size else Layout(tp=prefilling)
        known = self.common
        workers = requests ** (known.unstated_wide_workers if spread else known.unstated_workers)
        prefillers = max(1.0, workers * decode.world_size / prefill.world_size)
        return replace(made, decode=decode, prefill=prefill, decoders=workers, prefillers=prefillers, imagined=True)

    def _holding(self, model: ModelSpec, layout: Layout, device: Device) -> int:
        """Devices of the layout, or as many times two as hold the weights."""
        rules, neutral = _rules(""), engine(NEUTRAL)
        while layout.world_size < MOST and held_bytes(model, layout, neutral, rules, range(len(model.layers)),
                                                      device.arch) > TIGHT * device.memory_bytes:
            layout = Layout(tp=2 * layout.world_size)
        return layout.world_size

    def _load(self, model: ModelSpec, device: Device, made: Plant, name: str, tokens: int, output: int,
              requests: float, narrow: bool) -> tuple[Load, bool]:
        decode, prefill = made.decode, made.prefill
        target = _target(device, max(decode.world_size, prefill.world_size), tokens, output, self.common)
        piped = msgspec.structs.replace(decode, pp=made.stages)
        weights, room = self._memory(model, piped, device, name, tokens, output, narrow)
        workers = made.decoders or 1
        batch = requests / workers  # of workers that are not stated there are enough to hold the requests
        batch = batch if made.imagined else min(batch, max(1.0, room))
        prefillers = made.prefillers or 1
        own, options = made.groups, made.options
        batch = min(batch, made.most * own) if made.most else batch
        inner = prefill.tp // prefill.attention_degree  # groups that prefill side by side, each its own prompts
        budget = options.tokens or BATCHED
        together = max(1, min(int(budget // max(1, tokens)), ceil(requests / prefill.dp)))
        balanced = own > 1 and options.balance is not None
        context = tokens + output / 2
        step = Step(phase="decode", sequences=batch / decode.dp, tokens=1 + made.draft, context=context,
                    scored=1 + made.draft)
        first = [Step(phase="prefill", sequences=count, tokens=tokens, context=0)
                 for count in (1, together * inner)]
        alone, full = (self._pass(model, prefill, target, one) for one in first)
        groups = prefill.dp * inner * (prefillers if made.apart else 1)
        load = Load(decode=self._pass(model, decode, target, step), alone=alone, together=full, prompts=together,
                    requests=requests, held=batch * workers, groups=groups, output=output,
                    narrow=float(narrow), wide=float(decode.dp > WIDE), apart=float(made.apart),
                    unstated=float(made.imagined), batch=batch / own, schedulers=own * workers,
                    draft=float(made.draft), workers=workers, looks=options.looks or 1.0,
                    holds=(options.balance if balanced else options.holds) or 0.0,
                    fills=own if balanced else (options.share or 1.0) * budget / tokens)
        return load, weights <= device.memory_bytes

    def _pass(self, model: ModelSpec, layout: Layout, target: Target, step: Step) -> Terms:
        key = id(model), layout, target.cluster.device.name, target.cluster.nodes, step
        if key not in self._terms:
            self._terms[key] = terms(model, layout, target, step, self.common)
        return self._terms[key]

    def _memory(self, model: ModelSpec, layout: Layout, device: Device, name: str, tokens: int, output: int,
                narrow: bool) -> tuple[int, float]:
        """(bytes of weights on a device, sequences that the cache of a worker holds)."""
        rules, neutral = _rules(name), engine(NEUTRAL)
        key = id(model), layout, device.name, name, tokens + output, narrow
        if key not in self._room:
            settings = Settings(length=tokens + output, cache_dtype="fp8" if narrow else "auto")
            self._room[key] = pool(model, layout, neutral, rules, device, settings).least.room.tokens
        first = split_layers(model, layout.pp, rules.longer_stages)[0]
        weights = held_bytes(model, layout, neutral, rules, range(*first), device.arch)
        if self._room[key] <= 0 or weights > TIGHT * device.memory_bytes:
            return weights, float("inf")
        groups = layout.dp * layout.tp // layout.attention_degree
        reserved = self.known.engine(name)[0].reserved
        return weights, self._room[key] * groups / (tokens + output * max(ANSWER, reserved))


def _rules(name: str) -> Allocation:
    """How an engine divides memory; of one that is not known as the first that is."""
    rules = allocation(name, "") or allocation(next(iter(allocations())), "")
    if rules is None:
        raise NotPossible("no engine's memory is known", "")
    return rules


def engine_name(text: str) -> str:
    """The engine that a cell names; empty: none that is known."""
    lower = text.strip().lower()
    return next((known for known in allocations() if re.match(rf"{known}\b(?!-)", lower)), "")


def engine_version(text: str) -> str:
    """The version that a cell names after the engine: `NAME 0.12.0`, `NAME==0.12.0`, `NAME v0.12.0`; empty: none."""
    return re.sub(r"^v(?=\d)", "", re.sub(r"^[^\s=:/@]+", "", text.strip()).strip(" \t\u00a0=:/@()"))


def _target(device: Device, world: int, tokens: int, output: int, common: Common) -> Target:
    node = inside(device)
    network = Link(name="network", devices=0, bandwidth=common.network, latency=1e-5, source="efficiency.toml")
    links = device.links or (network,)
    return Target(
        name="", partial=False, engine=engine(NEUTRAL), layouts=(),
        cluster=Cluster(device=msgspec.structs.replace(device, links=links), devices_per_node=node,
                        nodes=ceil(max(world, 1) / node), memory_utilization=0.9, network=network),
        workload=msgspec.structs.replace(DEFAULT, input_tokens=tokens, output_tokens=output))


def predict_serving(rows: Sequence[Mapping[str, str]], releases: Releases, known: Efficiency | None = None
                    ) -> Iterator[Served]:
    """One prediction for each row, in order. `known`: the figures, instead of the shipped ones."""
    cases = Cases(releases, known or efficiency())
    for number, row in enumerate(rows):
        try:
            yield _predicted(number, row, cases)
        except NotPossible as none:
            yield Served(row=number, reason=none.reason)
        except DayzeroError as error:
            yield Served(row=number, reason=error.message)


def _predicted(number: int, row: Mapping[str, str], cases: Cases) -> Served:
    made = cases.of(row)
    if not made:
        raise NotPossible("the device is not stated, and the weights fit none that is known", "")
    each = [_times(case, cases.known) for case in made]
    reasons = [made[0].assumed, "options as the published launch of this load has them" if made[0].published else ""]
    if len(made) > 1:
        reasons.append(f"how many workers is not stated: the middle of {len(made)} published deployments for this load"
                       if row["gpu"].strip() else
                       f"the device is not stated: the middle of {len(made)} that hold the weights")
    if not made[0].fits:
        reasons.append("the weights do not fit")
    middle = [(float(np.median([one[kind][0] for one in each])), min(one[kind][1] for one in each),
               max(one[kind][2] for one in each)) for kind in (0, 1)]
    return Served(row=number, tpot=middle[0], ttft=middle[1], fits=made[0].fits,
                  reason="; ".join(reason for reason in reasons if reason))


def _times(case: Case, known: Efficiency) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """((tokens' value, low, high), (first token's))."""
    generation, figures, measured = case.figures(known)
    tpot, ttft = (float(value) for value in served(case.load, generation, figures, known.common))
    around = known.interval(f"{case.kind}, {'measured' if measured else 'not measured'}")
    return ((tpot, tpot * around.tpot[0], tpot * around.tpot[1]), (ttft, ttft * around.ttft[0], ttft * around.ttft[1]))
