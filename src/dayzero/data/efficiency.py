"""How much of their stated rates real devices reach, and what engines add: figures fitted to published measurements.

`efficiency.toml` is written by `scripts/fit_efficiency.py`; every figure there belongs to a class of operators on a
generation of devices, to an engine, or to all. docs/numbers.md says which formula takes it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import exp, log, prod
from statistics import fmean
from tomllib import loads
from typing import TypeVar

import msgspec

from dayzero.schema.calibration import Calibration

from .causes import FACTORS, split_arch

Figures = TypeVar("Figures", bound=msgspec.Struct)


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices that reach alike shares of their rates. Shares are of 1; calls are microseconds."""

    arch: tuple[str, ...]
    """`Device.arch` of its devices."""
    linear_rate: float
    """Share of the matrix rate of bf16 that products with weights reach."""
    linear_bytes: float
    """Share of the memory bandwidth that they reach."""
    linear_rows: float
    """Rows at which such a product reaches half of its rate."""
    expert_rate: float
    """The same of the products of routed experts: share of the matrix rate,"""
    expert_bytes: float
    """of the memory bandwidth,"""
    expert_rows: float
    """and rows of one expert at half of the rate."""
    expert_call: float
    """What routing and dispatch inside a device cost a layer."""
    cache_bytes: float
    """Share of the memory bandwidth of attention over a cache."""
    cache_rate_decode: float
    """Share of the matrix rate, one new token for each sequence,"""
    cache_rate_prefill: float
    """and many."""
    latent_bytes: float
    """The same of attention over a latent cache."""
    latent_rate_decode: float
    """Share of the matrix rate, one new token for each sequence,"""
    latent_rate_prefill: float
    """and many."""
    state_bytes: float
    """The same of linear attention: share of the memory bandwidth,"""
    state_rate: float
    """and of the matrix rate."""
    pointwise_bytes: float
    """Share of the memory bandwidth of operators between products."""
    link: float
    """Share of a link's bandwidth that collectives reach."""
    reduce_call: float
    """An all-reduce, whatever its size,"""
    reduce_step: float
    """and for each doubling of its ranks."""
    operator_call: float
    """A product with weights, whatever its size, with the small operators around it."""
    prefill_factor: float
    """Such calls of a prefill pass, on engines' figure."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the kernels of an engine for one scheme of weights reach on a generation, instead of its own figures."""

    arch: tuple[str, ...]
    """`Generation.arch`."""
    engine: str
    """First of `EngineFigures.names`."""
    scheme: str
    """Of the weights."""
    linear: float
    """Factor on the time of products with weights."""
    prefill: float
    """Factor on the time of a prefill pass; of all schemes alike."""
    first: float
    """On `EngineFigures.first`; of all generations alike."""
    apart_decode: float
    """On `EngineFigures.apart_decode`; likewise."""
    apart_prefill: float
    """On `EngineFigures.apart_prefill`; likewise."""
    expert_rate: float
    """As those of `Generation`."""
    expert_bytes: float
    """As those of `Generation`."""
    expert_rows: float
    """As those of `Generation`."""
    expert_call: float
    """As those of `Generation`."""


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine adds. Calls are microseconds."""

    names: tuple[str, ...]
    """What tables call it; `any`: one of which nothing is known."""
    operator_factor: float
    """On `Generation.operator_call`."""
    step: float
    """A decode step,"""
    sequence: float
    """and each sequence of it."""
    prefill_call: float
    """A product with weights in a prefill pass, which no captured graph starts."""
    prefill_factor: float
    """On the time of a prefill pass."""
    cache_item: float
    """Bytes of a cached value, against what is counted, where weights have at most 8 bits."""
    cache_factor: float
    """On the time of attention over caches in a decode step."""
    prefill_expert: float
    """A layer with routed experts in a prefill pass."""
    stream: float
    """What each token takes of the one process that takes requests in and hands tokens out, for each scheduler."""
    share: float
    """Of the prefill of others what a sequence waits for between its tokens."""
    mixed: float
    """Of what a prefill pass takes however many prompts it has, what a decode step with a prompt takes more."""
    request: float
    """Milliseconds that a request takes beside its passes."""
    queue: float
    """Prefills that a request waits for: queue + loaded x share of prefill, times sequences^queue_power, and
    burst x sequences / 2 besides."""
    queue_power: float
    """See `queue`."""
    loaded: float
    """See `queue`."""
    burst: float
    """Share of the requests that arrive all at once: see `queue`."""
    apart_prefill: float
    """Factor on passes of workers that only prefill,"""
    apart_decode: float
    """and on steps of those that only decode."""
    unstated_tpot: float
    """Factor on decode steps of workers apart whose number is not stated: such points often speculate."""
    reserved: float
    """Share of the output for which cache has to be free before a request is taken up."""
    between: float = 1.0
    """Factor on the time between tokens: see `Release`,"""
    first: float = 1.0
    """and on the time to the first one without waiting for room."""


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a release of an engine differs from the engine's own figures, which others take."""

    engine: str
    """First of `EngineFigures.names`."""
    version: str
    """As tables write it; empty: of points that do not state one."""
    between: float
    """Factor on the time between tokens,"""
    first: float
    """on the time to the first one without waiting for room,"""
    burst: float
    """and on `EngineFigures.burst`."""


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all devices and engines."""

    linear_gain: float
    """Of a rate above that of bf16: products with weights gain (rate / rate of bf16)^gain,"""
    expert_gain: float
    """those of routed experts with this one."""
    imbalance: float
    """Factor on the time of experts that lie whole on ranks."""
    exchange_call: float
    """Microseconds of an all-to-all, whatever its size."""
    far_call: float
    """Microseconds that an all-reduce over the network takes more."""
    network: float
    """Bytes a second of one device over the network, where none is stated."""
    wide: float
    """Factor on decode steps of a replica with attention of its own on each device."""
    drafted: float
    """Factor on the time between tokens of a model that proposes tokens itself, where it does."""
    acceptance: float
    """Probability that a token which the model proposes is right after the one before it."""
    apart_wide: float
    """Factor on decode steps of wide replicas of workers that only decode."""
    apart_room: float
    """Of the wait for room that differences of rates between workers apart would make, what there is."""
    apart_request: float
    """Milliseconds that a request takes for the way between workers."""
    apart_first: float
    """Milliseconds that the first request to a worker takes more, once in ten requests for each that is under way."""
    apart_queue: float
    """Prefills that a request waits for: apart_queue x (sequences of a worker)^apart_power."""
    apart_power: float
    """See `apart_queue`."""
    apart_capacity: float
    """Of the prompts a second that workers which only prefill could do, what they do at most."""
    unstated_workers: float
    """Where the number of workers is not stated, there are requests^unstated_workers of them,"""
    unstated_wide_workers: float
    """of wide ones requests^unstated_wide_workers."""
    unstated_wide: float
    """There, factor on the time between tokens of wide replicas."""
    unstated_capacity: float
    """As `apart_capacity`, where there are as many devices that prefill as that decode."""
    unstated_queue: float
    """As `apart_queue`, likewise."""
    unstated_power: float
    """As `apart_power`, likewise."""


_EXPERTS = ("expert_rate", "expert_bytes", "expert_rows", "expert_call")
"""Figures of `Kernels` that stand in for those of `Generation`."""
KERNEL_FACTORS = {"prefill": "prefill_factor", "first": "first", "apart_decode": "apart_decode",
                  "apart_prefill": "apart_prefill"}
"""Factors of `Kernels`, and what of `EngineFigures` they are on."""


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors around a prediction that nine of ten measurements lie between."""

    evidence: str
    """What is known of the case."""
    rows: int
    """Measurements that it is from."""
    tpot: tuple[float, float]
    """On the time between tokens."""
    ttft: tuple[float, float]
    """On the time to the first token."""


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    source: str
    """Where the measurements are from."""
    rows: int
    """Measurements that were fitted."""
    spread: dict[str, float]
    """Mean and median relative errors, in the fit and with classes left out."""
    common: Common
    """For all."""
    generations: tuple[Generation, ...]
    """Of devices."""
    engines: tuple[EngineFigures, ...]
    """Of engines."""
    kernels: tuple[Kernels, ...]
    """Of engines' kernels on generations."""
    releases: tuple[Release, ...]
    """Of engines."""
    intervals: tuple[Interval, ...]
    """By evidence."""

    def generation(self, arch: str) -> tuple[Generation, bool]:
        """(the generation of an architecture, whether it was measured); of others the nearest of the same maker by
        number, else the mean of all."""
        known = next((one for one in self.generations if arch in one.arch), None)
        if known:
            return known, True
        maker, number = split_arch(arch)
        near = [(abs(split_arch(name)[1] - number), one) for one in self.generations for name in one.arch
                if number and split_arch(name)[0] == maker]
        if near:
            return min(near, key=lambda pair: pair[0])[1], False
        return next(one for one in self.generations if not one.arch), False

    def engine(self, name: str) -> tuple[EngineFigures, bool]:
        """(figures of an engine, whether it was measured)."""
        known = next((one for one in self.engines if name in one.names), None)
        return known or next(one for one in self.engines if "any" in one.names), known is not None

    def kernel(self, arch: tuple[str, ...], engine: str, scheme: str) -> Kernels | None:
        """The kernels of an engine for a scheme on a generation; where they were not measured, those in the middle of
        the other engines'. None: of none."""
        alike = [one for one in self.kernels if one.arch == arch and one.scheme == scheme]
        own = next((one for one in alike if one.engine == engine), None)
        if own or not alike:
            return own
        middle = {field: exp(fmean(log(getattr(one, field)) for one in alike))
                  for field in ("linear", *KERNEL_FACTORS, *_EXPERTS)}
        return msgspec.structs.replace(alike[0], engine=engine, **middle)

    def release(self, engine: EngineFigures, version: str | None) -> EngineFigures:
        """The figures of an engine in a version; None: in none that is known."""
        own = next((one for one in self.releases if (one.engine, one.version) == (engine.names[0], version)), None)
        return msgspec.structs.replace(engine, between=engine.between * own.between, first=engine.first * own.first,
                                       burst=engine.burst * own.burst) if own else engine

    def figures(self, arch: str, engine: str, products: str = "", experts: str = "", version: str | None = None
                ) -> tuple[Generation, EngineFigures, bool]:
        """(the generation with the kernels of the engine for products with weights and for routed experts of these
        schemes, the engine in that version, whether generation and engine were measured)."""
        (made, measured), (own, familiar) = self.generation(arch), self.engine(engine)
        linear, expert = (self.kernel(made.arch, own.names[0], scheme) for scheme in (products, experts))
        own, most = self.release(own, version), expert or linear
        if most:
            own = msgspec.structs.replace(own, **{field: getattr(own, field) * getattr(most, factor)
                                                  for factor, field in KERNEL_FACTORS.items()})
        if linear:
            made = msgspec.structs.replace(made, linear_rate=made.linear_rate / linear.linear,
                                           linear_bytes=made.linear_bytes / linear.linear)
        if expert:
            made = msgspec.structs.replace(made, **{field: getattr(expert, field) for field in _EXPERTS})
        return made, own, measured and familiar

    def interval(self, evidence: str) -> Interval:
        """The factors for that evidence."""
        return next(one for one in self.intervals if one.evidence == evidence)


def calibrated(known: Efficiency, calibration: Calibration) -> Efficiency:
    """The figures with those factors, and the intervals of the measurements where there were enough."""
    powers: dict[str, list[tuple[float, int]]] = {}
    for cause, factor in calibration.factors.items():
        for field, power in FACTORS[cause].items():
            powers.setdefault(field, []).append((factor, power))
    intervals = tuple(msgspec.structs.replace(one, tpot=calibration.tpot or one.tpot, ttft=calibration.ttft or one.ttft)
                      for one in known.intervals)
    return msgspec.structs.replace(
        known, common=_changed(known.common, powers), intervals=intervals,
        **{part: tuple(_changed(one, powers) for one in getattr(known, part))
           for part in ("generations", "engines", "kernels")})


def _changed(one: Figures, powers: dict[str, list[tuple[float, int]]]) -> Figures:
    own = [field for field in one.__struct_fields__ if field in powers]
    if isinstance(one, Generation):
        own = [field for field in own if field != "prefill_factor"]  # an engine has one of that name, and it is enough
    return msgspec.structs.replace(one, **{field: getattr(one, field) * prod(factor**power for factor, power
                                                                            in powers[field]) for field in own})


@cache
def _shipped() -> Efficiency:
    return msgspec.convert(loads(files(__package__).joinpath("efficiency.toml").read_text()), Efficiency)


def efficiency(calibration: Calibration | None = None) -> Efficiency:
    """The figures; with a calibration those that it makes of them."""
    return calibrated(_shipped(), calibration) if calibration else _shipped()
